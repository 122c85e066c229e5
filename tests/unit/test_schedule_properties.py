"""Whatever happens, in whatever order: hypothesis looks for a sequence of events that breaks one of the promises."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from garra.bill import HOST
from garra.spec import Cause, Phase
from garra.traffic import Outcome, Priority, Wish
from tests.fakes import profiles
from tests.world import World, changed

SOAK = os.environ.get("GARRA_TEST_SOAK") == "1"
LIMITS = settings(
    max_examples=3000 if SOAK else 150,
    stateful_step_count=80 if SOAK else 50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=not SOAK,
)
NAMES = ("a", "b", "c", "d")
name = st.sampled_from(NAMES)


class Days(RuleBasedStateMachine):
    """Models that take 40 to 100 of 100 MiB, clients of three classes, and every trouble there is."""

    def __init__(self) -> None:
        super().__init__()
        made = profiles(
            *NAMES, mode="high_throughput", slots=2, max_queue=6, max_wait_s=10, min_resident_s=1, swap_batch=4
        )
        made["a"] = changed(made["a"], memory_mib=40)
        made["b"] = changed(made["b"], memory_mib=60, idle_ttl_s=15.0)
        made["c"] = changed(made["c"], memory_mib=100, queue_timeout_s=50.0)
        self.profiles = made
        self.world = World(made, {HOST: 100})
        self.prompt = False

    @initialize(prompt=st.booleans())
    def engines_are_prompt_or_not(self, prompt: bool) -> None:
        """With prompt engines, a start and the return of memory take no time: more swaps in as many steps."""
        self.prompt = prompt

    @invariant()
    def go_on(self) -> None:
        for name in list(self.world.engines) if self.prompt else ():
            self.world.memory_back(name)
            self.world.ready(name)

    @rule(profile=st.sampled_from("cd"), count=st.integers(2, 5))
    def a_crowd_comes(self, profile: str, count: int) -> None:
        for _ in range(count):
            self.world.arrive(Wish(profile, "crowd"))

    @rule(
        profile=name,
        client=st.sampled_from("xyz"),
        share=st.sampled_from(("", "s")),
        priority=st.sampled_from(list(Priority)),
        suspect=st.booleans(),
    )
    def a_request_comes(self, profile: str, client: str, share: str, priority: Priority, suspect: bool) -> None:
        if profile in self.world.engines and not self.world.state.models[profile].removed:
            fingerprint = b"bad" if suspect else None
            self.world.arrive(Wish(profile, client, share, priority, 50.0, fingerprint))

    @precondition(lambda self: self.world.running)
    @rule(data=st.data(), outcome=st.sampled_from((Outcome.COMPLETE, Outcome.ERROR, Outcome.FAILED)))
    def an_answer_ends(self, data: st.DataObject, outcome: Outcome) -> None:
        self.world.finish(data.draw(st.sampled_from(self.world.running)), outcome)

    @precondition(lambda self: self.world.running or self.world.waiting)
    @rule(data=st.data())
    def a_client_leaves(self, data: st.DataObject) -> None:
        self.world.leave(data.draw(st.sampled_from(self.world.running + self.world.waiting)))

    @rule(profile=name)
    def an_engine_is_ready(self, profile: str) -> None:
        if profile in self.world.engines:
            self.world.ready(profile)

    @rule(profile=name, cause=st.sampled_from((Cause.CRASH, Cause.OOM, Cause.BAD_MODEL)))
    def an_engine_dies(self, profile: str, cause: Cause) -> None:
        if profile in self.world.engines:
            self.world.crash(profile, cause)

    @rule(profile=name)
    def slots_are_looked_at(self, profile: str) -> None:
        if profile in self.world.engines:
            self.world.look_at_slots(profile)

    @precondition(lambda self: self.world.returning)
    @rule(data=st.data())
    def memory_comes_back(self, data: st.DataObject) -> None:
        self.world.memory_back(data.draw(st.sampled_from(self.world.returning)))

    @rule(seconds=st.sampled_from((0.1, 1.0, 5.0, 21.0, 70.0)))
    def time_passes(self, seconds: float) -> None:
        self.world.advance(seconds)

    @rule(profile=name, pinned=st.booleans())
    def a_person_pins(self, profile: str, pinned: bool) -> None:
        if profile in self.world.engines:
            self.world.pin(profile, pinned)

    @rule(profile=name)
    def a_person_loads(self, profile: str) -> None:
        if profile in self.world.engines and not self.world.state.models[profile].removed:
            self.world.insist(profile)

    @rule(profile=name)
    def a_person_unloads(self, profile: str) -> None:
        if profile in self.world.engines:
            self.world.dismiss(profile)

    @rule(on=st.booleans())
    def somebody_wants_the_machine_alone(self, on: bool) -> None:
        self.world.reserve(on)

    @rule(profile=name, stubborn=st.booleans())
    def an_engine_turns_stubborn(self, profile: str, stubborn: bool) -> None:
        if profile in self.world.engines:
            self.world.engines[profile].answers_term = not stubborn

    @rule(profile=name, slots=st.sampled_from((1, 2, 3)))
    def a_profile_changes(self, profile: str, slots: int) -> None:
        engine = self.world.engines.get(profile)
        up = engine is not None and engine.machine.phase is Phase.READY
        if profile in self.profiles and (engine is None or not up or slots == engine.profile.slots):
            self.profiles[profile] = changed(self.profiles[profile], slots=slots)
            self.world.configure(self.profiles, {HOST: 100})

    def teardown(self) -> None:
        self.world.reserve(False)
        self.world.run_down()


def test_no_order_of_events_breaks_a_promise() -> None:
    run_state_machine_as_test(Days, settings=LIMITS)
