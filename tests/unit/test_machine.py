"""The life of one engine: the whole table, and the stories it must tell."""

from __future__ import annotations

import random
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from garra.spec import HOPELESS, ORDERLY, Cause, EngineExit, Phase
from garra.supervisor.machine import (
    MAX_ATTEMPTS,
    Arm,
    Broken,
    Disconnect,
    Drained,
    Effect,
    Elapsed,
    Event,
    Exited,
    Healthy,
    IllegalEvent,
    Keep,
    Machine,
    Probe,
    Progressed,
    Rejected,
    Served,
    Signal,
    Spawn,
    Timer,
    Unwanted,
    Verified,
    Verify,
    Wanted,
    backoff_s,
    step,
)

PAGE = Path(__file__).parents[2] / "docs" / "phases.md"


def gone(cause: Cause = Cause.CRASH, code: int | None = None, signum: int | None = 9) -> Exited:
    return Exited(EngineExit(code=code, signal=signum, cause=cause, detail="last words"))


SAMPLES: dict[str, Event] = {
    "Wanted": Wanted(),
    "Wanted(insist)": Wanted(insist=True),
    "Unwanted(evicted)": Unwanted(Cause.EVICTED),
    "Healthy": Healthy(),
    "Progressed": Progressed(),
    "Verified": Verified(),
    "Rejected": Rejected("2 slots instead of 4"),
    "Broken(stalled)": Broken(Cause.STALLED, "stuck"),
    "Drained": Drained(),
    "Served": Served(),
    "Exited(crash)": gone(),
    "Exited(oom)": gone(Cause.OOM, 1, None),
    "Exited(bad_model)": gone(Cause.BAD_MODEL, 1, None),
    **{f"Elapsed({timer})": Elapsed(timer, 7) for timer in Timer},
    "Elapsed(stale)": Elapsed(Timer.LOAD, 3),
}


def starts() -> dict[str, Machine]:
    """One machine for every phase, and for every way of stopping."""
    base = Machine(epoch=7)
    stopping = replace(base, phase=Phase.STOPPING)
    return {
        "cold": base,
        "loading": replace(base, phase=Phase.LOADING),
        "loading (4 failures)": replace(base, phase=Phase.LOADING, attempts=MAX_ATTEMPTS - 1),
        "ready": replace(base, phase=Phase.READY),
        "draining": replace(base, phase=Phase.DRAINING, cause=Cause.EVICTED),
        "stopping (evicted)": replace(stopping, cause=Cause.EVICTED),
        "stopping (stalled)": replace(stopping, cause=Cause.STALLED),
        "stopping (load_timeout)": replace(stopping, cause=Cause.LOAD_TIMEOUT),
        "backoff": replace(base, phase=Phase.BACKOFF, attempts=1, cause=Cause.CRASH),
        "failed": replace(base, phase=Phase.FAILED, cause=Cause.BAD_MODEL),
    }


def tell(effect: Effect) -> str:
    match effect:
        case Arm(timer, delay_s):
            return f"Arm({timer}, {delay_s:g} s)"
        case Signal(signum):
            return f"Signal({signum.name})"
        case _:
            return type(effect).__name__


def table() -> str:
    """docs/phases.md, from the machine itself."""
    lines = [
        "# Phases of one engine",
        "",
        "Generated from `garra/supervisor/machine.py` by `tests/unit/test_machine.py`; do not edit. Every phase meets",
        "every kind of event. A pair that is missing changes nothing (a timer or a probe that lost its race); *bug*",
        "marks a pair that cannot happen. To write this page anew: `GARRA_TEST_WRITE=1 make unit`.",
        "",
        "| phase | event | next | effects, in order |",
        "|---|---|---|---|",
    ]
    for phase, machine in starts().items():
        for name, event in SAMPLES.items():
            try:
                after, effects = step(machine, event)
            except IllegalEvent:
                lines.append(f"| {phase} | {name} | *bug* | |")
                continue
            if after == machine and not effects:
                continue
            next_phase = f"{after.phase}" + (f" ({after.cause})" if after.cause else "")
            lines.append(f"| {phase} | {name} | {next_phase} | {', '.join(map(tell, effects))} |")
    return "\n".join(lines) + "\n"


def test_every_phase_meets_every_event_as_the_page_says(request: pytest.FixtureRequest) -> None:
    import os

    if os.environ.get("GARRA_TEST_WRITE") == "1":
        PAGE.write_text(table())
    assert PAGE.read_text() == table()


def test_a_start_spawns_before_it_probes() -> None:
    m, effects = step(Machine(), Wanted())
    assert m.phase is Phase.LOADING
    assert effects == (Spawn(), Probe(), Arm(Timer.LOAD, m.limits.load_s, m.epoch))


def test_a_stop_closes_connections_before_it_signals() -> None:
    m, _ = step(Machine(phase=Phase.READY), Unwanted(Cause.IDLE))
    assert m.phase is Phase.DRAINING
    m, effects = step(m, Drained())
    assert effects[:3] == (Keep(), Disconnect(), Signal(signal.SIGTERM)), "what it holds is saved while it still hears"
    m, effects = step(m, Elapsed(Timer.GRACE, m.epoch))
    assert effects == (Signal(signal.SIGKILL),)
    m, effects = step(m, gone())
    assert (m.phase, m.cause, effects) == (Phase.COLD, Cause.IDLE, ())


def test_a_crash_comes_back_until_the_breaker_opens() -> None:
    m = Machine(phase=Phase.READY)
    for attempt in range(1, MAX_ATTEMPTS):
        m, effects = step(m, gone())
        assert m.phase is Phase.BACKOFF
        assert effects[-1] == Arm(Timer.BACKOFF, backoff_s(attempt), m.epoch)
        m, _ = step(m, Elapsed(Timer.BACKOFF, m.epoch))
        m, _ = step(m, Healthy())
        m, _ = step(m, Verified())
        assert m.phase is Phase.READY
    m, _ = step(m, gone())
    assert (m.phase, m.cause) == (Phase.FAILED, Cause.CRASH)
    m, _ = step(m, Wanted())
    assert m.phase is Phase.FAILED
    m, _ = step(m, Elapsed(Timer.COOLDOWN, m.epoch))
    assert m.phase is Phase.COLD
    m, _ = step(m, Wanted())
    m, _ = step(m, gone())
    assert m.phase is Phase.FAILED, "after the cooldown one failure opens it again"


def test_a_whole_answer_fills_the_restart_budget() -> None:
    m, _ = step(Machine(phase=Phase.READY, attempts=MAX_ATTEMPTS - 1), Served())
    m, _ = step(m, gone())
    assert (m.phase, m.attempts) == (Phase.BACKOFF, 1)


@pytest.mark.parametrize("cause", sorted(HOPELESS))
def test_what_cannot_get_better_is_not_tried_again(cause: Cause) -> None:
    m, effects = step(Machine(phase=Phase.LOADING), gone(cause, 1, None))
    assert (m.phase, m.cause) == (Phase.FAILED, cause)
    assert not [effect for effect in effects if isinstance(effect, Arm)]
    m, effects = step(m, Wanted(insist=True))
    assert m.phase is Phase.LOADING, "a person may insist"


def test_progress_moves_the_deadline() -> None:
    m, _ = step(Machine(), Wanted())
    first = Elapsed(Timer.LOAD, m.epoch)
    m, effects = step(m, Progressed())
    assert effects == (Arm(Timer.LOAD, m.limits.load_s, m.epoch),)
    assert step(m, first) == (m, ())
    m, effects = step(m, Elapsed(Timer.LOAD, m.epoch))
    assert (m.phase, m.cause) == (Phase.STOPPING, Cause.LOAD_TIMEOUT)
    assert effects[:2] == (Disconnect(), Signal(signal.SIGTERM))


def test_an_engine_that_hears_nothing_is_killed_at_once_and_comes_back() -> None:
    m, effects = step(Machine(phase=Phase.READY), Broken(Cause.STALLED, "no token for 30 s"))
    assert effects == (Disconnect(), Signal(signal.SIGKILL))
    m, _ = step(m, gone())
    assert (m.phase, m.cause, m.detail) == (Phase.BACKOFF, Cause.STALLED, "no token for 30 s")


def test_an_impossible_event_is_told_with_the_story() -> None:
    m, _ = step(Machine(phase=Phase.READY), Unwanted())
    m, _ = step(m, Drained())
    m, _ = step(m, gone())
    with pytest.raises(IllegalEvent, match="stopping -> cold"):
        step(m, gone())


def test_random_lives_keep_their_promises(soak: bool) -> None:
    """One live process at most, a way out of every phase, no effect for an engine that is not there."""
    rng = random.Random(20261129)
    for _ in range(20_000 if soak else 2_000):
        m, alive, armed = Machine(), False, set[tuple[Timer, int]]()
        for _ in range(40):
            choices: list[Event] = [Wanted(), Wanted(insist=True), Unwanted(rng.choice(sorted(ORDERLY))), Served()]
            choices += [Elapsed(timer, epoch) for timer, epoch in sorted(armed)]
            if alive:
                causes = [Cause.CRASH, Cause.OOM, *sorted(HOPELESS)]
                choices += [Healthy(), Verified(), Progressed(), Rejected("x"), gone(rng.choice(causes))]
            if m.phase is Phase.DRAINING:
                choices.append(Drained())
            event = rng.choice(choices)
            if isinstance(event, Exited):
                alive = False
            m, effects = step(m, event)
            for effect in effects:
                match effect:
                    case Spawn():
                        assert not alive, m.story
                        alive = True
                    case Signal():
                        assert alive, m.story
                    case Verify():
                        assert m.phase is Phase.LOADING
                    case Arm(timer, delay_s, epoch):
                        assert epoch == m.epoch, "armed for another life"
                        assert delay_s > 0
                        armed.add((timer, epoch))
                    case _:
                        pass
            assert alive == (m.phase in (Phase.LOADING, Phase.READY, Phase.DRAINING, Phase.STOPPING)), m.story
            assert 0 <= m.attempts <= MAX_ATTEMPTS
