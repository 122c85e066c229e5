"""Building: interrupted, failing, unproved. The sources are a toy project with llama.cpp's target names, whose server
hands over to the real engine; CMake, ninja and the compiler are real."""

from __future__ import annotations

import glob
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from garra.engine import source, store
from garra.engine.build import TARGETS, telling_lines
from garra.spec import EngineBuild
from tests.support import Garra, eventually

N_UNITS = 6
SERVER = """
#include <cstdlib>
#include <unistd.h>
int main(int, char** argv) {
    argv[0] = std::getenv("REAL_SERVER");
    return argv[0] ? execv(argv[0], argv) : 1;
}
"""


def write_toy(folder: Path, gate: Path) -> Path:
    """A project that compiles some units, then waits for `gate` to exist, then links."""
    folder.mkdir()
    units = [f"unit{n}.cpp" for n in range(N_UNITS)]
    for unit in units:
        (folder / unit).write_text(f"int {unit[:-4]}() {{ return 1; }}\n")
    (folder / "server.cpp").write_text(SERVER)
    lines = [
        "cmake_minimum_required(VERSION 3.14)",
        "project(toy CXX)",
        "set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)",
        f"add_library(units STATIC {' '.join(units)})",
        "add_custom_command(OUTPUT gate.stamp DEPENDS units",
        f"  COMMAND sh -c \"while [ ! -e '{gate}' ]; do sleep 0.05; done; touch gate.stamp\" VERBATIM)",
        "add_custom_target(gate DEPENDS gate.stamp)",
        *(f"add_executable({target} server.cpp)\nadd_dependencies({target} gate)" for target in TARGETS),
    ]
    (folder / "CMakeLists.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def builder(garra: Garra, tmp_path: Path, engine_build: EngineBuild) -> Garra:
    """A garra with an empty data folder; the toy's server finds the real engine."""
    garra.env |= {"XDG_DATA_HOME": str(tmp_path / "data"), "REAL_SERVER": str(engine_build.tool("llama-server"))}
    return garra


def written(data: Path, pattern: str) -> list[Path]:
    """Files below `data`; folders that CMake removes in the meantime are passed over, which `Path.rglob` does not do
    before Python 3.13."""
    return [Path(name) for name in glob.iglob(f"{data}/**/{pattern}", recursive=True, include_hidden=True)]


def objects(data: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mtime_ns for path in written(data, "unit*.o")}


def take_sigint() -> None:
    """A shell that runs the tests in the background leaves Ctrl-C ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def running_in(folder: Path) -> list[str]:
    """Commands of processes that have to do with this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if process.pid != os.getpid() and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_build_goes_on_where_it_stopped(builder: Garra, tmp_path: Path, signum: int) -> None:
    gate, data = tmp_path / "gate", tmp_path / "data"
    toy = write_toy(tmp_path / "toy", gate)
    command = [sys.executable, "-m", "garra", "engine", "build", "--source", str(toy)]
    with subprocess.Popen(
        command,
        env=builder.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=take_sigint,  # noqa: PLW1509 - one thread
    ) as first:
        try:
            eventually(lambda: len(objects(data)) == N_UNITS)
            eventually(lambda: written(data, "libunits.a"))
            before = objects(data)
            first.send_signal(signum)
            assert first.wait(60) != 0
        finally:
            first.kill()
    assert not (data / "garra" / "engines" / "current").exists()
    eventually(lambda: not running_in(data))
    gate.touch()

    def second() -> subprocess.CompletedProcess[str] | None:
        done = builder.run("engine", "build", "--source", str(toy))
        return None if done.returncode == 7 else done  # the last compiler of a killed garra holds the lock

    done = eventually(second)
    assert done.returncode == 0, done.stderr
    assert objects(data) == {} or objects(data) == before
    log = next((Path(builder.env["XDG_STATE_HOME"]) / "garra" / "logs").glob("engine-build-*.log")).read_text()
    assert "unit0.cpp" not in log, "compiled once"
    assert re.search(r"\[\d+/\d+\] Linking CXX executable bin/llama-server", log)
    assert "stamp      b11434-cpu-" in done.stdout
    assert not list((data / "garra" / "engines").glob(".work-*"))


def test_a_build_that_fails_shows_the_lines_that_matter(builder: Garra, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    toy = write_toy(tmp_path / "toy", gate)
    (toy / "unit3.cpp").write_text("int unit3() { return undeclared_thing; }\n")
    done = builder.run("engine", "build", "--source", str(toy))
    assert done.returncode == 5
    assert "undeclared_thing" in done.stderr
    assert "The whole log:" in done.stderr
    assert "fix:" in done.stderr
    assert builder.run("engine", "info").returncode == 5


def test_an_engine_that_proves_nothing_does_not_become_current(builder: Garra, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    good = builder.run("engine", "build", "--source", str(write_toy(tmp_path / "good", gate)))
    assert good.returncode == 0, good.stderr
    before = builder.run("engine", "info").stdout
    bad = write_toy(tmp_path / "bad", gate)
    (bad / "server.cpp").write_text("int main() { return 0; }\n")
    done = builder.run("engine", "build", "--source", str(bad))
    assert done.returncode == 5
    assert "does not know" in done.stderr or "first test" in done.stderr
    assert builder.run("engine", "info").stdout == before


def test_building_twice_compiles_once(builder: Garra, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    toy = write_toy(tmp_path / "toy", gate)
    assert builder.run("engine", "build", "--source", str(toy)).returncode == 0
    again = builder.run("engine", "build", "--source", str(toy))
    assert again.returncode == 0
    assert "compiling" not in again.stderr


def test_a_patch_that_does_not_fit_foreign_sources_is_left_out_and_said(builder: Garra, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    done = builder.run("engine", "build", "--source", str(write_toy(tmp_path / "toy", gate)), "--json")
    assert "does not fit these sources and is left out" in done.stderr
    assert '"patches": []' in done.stdout


def test_a_folder_that_is_no_source_tree(builder: Garra, tmp_path: Path) -> None:
    done = builder.run("engine", "build", "--source", str(tmp_path))
    assert done.returncode == 5
    assert "has no CMakeLists.txt" in done.stderr


def test_without_an_index_the_fix_is_named(builder: Garra, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    builder.env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "none")}
    done = builder.run("engine", "build")
    assert done.returncode == 9
    assert "garra engine build --source FOLDER" in done.stderr


def test_the_pinned_engine_is_what_it_says(engine_build: EngineBuild) -> None:
    told = subprocess.run([engine_build.tool("llama-server"), "--version"], capture_output=True, text=True, check=True)
    assert "11434" in told.stdout + told.stderr
    assert engine_build.patches == tuple(patch.stem for patch in source.load_pin().patches)
    assert all(engine_build.tool(target).exists() for target in TARGETS)
    assert (store.current().folder / "LICENSE").read_text().startswith("MIT")


def test_the_telling_lines_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "\n".join([f"[{n}/99] fine" for n in range(90)] + ["FAILED: x.o", "x.cpp:3: error: no such thing", "  3 |"])
    )
    assert telling_lines(log).splitlines()[0] == "FAILED: x.o"
    assert "no such thing" in telling_lines(log)
