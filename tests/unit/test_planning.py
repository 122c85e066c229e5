"""Planning on this machine, from profile to plan and back: files, cards, what was learned, `garra plan`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from garra import config
from garra.bill import HOST, Place
from garra.engine.argv import server_argv
from garra.errors import BadModel, ModelNotPresent
from garra.host import Gpu, HostSpec
from garra.ledger import Ledger
from garra.parts import card_of
from garra.planner.room import Margins
from garra.planning import Planner
from garra.spec import MIB, EngineBuild, Profile
from garra.store import Store
from tests import shapes
from tests.tiny_gguf import write, write_shards

MACHINE = HostSpec(8, 32768, 24576, (Gpu(0, "NVIDIA GeForce RTX 3070", 8192, 7800, others_mib=392),), cpu="a CPU")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    store = Store(tmp_path / "state.db")
    yield Ledger(store)
    store.close()


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("models") / "four.gguf", shapes.qwen35_4b())


def build(backend: str = "cuda") -> EngineBuild:
    return EngineBuild("b1-stub", 1, Path("/nowhere"), backend, ())


def planner(ledger: Ledger | None, machine: HostSpec = MACHINE, backend: str = "cuda") -> Planner:
    return Planner(lambda: build(backend), Margins(), ledger, detect=lambda: machine)


def turbo(path: Path, **changes: Any) -> Profile:
    profile = config.load().profiles["turbo_4b"]
    return replace(profile, model=f"file:{path}", **changes)


def test_a_file_is_planned_from_its_own_header(four: Path, ledger: Ledger) -> None:
    card, path = card_of(turbo(four))
    assert (card.origin, path) == ("file", four)
    plan = planner(ledger).plan(turbo(four))
    assert (plan.rung, plan.gpu, plan.engine) == (0, 0, "b1-stub")
    assert plan.bill is not None
    assert plan.bill.source == "formula", "there is no engine to ask"


def test_what_is_not_here_is_planned_from_its_card_when_one_may(ledger: Ledger) -> None:
    profile = replace(config.load().profiles["turbo_4b"], model="hf:unsloth/Qwen3.5-4B-MTP-GGUF:Q4_K_M")
    with pytest.raises(ModelNotPresent):
        planner(ledger).plan(profile)
    assert planner(ledger).plan(profile, present=False).bill is not None
    with pytest.raises(ModelNotPresent):
        planner(ledger).plan(replace(profile, model="hf:nobody/knows:Q4_K_M"), present=False)


def test_a_broken_file_is_no_plan(tmp_path: Path, ledger: Ledger) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(BadModel, match="cut short"):
        planner(ledger).plan(turbo(broken))


def test_running_out_of_memory_is_remembered_for_this_launch_on_this_gpu(four: Path, ledger: Ledger) -> None:
    profile = turbo(four, cache_type_k="f16", cache_type_v="f16")
    made = planner(ledger)
    first = made.plan(profile)
    assert made.lower(first, profile, "cudaMalloc failed: out of memory")
    second = made.plan(profile)
    assert (second.rung, second.profile.cache_type_k) == (1, "q8_0")
    assert "cudaMalloc failed" in second.notes[-1]
    assert planner(ledger).plan(profile).rung == 1, "also after a restart"
    other = replace(MACHINE, gpus=(Gpu(0, "NVIDIA GeForce RTX 4070", 12282, 12000),))
    assert planner(ledger, other).plan(profile).rung == 0, "another GPU begins anew"
    assert made.plan(replace(profile, context=16384)).rung == 0, "so does another wish"
    assert made.plan(replace(profile, max_queue=3)).rung == 1, "what the engine never sees does not"
    assert made.forget("turbo_4b")
    assert made.plan(profile).rung == 0


def test_the_ladder_has_a_foot(four: Path, ledger: Ledger) -> None:
    made, profile = planner(ledger, backend="cpu"), turbo(four)
    plan, steps = made.plan(profile), 0
    while made.lower(plan, profile, "again"):
        plan, steps = made.plan(profile), steps + 1
    assert steps == 3, "32768 to 16384, 8192, 4096; the cache is q8_0 already, and there is no GPU"


def test_what_a_process_took_beyond_its_plan_counts_for_the_next(four: Path, ledger: Ledger) -> None:
    made = planner(ledger)
    plan = made.plan(turbo(four))
    assert plan.bill is not None
    assert plan.bill.parts["CUDA0"]["device context"] == 320 * MIB
    planned = plan.bill.total("CUDA0") - 320 * MIB
    made.learn(plan, planned + 500 * MIB, 700 * MIB)
    assert {load.device: load.measured_bytes for load in made.last_loads("turbo_4b")} == {
        "NVIDIA GeForce RTX 3070": planned + 500 * MIB,
        HOST: 700 * MIB,
    }
    again = made.plan(turbo(four)).bill
    assert again is not None
    assert again.parts["CUDA0"]["device context"] == 500 * MIB


def test_a_need_is_for_the_machine_alone_within_the_budget(four: Path, ledger: Ledger) -> None:
    full = replace(MACHINE, gpus=(replace(MACHINE.gpus[0], free_mib=100),))
    made = planner(ledger, full)
    need = made.need(turbo(four), {"gpu0": 7400, HOST: 20_000})
    assert 4000 < need.vram_mib < 7400, "ours will have left by then"
    small = made.need(turbo(four), {"gpu0": 3000, HOST: 20_000})
    assert small.vram_mib <= 3000, "it is planned for what it may have"
    nothing = made.need(turbo(four), {HOST: 500})
    assert "MiB of RAM are missing" in nothing.why_not
    said = made.need(turbo(four, memory_mib=1234), {"gpu0": 7400, HOST: 20_000})
    assert said.vram_mib == 1234, "a person's word"
    forced = made.need(turbo(four, force=True), {"gpu0": 3000, HOST: 20_000})
    assert (forced.vram_mib, forced.why_not) == (3000, "")


def test_a_place_bounds_the_plan(four: Path, ledger: Ledger) -> None:
    plan = planner(ledger).plan(turbo(four), place=Place(0, 4000, 20_000))
    assert plan.bill is not None
    assert plan.bill.need.vram_mib <= 4000
    assert plan.notes


def test_an_engine_for_the_cpu_beside_a_gpu_says_so(four: Path, ledger: Ledger) -> None:
    notes = planner(ledger, backend="cpu").plan(turbo(four)).notes
    assert "built for the CPU" in notes[-1]
    bare = replace(MACHINE, gpus=())
    assert "no GPU found" in planner(ledger, bare).plan(turbo(four)).notes[-1]


def test_projector_and_draft_model_are_counted(four: Path, tmp_path: Path, ledger: Ledger) -> None:
    projector = tmp_path / "mmproj.gguf"
    projector.write_bytes(bytes(8 * MIB))
    draft = write(tmp_path / "draft.gguf", shapes.qwen35(n_layer=8, n_embd=512, n_ff=1024, head=64, state=64))
    flags = ("--mmproj", str(projector), "-md", str(draft))
    plain, full = planner(ledger).plan(turbo(four)), planner(ledger).plan(turbo(four, extra_args=flags))
    assert plain.bill is not None
    assert full.bill is not None
    parts = full.bill.parts["CUDA0"]
    assert parts["projector"] == 10 * MIB
    assert parts["draft weights"] > 0
    assert parts["draft KV cache"] > plain.bill.parts["CUDA0"]["draft KV cache"]


def test_the_projector_that_came_with_a_model_is_loaded_unless_the_profile_reads_only(
    four: Path, tmp_path: Path, ledger: Ledger
) -> None:
    home = tmp_path / "pair"
    home.mkdir()
    model = home / "model-Q4_K_M.gguf"
    model.symlink_to(four)
    (home / "mmproj-F32.gguf").write_bytes(bytes(16 * MIB))
    (home / "mmproj-F16.gguf").write_bytes(bytes(8 * MIB))
    blind = planner(ledger).plan(turbo(model))
    seeing = planner(ledger).plan(turbo(model, text_only=False))
    assert blind.projector is None
    assert "--no-mmproj" in server_argv(Path("s"), blind, Path("x"))
    assert seeing.projector == home / "mmproj-F16.gguf"
    argv = server_argv(Path("s"), seeing, Path("x"))
    assert argv[argv.index("--mmproj") + 1] == str(seeing.projector)
    assert seeing.bill is not None
    assert seeing.bill.parts["CUDA0"]["projector"] == 10 * MIB
    chosen = planner(ledger).plan(turbo(model, text_only=False, extra_args=("--mmproj", str(home / "mmproj-F32.gguf"))))
    assert chosen.projector is None, "the profile names its own"


def test_a_model_in_shards_is_planned_as_a_whole(tmp_path: Path, ledger: Ledger) -> None:
    small = shapes.llama(kind="F32")
    whole = write(tmp_path / "whole.gguf", small, seed=1)
    first, second = write_shards(tmp_path / "split.gguf", small, seed=1)
    bills = [planner(ledger).plan(turbo(path, speculation="none")).bill for path in (whole, first)]
    assert bills[0] is not None
    assert bills[1] is not None
    assert bills[0].parts == bills[1].parts
    with pytest.raises(BadModel, match="not called like the first"):
        planner(ledger).plan(turbo(second))
    second.unlink()
    with pytest.raises(BadModel, match="cannot read"):
        planner(ledger).plan(turbo(first))


def garra(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "garra", *words], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["turbo_4b", "balanced_9b"])
def test_a_3070_is_planned_on_any_machine(name: str) -> None:
    done = garra("plan", name, "--gpu", "RTX 3070", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {"fits", "devices", "margin_mib", "max_ctx", "argv", "source"} <= set(told)
    assert told["fits"]
    gpu = told["devices"]["CUDA0"]
    assert sum(gpu["parts_bytes"].values()) == gpu["total_bytes"]
    assert sum(told["devices"][HOST]["parts_bytes"].values()) == told["devices"][HOST]["total_bytes"]
    assert gpu["total_bytes"] / MIB <= gpu["room_mib"] <= 8192 * 0.95 - told["margin_mib"]["vram"]
    assert told["gpu_layers"] == 999, "all of them"
    assert told["max_ctx"]["q8_0"]["2"] >= told["context"]
    assert told["source"]["model"].startswith("from card")
    assert "-ngl 999" in " ".join(told["argv"])
    shown = garra("plan", name, "--gpu", "rtx 3070").stdout
    assert "largest context per slot" in shown
    assert "device context" in shown


def test_what_does_not_fit_says_so_and_exits_with_a_reason() -> None:
    done = garra("plan", "balanced_9b", "--vram", "8GiB", "--ctx", "200000", "--json")
    assert done.returncode == 0, "less context fits"
    assert json.loads(done.stdout)["notes"]
    forced = garra("plan", "balanced_9b", "--vram", "4GiB", "--force", "--json")
    assert forced.returncode == 0
    assert "forced" in json.loads(forced.stdout)["notes"][-1]


def test_unified_memory_and_unknown_gpus() -> None:
    told = json.loads(garra("plan", "turbo_4b", "--unified", "36GiB", "--json").stdout)
    assert "MTL0" in told["devices"]
    wrong = garra("plan", "turbo_4b", "--gpu", "RTX 307")
    assert wrong.returncode == 3
    assert "did you mean RTX 3070" in wrong.stderr
    assert garra("plan", "turbo_4b", "--gpu", "RTX 3070", "--vram", "8GiB").returncode == 3
    assert garra("plan", "turbo_4b", "--vram", "lots").returncode == 3
