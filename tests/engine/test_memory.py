"""Memory that is planned, taken by others, and runs out: whole garras, on GPUs a stub of the driver's library shows."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from garra.engine import smoke, store
from garra.spec import EngineBuild
from tests import shapes
from tests.engine.conftest import Make
from tests.stub_driver import StubDriver, gpu
from tests.support import Garra, eventually
from tests.tiny_gguf import write


@pytest.fixture
def driver(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    return StubDriver(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="module")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full shape of Qwen3.5-9B: 5.4 GB, holes all of it."""
    return write(tmp_path_factory.mktemp("sparse") / "nine.gguf", shapes.qwen35_9b(mtp=False))


@pytest.fixture
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model; what the stub makes of its cache is the test's affair."""
    return smoke.write_noise_model(tmp_path_factory.mktemp("noise") / "noise.gguf")


def lines(model: Path, *more: str) -> str:
    """A profile on the GPU, if there is one."""
    always = (f'model = "file:{model}"', 'gpu_layers = "all"', "stop_grace_s = 1", "load_timeout_s = 5")
    return "\n".join([*always, *more]) + "\n"


def ready(garra: Garra, profile: str = "demo") -> bool:
    return garra.status_or_none() is not None and garra.engine(profile)["phase"] == "ready"


SMALL = ("min_resident_s = 0", "context = 4096", "cache_ram_mib = 0")
WISH = ("context = 24576", 'cache_type_k = "q8_0"', 'cache_type_v = "q8_0"')


def ask(garra: Garra, model: str = "demo") -> str | None:
    with openai.OpenAI(base_url=f"{garra.url}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(model=model, messages=[{"role": "user", "content": "hi"}])
    return answer.choices[0].message.content


def starts(garra: Garra, profile: str = "demo") -> list[str]:
    """The command line of every start."""
    return [line for line in garra.engine_log(profile).splitlines() if line.startswith("--- ")]


def test_a_model_is_planned_for_the_gpu_that_is_there(stubbed: Make, driver: StubDriver, nine: Path) -> None:
    driver.show(gpu(8192, 300))
    garra = stubbed("", base=lines(nine, *WISH), driver=driver)
    garra.up("demo")
    engine = garra.engine()
    assert engine["slot_context"] == 24576
    assert engine["warnings"] == []
    assert 5000 < engine["planned_mib"]["gpu0"] < 8192 - 300 - 384


def test_another_process_takes_2_gib_between_plan_and_load(stubbed: Make, driver: StubDriver, nine: Path) -> None:
    driver.show(gpu(8192, 300))
    garra = stubbed("", base=lines(nine, *WISH), driver=driver)
    garra.up("demo")
    garra.run("unload", "demo", check=True)
    eventually(lambda: garra.engine()["phase"] == "cold")
    driver.add("process 0 99 2048")
    assert garra.run("load", "demo").returncode == 0
    engine = garra.engine()
    assert engine["phase"] == "ready"
    assert engine["planned_mib"]["gpu0"] < 8192 - 300 - 2048 - 384
    assert engine["warnings"], "the person is told what was given up"
    assert ask(garra)


def test_a_small_budget_puts_layers_on_the_cpu_and_says_what_that_costs(
    stubbed: Make, driver: StubDriver, tmp_path: Path
) -> None:
    small = write(tmp_path / "small.gguf", shapes.qwen35_2b())  # what a GPU does not hold must fit into real memory
    driver.show(gpu(8192, 300))
    garra = stubbed("late", base=lines(small), top="memory_budget_mib = 1000", driver=driver).up("other")
    engine = garra.engine("other")
    assert 0 < engine["planned_mib"]["gpu0"] <= 1000
    assert "layers on the CPU cost about 10x of the speed" in " ".join(engine["warnings"])


def test_oom_while_loading_walks_down_and_is_remembered(stubbed: Make, noise: Path) -> None:
    garra = stubbed("hungry", base=lines(noise, "context = 16384", "slots = 2"), STUB_CELLS="8192")
    garra.start("demo")
    eventually(lambda: ready(garra))
    told = starts(garra)
    assert [line.split("--cache-type-k ")[1].split()[0] for line in told] == ["f16", "q8_0", "q8_0"]
    assert [line.split(" -c ")[1].split()[0] for line in told] == ["32768", "32768", "16384"]
    engine = garra.engine()
    assert engine["slot_context"] == 8192
    story = " ".join(engine["warnings"])
    assert "KV cache q8_0 instead of f16" in story
    assert "context 8192 per slot instead of 16384" in story
    assert "out of memory" in story
    assert ask(garra) is not None
    garra.stop()
    garra.process = None
    garra.up("demo")
    assert len(starts(garra)) == 4, "it begins where it had come to"
    assert garra.engine()["slot_context"] == 8192
    assert "--forget" in " ".join(garra.engine()["warnings"])
    garra.stop()
    garra.process = None
    assert garra.run("plan", "demo", "--forget").returncode == 0
    garra.start("demo")
    eventually(lambda: len(starts(garra)) >= 5)
    assert "--cache-type-k f16" in starts(garra)[4]


def test_oom_while_serving_walks_down_and_the_request_is_answered(stubbed: Make, noise: Path) -> None:
    garra = stubbed("starves", base=lines(noise, "context = 16384", "slots = 2"), STUB_CELLS="16384").up("demo")
    assert ask(garra) == "stub", "asked once, answered by the next engine"
    engine = garra.engine()
    assert engine["restarts"] == 1
    assert "KV cache q8_0" in " ".join(engine["warnings"])
    assert garra.report()["requests"]["complete"] == 1


def test_what_never_fits_fails_in_the_end_and_says_so(stubbed: Make, noise: Path) -> None:
    garra = stubbed("hungry", base=lines(noise, "context = 8192"), STUB_CELLS="1").start("demo")
    eventually(lambda: garra.exited)
    assert "out of memory" in garra.said
    assert garra.process is not None
    assert garra.process.returncode == 6


def test_models_stay_side_by_side_while_they_fit(stubbed: Make, driver: StubDriver, tmp_path: Path) -> None:
    # Large for the GPU, next to nothing for the host: what is free there is not this test's to say.
    dense = shapes.llama(n_layer=36, n_embd=2048, n_ff=8192, n_head=16, n_head_kv=2)
    small = write(tmp_path / "small.gguf", dense)
    driver.show(gpu(8192, 300))
    more = "".join(f"[profiles.{name}]\n{lines(small, *SMALL)}" for name in ("third", "fourth", "fifth"))
    garra = stubbed("late", base=lines(small, *SMALL), driver=driver)
    file = Path(garra.env["XDG_CONFIG_HOME"]) / "garra" / "profiles.toml"
    file.write_text(file.read_text() + more)
    garra.up("demo")
    for name in ("other", "third", "fourth"):
        assert garra.run("load", name).returncode == 0
    up = [row["engine"] for row in garra.status()["profiles"] if row["engine"]["phase"] == "ready"]
    assert len(up) == 4
    taken = sum(engine["planned_mib"]["gpu0"] for engine in up)
    assert taken <= 8192 - 300 - 384
    assert garra.run("load", "fifth").returncode == 0
    cold = [name for name in ("demo", "other", "third", "fourth") if garra.engine(name)["phase"] == "cold"]
    assert len(cold) == 1, "one made room: which hangs on how long each took to load"


def test_what_a_load_really_took_counts_from_then_on(stubbed: Make, driver: StubDriver, nine: Path) -> None:
    driver.show(gpu(24576, 300))
    garra = stubbed("late", base=lines(nine, "context = 4096"), driver=driver, STUB_VRAM_MIB="7000").up("demo")
    planned = garra.engine()["planned_mib"]["gpu0"]

    def context_mib() -> float:
        told = json.loads(garra.run("plan", "demo", "--json").stdout)
        return float(told["devices"]["CUDA0"]["parts_bytes"]["device context"]) / (1 << 20)

    eventually(lambda: context_mib() != 320)
    assert planned - 320 + context_mib() == pytest.approx(7000, abs=2)


@pytest.fixture
def tight(demo_model: Path, tmp_path: Path) -> Iterator[Garra]:
    """The real engine in a wrapper that lets it have 850 MB of address space: it takes 1025 with an f16 cache, 680 with
    a q8_0 one (measured). One arena: else each of its threads may reserve 64 MB more, or not."""
    real = store.current()
    folder = tmp_path / "garra" / "engines" / "tight"
    (folder / "bin").mkdir(parents=True)
    server = folder / "bin" / "llama-server"
    server.write_text(
        f'#!/bin/sh\nulimit -v 850000\nexport MALLOC_ARENA_MAX=1\nexec {real.tool("llama-server")} "$@"\n'
    )
    server.chmod(server.stat().st_mode | stat.S_IXUSR)
    store.write_manifest(folder, EngineBuild("tight", real.build_number, folder, "cpu", real.patches))
    os.symlink("tight", folder.parent / "current")
    one = Garra(data=tmp_path)
    table = f'model = "file:{demo_model}"\ncontext = 8192\nslots = 4\nthreads = 1\n'
    yield one.configure(f"[profiles.demo]\n{table}")
    one.close()
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_real_engine_that_runs_out_of_memory_comes_up_lower(tight: Garra) -> None:
    tight.up("demo")
    engine = tight.engine()
    assert engine["phase"] == "ready"
    assert "KV cache q8_0 instead of f16" in " ".join(engine["warnings"])
    assert len(starts(tight)) == 2
    assert ask(tight)


def test_a_prompt_longer_than_the_context_is_refused_with_numbers(garra: Garra) -> None:
    garra.configure("[profiles.demo]\ncontext = 256\nslots = 1\n").up("demo")
    long = "word " * 600
    with (
        openai.OpenAI(base_url=f"{garra.url}/v1", api_key="any", max_retries=0) as client,
        pytest.raises(openai.BadRequestError) as caught,
    ):
        client.chat.completions.create(model="demo", messages=[{"role": "user", "content": long}], max_tokens=5)
    assert caught.value.status_code == 400
    assert "600" in caught.value.message or "exceeds the available context size" in caught.value.message
    assert "256" in caught.value.message
