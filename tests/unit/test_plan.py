"""From a profile to a launch: what is given up, in which order, and what is said when nothing helps."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from garra import config
from garra.bill import HOST, Bill, Place
from garra.engine import accounting
from garra.errors import DoesNotFit
from garra.host import Gpu, HostSpec
from garra.parts import shipped_card
from garra.planner import room as rooms
from garra.planner.plan import knobs_of, ladder, largest_context, plan_launch, shortfall
from garra.planner.room import Margins, Room
from garra.registry.card import Layer, ModelCard
from garra.spec import MIB, LaunchPlan, Profile
from tests.fakes import profiles

MODEL = Path("/models/m.gguf")


def host(*gpus: Gpu, ram_mib: int = 24576) -> HostSpec:
    return HostSpec(cores=8, ram_total_mib=32768, ram_free_mib=ram_mib, gpus=gpus)


def rtx_3070(free_mib: int = 7400, index: int = 0) -> Gpu:
    return Gpu(index, "NVIDIA GeForce RTX 3070", 8192, free_mib, others_mib=8192 - free_mib)


def shipped(name: str) -> tuple[Profile, ModelCard]:
    profile = config.load().profiles[name]
    card = shipped_card(profile.model)
    assert card is not None
    return profile, card


def planned(name: str, machine: HostSpec, **options: object) -> LaunchPlan:
    profile, card = shipped(name)
    room = rooms.of_host(machine, "cuda", Margins())
    return plan_launch(profile, card, machine, room, MODEL, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["turbo_4b", "balanced_9b"])
def test_the_shipped_gpu_profiles_fit_a_3070_as_they_ask(name: str) -> None:
    plan = planned(name, host(rtx_3070()))
    assert (plan.rung, plan.notes, plan.gpu) == (0, (), 0)
    assert plan.bill is not None
    assert plan.bill.need.vram_mib + Margins().vram_mib <= 7400


def test_a_fuller_gpu_costs_context_first_and_layers_last() -> None:
    """The cache of the shipped profile is q8_0 already."""
    half = planned("balanced_9b", host(rtx_3070(6600)))
    assert (half.profile.context, half.gpu_layers) == (8192, 999)
    assert half.notes == ("balanced_9b: context 8192 per slot instead of 16384, to fit into memory",)
    spilled = planned("balanced_9b", host(rtx_3070(5000)))
    assert 0 < spilled.gpu_layers < 34
    assert "cost about 10x" in spilled.notes[-1]
    assert spilled.profile.context == 4096


def test_a_large_cache_is_quantised_before_the_context_is_cut() -> None:
    profile, card = shipped("turbo_4b")
    wide = replace(profile, cache_type_k="f16", cache_type_v="f16", context=65536)
    machine = host(rtx_3070())
    plan = plan_launch(wide, card, machine, rooms.of_host(machine, "cuda", Margins()), MODEL)
    assert (plan.profile.cache_type_k, plan.profile.cache_type_v, plan.profile.context) == ("q8_0", "q8_0", 65536)
    assert plan.rung == 1


def test_what_can_never_fit_is_refused_with_numbers_and_what_would() -> None:
    profile, card = shipped("balanced_9b")
    machine = HostSpec(cores=4, ram_total_mib=6000, ram_free_mib=5000)
    with pytest.raises(DoesNotFit) as caught:
        plan_launch(profile, card, machine, rooms.of_host(machine, "cpu", Margins()), MODEL)
    assert "MiB of RAM are missing" in caught.value.what
    assert "even with context 4096 per slot instead of 16384; prompt cache of 0 MiB" in caught.value.what
    assert "smaller model" in str(caught.value.fix)


def test_the_nearest_plan_is_named_where_there_is_one() -> None:
    profile, card = shipped("cpu_fallback")
    large = HostSpec(cores=4, ram_total_mib=64000, ram_free_mib=64000)
    last = len(list(ladder(profile, card, rooms.of_host(large, "cpu", Margins())))) - 1
    least = plan_launch(profile, card, large, rooms.of_host(large, "cpu", Margins()), MODEL, skip=last).bill
    assert least is not None
    tight = replace(large, ram_free_mib=least.total(HOST) // MIB + Margins().ram_mib - 40)
    with pytest.raises(DoesNotFit) as caught:
        plan_launch(profile, card, tight, rooms.of_host(tight, "cpu", Margins()), MODEL)
    fix = str(caught.value.fix)
    assert fix.startswith("this would fit: --set slots=")
    told = dict(word.split("=") for word in fix.split() if "=" in word)
    kv_type: Any = told["cache_type_k"]
    smaller = replace(profile, context=int(told["context"]), slots=int(told["slots"]))
    smaller = replace(smaller, cache_type_k=kv_type, cache_type_v=kv_type)
    assert plan_launch(smaller, card, tight, rooms.of_host(tight, "cpu", Margins()), MODEL).rung == 0


def test_force_keeps_the_wish_and_warns() -> None:
    plan = planned("balanced_9b", host(rtx_3070(3000)), force=True)
    assert plan.profile.context == 16384
    assert "forced" in plan.notes[-1]


def test_a_launch_that_ran_out_of_memory_begins_lower() -> None:
    rung = planned("turbo_4b", host(rtx_3070()), skip=2)
    assert (rung.rung, rung.profile.context) == (2, 8192)


def test_experts_go_to_the_host_before_layers_do() -> None:
    layer = Layer("attention", 1024, 1024, weight_bytes=400 * MIB, expert_bytes=360 * MIB)
    card = ModelCard("moe", "qwen3moe", 32000, 32768, 2048, 16, 2048, 0, 0, (layer,) * 24, 60 * MIB, 60 * MIB,
                     n_expert_used=4, expert_width=768)  # fmt: skip
    profile = replace(profiles("a")["a"], gpu_layers=None, context=4096, text_only=True)
    machine = host(rtx_3070())
    room = rooms.of_host(machine, "cuda", Margins())
    plan = plan_launch(profile, card, machine, room, MODEL)
    assert plan.gpu_layers == 999
    assert plan.experts_on_host == 12, "a quarter was not enough"
    steps = [rung.steps[-1] if rung.steps else "" for rung in ladder(profile, card, room)]
    assert next(n for n, step in enumerate(steps) if "experts" in step) < next(
        n for n, step in enumerate(steps) if "layers on the GPU" in step
    )


def test_the_engines_word_counts_more_than_the_formula() -> None:
    told: list[LaunchPlan] = []

    def account(plan: LaunchPlan) -> Bill:
        told.append(plan)
        parts = {"CUDA0": {"weights": (7000 if plan.profile.context > 20000 else 5000) * MIB}, HOST: {"weights": MIB}}
        return Bill(parts, source="engine")

    plan = planned("turbo_4b", host(rtx_3070(7300)), account=account)
    assert plan.profile.context == 16384
    assert len(told) == 2
    assert plan.bill is not None
    assert plan.bill.source == "engine"


def test_the_accounting_is_read_and_completed() -> None:
    text = "memory target CUDA0 100 40 7\nmemory target CUDA_Host 0 0 3\nmemory target CPU 50 0 0\nnoise\n"
    told = accounting.parse(text + "memory draft CUDA0 0 8 2\nmemory draft CPU_REPACK 5 0 0\n")
    assert told is not None
    assert told.parts == {
        "CUDA0": {"weights": 100, "KV cache": 40, "compute buffer": 7, "draft KV cache": 8, "draft compute buffer": 2},
        HOST: {"compute buffer": 3, "weights": 50, "draft weights": 5},
    }
    formula = Bill(
        {"CUDA0": {"recurrent state": 15, "device context": 9}, HOST: {"output buffer": 4}}, {"prompt cache": 1}
    )
    whole = accounting.complete(told, formula)
    assert (whole.parts["CUDA0"]["KV cache"], whole.parts["CUDA0"]["recurrent state"]) == (25, 15)
    assert (whole.parts["CUDA0"]["device context"], whole.parts[HOST]["output buffer"]) == (9, 4)
    assert whole.growth == 1
    assert accounting.parse("error: invalid argument: -kvu\n") is None


def test_the_scheduler_bounds_the_room() -> None:
    room = rooms.of_host(host(rtx_3070()), "cuda", Margins(vram_mib=500))
    assert room.vram_mib == 6900
    bounded = rooms.within(room, Place(0, 4000, 2000))
    assert (bounded.vram_mib, bounded.ram_mib) == (4000, 2000)
    whole = rooms.of_host(host(replace(rtx_3070(1000), others_mib=300)), "cuda", Margins(vram_mib=500), whole=True)
    assert whole.vram_mib == 8192 - 300 - 500, "what our own engines hold does not count"


def test_unified_memory_is_one_memory() -> None:
    machine = rooms.unified(36 * 1024, host())
    room = rooms.of_host(machine, "metal", Margins())
    assert room.vram_mib == 24 * 1024 - 384
    bill = Bill({"MTL0": {"weights": 20000 * MIB}, HOST: {"weights": 17000 * MIB}})
    assert shortfall(bill, room) == {HOST: 37000 - (36 * 1024 - 1024)}


def test_the_largest_context_grows_as_the_cache_shrinks() -> None:
    profile, card = shipped("balanced_9b")
    room = rooms.of_host(host(rtx_3070()), "cuda", Margins())
    sizes = {kv: largest_context(profile, card, room, 2, kv) for kv in ("f16", "q8_0", "q4_0")}
    assert 0 < sizes["f16"] < sizes["q8_0"] < sizes["q4_0"] <= card.n_ctx
    biggest = replace(profile, context=sizes["q8_0"])
    plan = plan_launch(biggest, card, host(rtx_3070()), room, MODEL)
    assert plan.rung == 0
    too_big = replace(profile, context=sizes["q8_0"] + 256)
    assert plan_launch(too_big, card, host(rtx_3070()), room, MODEL).rung == 1
    assert largest_context(profile, card, Room(None, None, 0, 100), 1, "f16") == 0


def test_knobs_follow_the_profile() -> None:
    plan = planned("turbo_4b", host(rtx_3070()))
    knobs = knobs_of(plan)
    assert (knobs.context, knobs.slots, knobs.draft_depth, knobs.flash) == (32768, 2, 2, True)
    assert knobs.checkpoints == plan.checkpoints < 32, "snapshots fit into a quarter of the RAM that is left"


def test_shipped_facts_name_their_source() -> None:
    for file in (Path(config.__file__).parent / "data" / "cards").glob("*.json"):
        facts = json.loads(file.read_text())
        assert facts["source"]
        assert facts["date"]
