"""Real child processes: output, signals, groups, run files, the lock and the sweep."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from garra import paths
from garra.errors import ConfigError, EngineDown
from garra.hardware import engine_environment
from garra.spec import Cause
from garra.supervisor import runfile
from garra.supervisor.process import ProcessSpawner, RealProcess
from garra.supervisor.shield import to_the_end
from tests.fakes import plan_for, profiles


async def spawn(folder: Path, script: str) -> RealProcess:
    spawner = ProcessSpawner(folder, lambda plan, socket: [sys.executable, "-c", script, str(socket)])
    return await spawner.spawn(plan_for(profiles("a")["a"]))


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - what is waited for is another process
            await asyncio.sleep(0)


async def test_an_exit_is_told_with_its_last_words(private_folders: Path) -> None:
    process = await spawn(private_folders, "import sys; print('0.00.017.000 E the cause'); sys.exit(3)")
    assert list(private_folders.glob("*.json"))
    gone = await process.wait()
    assert (gone.code, gone.cause, gone.detail) == (3, Cause.CRASH, "the cause")
    assert not list(private_folders.glob("*.json"))
    assert "the cause" in paths.engine_log("a").read_text()


async def test_a_flood_without_line_ends_is_bounded(private_folders: Path) -> None:
    process = await spawn(private_folders, "import sys; sys.stdout.write('x' * 20_000_000); print('\\nend')")
    gone = await process.wait()
    assert gone.code == 0
    assert gone.log_tail[-1] == "end"
    logs = paths.engine_log("a").parent
    assert sum(path.stat().st_size for path in logs.iterdir()) < 25_000_000


async def test_its_children_end_with_it(private_folders: Path) -> None:
    script = (
        "import signal, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
        "print(child.pid, flush=True)\n"
        "signal.pause()"
    )
    process = await spawn(private_folders, script)
    waiting = asyncio.ensure_future(process.wait())
    await until(process._ring.lines)
    child = int(process._ring.lines()[0])
    process.send_signal(signal.SIGTERM)
    assert (await waiting).signal == signal.SIGTERM
    await until(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE)


async def test_kill_follows_term_when_it_is_ignored(private_folders: Path) -> None:
    script = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); signal.pause()"
    process = await spawn(private_folders, script)
    waiting = asyncio.ensure_future(process.wait())
    await until(process._ring.lines)
    process.send_signal(signal.SIGTERM)
    assert not waiting.done()
    process.send_signal(signal.SIGKILL)
    assert (await waiting).signal == signal.SIGKILL
    process.send_signal(signal.SIGTERM)


async def test_a_grandchild_that_escapes_does_not_hold_the_news_back(private_folders: Path) -> None:
    script = (
        "import signal, subprocess, sys\n"
        "escaped = [sys.executable, '-c', 'import signal; signal.pause()']\n"
        "print(subprocess.Popen(escaped, start_new_session=True).pid, flush=True)"
    )
    process = await spawn(private_folders, script)
    gone = await process.wait()
    escaped = psutil.Process(int(gone.log_tail[0]))
    escaped.kill()
    assert gone.code == 0


async def test_a_program_that_is_not_there(private_folders: Path) -> None:
    spawner = ProcessSpawner(private_folders, lambda plan, socket: ["/nowhere/llama-server"])
    told = ""
    try:
        process = await spawner.spawn(plan_for(profiles("a")["a"]))
    except EngineDown as error:
        told = error.what
    else:  # with a tether it is the tether that starts, and says so
        told = str(await process.wait())
    assert "/nowhere/llama-server" in told


def test_nothing_of_the_environment_sets_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_HOST", "0.0.0.0")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    environment = engine_environment()
    assert "LLAMA_ARG_HOST" not in environment
    assert environment["GGML_VK_VISIBLE_DEVICES"] == "0"
    assert environment["GGML_NO_BACKTRACE"] == "1"


def test_the_lock_names_its_holder(private_folders: Path) -> None:
    with runfile.runtime_lock(private_folders):
        code = "import sys; from pathlib import Path; from garra.supervisor import runfile\n"
        code += "with runfile.runtime_lock(Path(sys.argv[1])): pass"
        done = subprocess.run(
            [sys.executable, "-c", code, str(private_folders)], capture_output=True, text=True, check=False
        )
        assert f"garra already runs (pid {os.getpid()})" in done.stderr
    with runfile.runtime_lock(private_folders):
        pass


def test_the_sweep_kills_only_what_is_provably_ours(private_folders: Path) -> None:
    sleeper = [sys.executable, "-c", "import signal; signal.pause()"]
    ours, stranger, other_boot = (subprocess.Popen(sleeper) for _ in range(3))
    try:
        runfile.write(private_folders / "ours.json", ours.pid, private_folders / "ours.sock")
        (private_folders / "ours.sock").touch()
        for name, process, change in (
            ("stranger", stranger, {"started": "12345"}),
            ("other-boot", other_boot, {"boot": "another"}),
        ):
            path = private_folders / f"{name}.json"
            runfile.write(path, process.pid, private_folders / f"{name}.sock")
            path.write_text(json.dumps(json.loads(path.read_text()) | change))
        (private_folders / "broken.json").write_text("{")
        assert runfile.sweep(private_folders) == 1
        assert ours.wait(10) == -signal.SIGKILL
        assert (stranger.poll(), other_boot.poll()) == (None, None)
        assert not list(private_folders.glob("*.json"))
        assert not list(private_folders.glob("*.sock"))
    finally:
        for process in (ours, stranger, other_boot):
            process.kill()
            process.wait()


def test_a_process_is_told_from_a_later_one_with_its_pid() -> None:
    assert runfile.identity(os.getpid()) == runfile.identity(os.getpid())
    assert runfile.identity(2**22 - 7) is None


def test_the_runtime_folder_is_ours_alone(private_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = paths.runtime_dir()
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert paths.runtime_dir().stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(private_folders)
    with pytest.raises(ConfigError, match="not a folder of this user"):
        paths.runtime_dir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_folders / ("x" * 90)))
    with pytest.raises(ConfigError, match="107 bytes"):
        paths.runtime_dir()


async def test_clean_up_goes_on_under_any_number_of_cancels() -> None:
    steps: list[str] = []
    gate = asyncio.Event()

    async def clean_up() -> None:
        steps.append("begun")
        await gate.wait()
        steps.append("done")

    task = asyncio.ensure_future(to_the_end(clean_up()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert steps == ["begun"]
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert steps == ["begun", "done"]
