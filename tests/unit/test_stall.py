"""Stuck or only slow: what counts as evidence."""

from __future__ import annotations

import pytest

from garra.snapshot import SlotState
from garra.supervisor.stall import BATCHES, StallWatch

STALL_S = 10.0
IDLE = SlotState(busy=False, task=-1, n_prompt_tokens=0, n_decoded=0)


def slot(n_prompt_tokens: int = 0, n_decoded: int = 0, task: int = 7) -> SlotState:
    return SlotState(busy=True, task=task, n_prompt_tokens=n_prompt_tokens, n_decoded=n_decoded)


def quiet_for(watch: StallWatch, seconds: float, activity: int = 5) -> bool:
    """Whether `/slots` is asked after a silence that began at 0."""
    watch.should_ask(0.0, activity, STALL_S)
    return watch.should_ask(seconds, activity, STALL_S)


def test_nothing_is_asked_while_bytes_come_and_not_before_the_time() -> None:
    watch = StallWatch(0.0, 512, 0.001)
    assert not quiet_for(watch, 9.9)
    assert quiet_for(watch, 10.1)
    assert not watch.should_ask(10.2, 6, STALL_S), "something came"
    assert not watch.should_ask(20.1, 6, STALL_S)
    assert watch.should_ask(20.3, 6, STALL_S)


def test_it_is_asked_every_five_seconds_at_most() -> None:
    watch = StallWatch(0.0, 512, 0.001)
    assert quiet_for(watch, 11)
    watch.stuck(11, (slot(),), STALL_S)
    assert not watch.should_ask(15.9, 5, STALL_S)
    assert watch.should_ask(16.1, 5, STALL_S)


def test_busy_slots_that_do_not_move_are_stuck_and_those_that_do_are_not() -> None:
    watch = StallWatch(0.0, 512, 0.001)
    assert quiet_for(watch, 11)
    assert not watch.stuck(11, (slot(512),), STALL_S), "one look proves nothing"
    assert not watch.stuck(16, (slot(1024),), STALL_S)
    assert not watch.stuck(17, (slot(1024),), STALL_S)
    assert watch.stuck(22, (slot(1024),), STALL_S)


def test_an_engine_that_does_not_answer_twice_is_stuck() -> None:
    watch = StallWatch(0.0, 512, 0.001)
    assert quiet_for(watch, 11)
    assert not watch.stuck(11, None, STALL_S)
    assert watch.stuck(16, None, STALL_S)


def test_idle_slots_are_no_evidence() -> None:
    watch = StallWatch(0.0, 512, 0.001)
    assert quiet_for(watch, 11)
    assert not any(watch.stuck(at, (IDLE, IDLE), STALL_S) for at in (11, 16, 21, 60))


def test_a_byte_in_between_begins_anew() -> None:
    watch = StallWatch(0.0, 512, 0.001)
    assert quiet_for(watch, 11)
    watch.stuck(11, (slot(),), STALL_S)
    watch.should_ask(12, 6, STALL_S)
    assert watch.should_ask(23, 6, STALL_S)
    assert not watch.stuck(23, (slot(),), STALL_S)


def test_several_batches_are_waited_for_however_short_the_limit() -> None:
    watch = StallWatch(0.0, 2048, 0.005)
    assert watch.patience_s(1.0) == pytest.approx(BATCHES * 2048 * 0.005)
    watch.learn(2048, 2048 * 1.0)
    assert watch.patience_s(1.0) < BATCHES * 2048 * 0.005, "the warm-up told too much, a real prefill tells more"
    watch.learn(2048, 2048 * 8.0)
    assert watch.patience_s(1.0) == pytest.approx(BATCHES * 2048 * 0.008), "a slower one counts at once"
    before = watch.patience_s(1.0)
    watch.learn(3, 3 * 500.0)
    assert watch.patience_s(1.0) == before, "too short a prompt to tell anything"
    assert watch.patience_s(100.0) == 100.0


def test_slots_in_prefill_may_rest_for_several_batches() -> None:
    watch = StallWatch(0.0, 2048, 0.005)  # a batch takes ten seconds
    assert watch.should_ask(0.0, 1, 1.0) is False
    assert watch.should_ask(2, 1, 1.0)
    assert not watch.stuck(2, (slot(0), slot(100, 5)), 1.0)
    assert not watch.stuck(50, (slot(0), slot(100, 5)), 1.0)
    assert watch.stuck(54, (slot(0), slot(100, 5)), 1.0)


@pytest.mark.parametrize("slots", [(slot(100, 5), IDLE), None])
def test_a_slow_prefill_of_the_past_excuses_neither_decoding_slots_nor_silence(
    slots: tuple[SlotState, ...] | None,
) -> None:
    """The one-token warm-up of a machine that was busy once looked like batches of a minute."""
    watch = StallWatch(0.0, 2048, 0.5)
    assert quiet_for(watch, 11)
    assert not watch.stuck(11, slots, STALL_S)
    assert watch.stuck(16, slots, STALL_S)
