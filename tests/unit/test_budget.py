"""Models on GPUs, by bytes: nothing is committed beyond what there is, nobody starves, room is made where it can be."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from garra import config
from garra.bill import HOST, Claim, Need
from garra.parts import shipped_card
from garra.planner import room as rooms
from garra.planner.plan import plan_launch
from garra.planner.room import Margins
from garra.spec import Phase
from garra.supervisor import happenings as do
from garra.traffic import Outcome, Wish
from tests.fakes import profiles
from tests.unit.test_plan import host, rtx_3070
from tests.world import World
from tests.worlds import loaded, phases, swap

BUDGET: Claim = {"gpu0": 8192 - 300 - 384, HOST: 20_000}
ROUNDS = 400 if os.environ.get("GARRA_TEST_SOAK") == "1" else 40


def needs_on_a_3070() -> dict[str, Need]:
    """Five profiles as they are planned for a card of 8 GB."""
    machine = host(rtx_3070(8192 - 300))
    room = rooms.of_host(machine, "cuda", Margins())
    shipped = config.load().profiles
    made: dict[str, Need] = {}
    for name, base, changes in (
        ("four", "turbo_4b", {}),
        ("nine", "balanced_9b", {}),
        ("two", "cpu_fallback", {"gpu_layers": None}),
        ("tiny", "demo", {"gpu_layers": None}),
        ("onhost", "demo", {}),
    ):
        profile, card = replace(shipped[base], **changes), shipped_card(shipped[base].model)  # type: ignore[arg-type]
        assert card is not None
        bill = plan_launch(profile, card, machine, room, Path("m.gguf")).bill
        assert bill is not None
        made[name] = bill.need
    return made


def world_with(needs: dict[str, Need], budget: Claim, **changes: object) -> World:
    changes = {"slots": 2, "mode": "high_throughput", "max_wait_s": 10, "min_resident_s": 1, "swap_batch": 4} | changes
    w = World({}, budget)
    w.needs = dict(needs)
    w.configure(profiles(*needs, **changes), budget)
    return w


def step(w: World, draw: random.Random, served: dict[str, int]) -> None:
    """One thing that may happen."""
    name = draw.choice(list(w.engines))
    match draw.randrange(9):
        case 0 | 1 | 2:
            w.arrive(Wish(name, draw.choice("xyz")))
        case 3 if w.running:
            ticket = draw.choice(w.running)
            served[ticket.wish.profile] += 1
            w.finish(ticket, Outcome.COMPLETE)
        case 4 if not w.state.models[name].wishes:
            w.insist(name)
        case 5:
            w.dismiss(name)
        case 6:
            w.ready(name)
        case 7 if w.returning:
            w.memory_back(draw.choice(w.returning))
        case _:
            w.advance(draw.choice((0.1, 1.0, 5.0, 20.0)))


def test_300_random_steps_over_five_profiles_stay_within_8_gb(capsys: pytest.CaptureFixture[str]) -> None:
    needs, peak, served = needs_on_a_3070(), 0, dict.fromkeys(needs_on_a_3070(), 0)
    for seed in range(ROUNDS):
        draw, w = random.Random(seed), world_with(needs, BUDGET, queue_timeout_s=100_000)
        for _ in range(300):
            step(w, draw, served)  # the world checks the budget after every event
        waited = [ticket.wish.profile for ticket in w.waiting]
        w.run_down()
        for profile in waited:
            served[profile] += 1
        peak = max(peak, w.peak["gpu0"])
    assert all(served.values()), served
    with capsys.disabled():
        print(f"\n{ROUNDS} x 300 steps: peak {peak} of {BUDGET['gpu0']} MiB of VRAM; answered {served}")
    assert needs["nine"].vram_mib < peak <= BUDGET["gpu0"]


def test_models_go_to_the_gpu_that_has_room() -> None:
    need = Need(vram_mib=5000, ram_mib=100)
    w = loaded(world_with({"a": need, "b": need, "c": need}, {"gpu0": 7000, "gpu1": 7000, HOST: 10_000}), "a", "b")
    assert phases(w)["a"] is phases(w)["b"] is Phase.READY, "one on each"
    assert {next(iter(set(engine.held) - {HOST})) for engine in w.engines.values() if engine.held} == {"gpu0", "gpu1"}
    w.advance(5)
    w.arrive(Wish("c"))
    assert sorted(phases(w).values()).count(Phase.READY) == 1, "one of them makes room"


def test_room_is_made_on_the_gpu_where_somebody_may_leave() -> None:
    need = Need(vram_mib=5000, ram_mib=100)
    w = loaded(world_with({"a": need, "b": need, "c": need}, {"gpu0": 7000, "gpu1": 7000, HOST: 10_000}), "a", "b")
    w.pin("a", True)
    w.advance(5)
    w.arrive(Wish("c"))
    swap(w, "b", "c")
    assert phases(w)["a"] is Phase.READY


def test_ram_can_be_what_is_short() -> None:
    w = loaded(world_with({"a": Need(1000, 6000), "b": Need(1000, 6000)}, {"gpu0": 7000, HOST: 10_000}), "a")
    w.advance(5)
    w.arrive(Wish("b"))
    swap(w, "a", "b")


def test_a_model_that_only_uses_the_host_disturbs_no_gpu() -> None:
    w = loaded(world_with({"a": Need(6000, 500), "b": Need(0, 2000)}, {"gpu0": 7000, HOST: 10_000}), "a", "b")
    assert phases(w) == {"a": Phase.READY, "b": Phase.READY}


def test_what_no_plan_fits_is_refused_with_the_planners_words() -> None:
    w = world_with({"a": Need(why_not="cannot load a: 3 MiB are missing", fix="take less")}, BUDGET)
    w.arrive(Wish("a"))
    assert w.refused[0][1] == "does_not_fit"


def test_others_that_take_memory_shrink_the_budget() -> None:
    w = loaded(world_with({"a": Need(4000, 100), "b": Need(3000, 100)}, {"gpu0": 7000, HOST: 10_000}), "a")
    w.advance(5)
    w.post(do.Budgeted({"gpu0": 5000, HOST: 10_000}, w.now))
    w.arrive(Wish("b"))
    swap(w, "a", "b")


def test_an_engine_that_was_planned_smaller_leaves_room() -> None:
    w = loaded(world_with({"a": Need(4000, 100), "b": Need(4000, 100)}, {"gpu0": 7000, HOST: 10_000}), "a")
    w.post(do.Planned("a", {"gpu0": 2500, HOST: 100}, w.now))
    w.engines["a"].held = w.state.models["a"].held
    w.arrive(Wish("b"))
    assert phases(w)["b"] is Phase.LOADING
    assert w.state.models["b"].place.vram_mib == 4500, "all that is left is its to take"


def test_another_engine_build_restarts_what_is_loaded_after_its_answers() -> None:
    w = loaded(world_with({"a": Need(4000, 100), "b": Need(1000, 100)}, BUDGET), "a")
    running = w.arrive(Wish("a"))
    w.post(do.Renewed(w.now))
    assert running in w.running
    w.finish(running)
    assert phases(w)["a"] is Phase.COLD
    w.memory_back("a")
    assert phases(w)["a"] is Phase.LOADING
    assert phases(w)["b"] is Phase.COLD
