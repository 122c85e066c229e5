"""Engines side by side: what would be built, the user's own, prebuilt ones; going back, and changing over."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from garra.engine import build as builds
from garra.engine import source, toolkit
from garra.spec import EngineBuild
from tests.support import Garra, Json, eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def apart(garra: Garra, tmp_path: Path, demo_model: Path) -> Garra:
    """A garra with a data folder of its own, no engine in it, and the demo model by path."""
    garra.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    return garra.configure(f'[profiles.demo]\nmodel = "file:{demo_model}"\nthreads = 1\n')


def told(garra: Garra, *words: str) -> Json:
    done = garra.run(*words, "--json")
    assert done.returncode == 0, done.stderr
    answer: Json = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize(("backend", "word"), [("hip", "-DGGML_HIP=ON"), ("metal", "-DGGML_METAL=ON")])
def test_backends_this_machine_lacks_still_show_their_plan(apart: Garra, backend: str, word: str) -> None:
    plan = told(apart, "engine", "build", "--backend", backend, "--dry-run")
    assert word in plan["configure"]
    assert plan["missing"], "and what is missing, with what brings it"
    done = apart.run("engine", "build", "--backend", backend)
    assert done.returncode == 5
    assert "fix:" in done.stderr


def test_vulkan_names_its_packages_where_they_are_missing(apart: Garra, tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("cmake", "ninja", "c++", "patch", "setpriv"):
        if (found := shutil.which(name, path=f"{ROOT}/.venv/bin:{os.environ['PATH']}")) is not None:
            (folder / name).symlink_to(found)
    apart.env["PATH"] = str(folder)
    done = apart.run("engine", "build", "--backend", "vulkan")
    assert done.returncode == 5
    assert "glslc" in done.stderr
    assert "apt install glslc libvulkan-dev spirv-headers" in done.stderr


def script(garra: Garra, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "build_cuda.sh"), *words], env=garra.env, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_cuda_script_is_the_command(apart: Garra) -> None:
    helped = script(apart, "--help")
    assert helped.returncode == 0
    assert "native|portable|dev" in helped.stdout
    assert script(apart, "dev", "--help").stdout == helped.stdout
    for mode in ("native", "dev"):
        by_script = json.loads(script(apart, mode, "--dry-run", "--json").stdout)
        by_command = told(apart, "engine", "build", "--backend", "cuda", "--mode", mode, "--dry-run")
        assert by_script == by_command, "the same stamp and all"
        line = " ".join(by_script["configure"])
        assert "-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=86" in line, "no GPU is visible here"
    assert script(apart, "--mode", "nonsense").returncode == 2


@pytest.mark.timeout(900)
def test_two_cuda_files_compile_with_the_toolkit_of_the_index(engine_build: EngineBuild, tmp_path: Path) -> None:
    if toolkit.installed() is not None:
        pytest.skip("this machine has a CUDA toolkit of its own")
    plan = builds.plan_build(backend="cuda")
    if plan.toolkit is not None:
        toolkit.fetch(plan.toolkit, print)
    source.obtain(plan.pin, tmp_path / "src", given=None, say=print)
    configure = [word.replace(str(plan.work), str(tmp_path)) for word in plan.configure]
    done = subprocess.run(configure, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    folder = "ggml/src/ggml-cuda/CMakeFiles/ggml-cuda.dir"
    objects = [f"{folder}/{name}.cu.o" for name in ("scale", "clamp")]
    done = subprocess.run(
        [plan.ninja, "-C", str(tmp_path / "build"), *objects], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert all((tmp_path / "build" / name).stat().st_size > 1000 for name in objects)


def test_an_engine_of_ones_own_is_checked_used_and_left_again(apart: Garra, engine_build: EngineBuild) -> None:
    mine = told(apart, "engine", "use", str(engine_build.tool("llama-server")))
    assert (mine["origin"], mine["build"], mine["backend"]) == ("given", 11434, "cpu")
    again = told(apart, "engine", "use", str(engine_build.folder))
    assert again["stamp"] == mine["stamp"], "the folder will do"
    copy = Path(apart.env["XDG_DATA_HOME"]) / "copy"
    shutil.copytree(engine_build.folder / "bin", copy, symlinks=True)
    second = told(apart, "engine", "use", str(copy))
    assert second["stamp"] != mine["stamp"]
    uses = {row["stamp"]: row["use"] for row in told(apart, "engine", "list")}  # type: ignore[index]
    assert uses == {second["stamp"]: "current", mine["stamp"]: "previous"}
    assert told(apart, "engine", "rollback")["stamp"] == mine["stamp"]
    assert told(apart, "engine", "rollback")["stamp"] == second["stamp"]
    assert apart.run("engine", "remove", second["stamp"]).returncode == 5, "it is in use"
    assert apart.run("engine", "remove", mine["stamp"]).returncode == 0
    assert apart.run("engine", "rollback").returncode == 5
    apart.up("demo")
    assert apart.engine()["engine"] == second["stamp"], "a person's choice is not built over"


def test_an_engine_that_cannot_do_it_is_refused_and_changes_nothing(apart: Garra, tmp_path: Path) -> None:
    toy = tmp_path / "llama-server"
    toy.write_text("#!/bin/sh\necho '--model --host'\n")
    toy.chmod(0o755)
    done = apart.run("engine", "use", str(toy))
    assert done.returncode == 5
    assert "does not know" in done.stderr
    assert apart.run("engine", "use", str(tmp_path / "nowhere")).returncode == 5
    assert not told(apart, "engine", "list")


def test_a_running_garra_changes_over_without_cutting_an_answer(
    garra: Garra, engine_build: EngineBuild, tmp_path: Path
) -> None:
    data = tmp_path / "data" / "garra"
    (data / "engines").mkdir(parents=True)
    shutil.copytree(engine_build.folder, data / "engines" / engine_build.folder.name, symlinks=True)
    (data / "engines" / "current").symlink_to(engine_build.folder.name)
    (data / "models").symlink_to(Path(os.environ.get("XDG_DATA_HOME", Path.home() / ".local/share")) / "garra/models")
    garra.env["XDG_DATA_HOME"] = str(tmp_path / "data")
    garra.configure("[profiles.demo]\nthreads = 1\n").up("demo")
    before = garra.engine()["engine"]
    lines: list[str] = []
    body = {
        "model": "demo", "stream": True, "max_tokens": 300, "ignore_eos": True,
        "messages": [{"role": "user", "content": "Tell me a story."}],
    }  # fmt: skip

    def listen() -> None:
        with (
            httpx.Client(base_url=url, timeout=180) as client,
            client.stream("POST", path, json=body) as reply,
        ):
            lines.extend(reply.iter_lines())

    url, path = garra.url, "/v1/chat/completions"
    listener = threading.Thread(target=listen)
    listener.start()
    eventually(lambda: garra.busy_slots() == 1)
    assert garra.run("engine", "use", str(engine_build.tool("llama-server"))).returncode == 0
    listener.join(60)
    assert lines[-2:] == ["data: [DONE]", ""], "the answer was whole"
    eventually(lambda: garra.engine()["phase"] == "ready" and garra.engine()["engine"] != before)
    assert garra.status()["engine"] == garra.engine()["engine"]


@pytest.mark.timeout(300)
def test_a_prebuilt_engine_serves_while_there_is_no_compiler(apart: Garra) -> None:
    if os.uname().machine != "x86_64":
        pytest.skip("there is no prebuilt engine for this machine")
    apart.env["CXX"] = "/nowhere/c++"
    refused = apart.run("up", "demo", "--port", "0")
    assert refused.returncode == 5
    assert "garra up --prebuilt" in refused.stderr, "it is offered where there is no compiler"
    apart.up("demo", "--prebuilt")
    assert "sha256 6805555f" in apart.said, "where it comes from is said"
    assert apart.status()["engine"].startswith("prebuilt-vulkan-")
    answer = httpx.post(
        f"{apart.url}/v1/chat/completions",
        json={"model": "demo", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi!"}]},
        timeout=180,
    )
    assert answer.json()["usage"]["completion_tokens"] == 5


def test_the_doctor_says_what_is_there_and_what_fits(garra: Garra, engine_build: EngineBuild) -> None:
    report = told(garra, "doctor")
    assert report["engine"]["stamp"] == engine_build.stamp
    assert report["host"]["cores"] >= 1
    rows = {row["profile"]: row for row in report["profiles"]}
    assert rows["demo"]["fits"]
    assert rows["demo"]["ram_mib"] > 300
    shown = garra.run("doctor").stdout
    assert "fits  demo" in shown
    assert "GPU" in shown
