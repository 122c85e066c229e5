"""The life of one engine as a pure function: `step(machine, event) -> (machine, effects)`.

Nothing here awaits, logs, or reads a clock. Events say what happened, effects say what to do; the runner performs them
in order and posts what comes of them as events. Every transition starts a new epoch, so a timer that lost its race is
recognised and ignored. The whole table is docs/phases.md, generated from this file.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass, replace

from garra.spec import HOPELESS, ORDERLY, Cause, EngineExit, Phase

MAX_ATTEMPTS = 5
"""Starts without one completed answer in between before the breaker opens."""
COOLDOWN_S = 60.0
"""How long an open breaker refuses before one more request may try."""
_BACKOFF_FIRST_S = 0.5
_BACKOFF_LONGEST_S = 30.0
_STORY_LENGTH = 20


class Timer(enum.StrEnum):
    """What the runner can be asked to wait for."""

    LOAD = enum.auto()
    DRAIN = enum.auto()
    GRACE = enum.auto()
    BACKOFF = enum.auto()
    COOLDOWN = enum.auto()


# ---- events


@dataclass(frozen=True, slots=True)
class Wanted:
    """Somebody needs the engine. `insist`: a person asked, so an open breaker and a backoff are skipped."""

    insist: bool = False


@dataclass(frozen=True, slots=True)
class Unwanted:
    """It shall go: requested, evicted or idle."""

    cause: Cause = Cause.REQUESTED


@dataclass(frozen=True, slots=True)
class Healthy:
    """`/health` turned 200."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """Loading gets on: the deadline moves."""


@dataclass(frozen=True, slots=True)
class Verified:
    """`/props` agrees with the plan and the warm-up gave a token."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """It is up but not what was planned."""

    detail: str


@dataclass(frozen=True, slots=True)
class Broken:
    """It runs, but gives no tokens any more."""

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The last lease ended."""


@dataclass(frozen=True, slots=True)
class Served:
    """A whole answer was given: the restart budget is full again."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The process is gone. `lighter`: memory ran out, and the next start asks for less."""

    exit: EngineExit
    lighter: bool = False


@dataclass(frozen=True, slots=True)
class Elapsed:
    """A timer ran out."""

    timer: Timer
    epoch: int


Event = Wanted | Unwanted | Healthy | Progressed | Verified | Rejected | Broken | Drained | Served | Exited | Elapsed


# ---- effects


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start the process and wait for its end beside."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask `/health` until it is 200, and watch for progress."""


@dataclass(frozen=True, slots=True)
class Verify:
    """Compare `/props` with the plan, then let it produce a token."""


@dataclass(frozen=True, slots=True)
class Keep:
    """Save what its slots hold, as far as that is worth it and there is time."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close every connection to the engine: while one is open it ignores SIGTERM."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Send a signal to its process group."""

    signum: signal.Signals


@dataclass(frozen=True, slots=True)
class Arm:
    """Post `Elapsed(timer, epoch)` after `delay_s`."""

    timer: Timer
    delay_s: float
    epoch: int


Effect = Spawn | Probe | Verify | Keep | Disconnect | Signal | Arm
Step = tuple["Machine", tuple[Effect, ...]]


@dataclass(frozen=True, slots=True)
class Limits:
    """The waits of one engine, in seconds."""

    load_s: float = 120.0
    drain_s: float = 10.0
    grace_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Machine:
    """One engine: its phase and what is needed to decide what comes next."""

    limits: Limits = Limits()
    phase: Phase = Phase.COLD
    epoch: int = 0
    cause: Cause | None = None
    """Why it is where it is; None on the way up."""
    detail: str = ""
    attempts: int = 0
    """Failed starts and crashes since the last completed answer."""
    story: tuple[str, ...] = ()
    """The last transitions, for the error that should never happen."""

    def to(self, phase: Phase, event: Event, cause: Cause | None = None, detail: str = "") -> Machine:
        """The machine in `phase`, one epoch on."""
        line = f"{self.phase} -> {phase} on {event}"
        return replace(
            self,
            phase=phase,
            epoch=self.epoch + 1,
            cause=cause,
            detail=detail,
            story=(*self.story, line)[-_STORY_LENGTH:],
        )


class IllegalEvent(Exception):
    """An event that cannot happen in this phase: a bug, told with the machine's recent story."""

    def __init__(self, machine: Machine, event: Event) -> None:
        story = "\n  ".join(machine.story)
        super().__init__(f"{event} while {machine.phase}; before that:\n  {story}")


def backoff_s(attempts: int) -> float:
    """Seconds before start number `attempts` + 1; doubles up to half a minute. The runner adds jitter."""
    return float(min(_BACKOFF_LONGEST_S, _BACKOFF_FIRST_S * 2 ** (attempts - 1)))


def step(m: Machine, event: Event) -> Step:
    """Next machine and the effects it asks for, in order. Raises IllegalEvent for a pair that cannot happen."""
    match m.phase, event:
        # -- on the way up
        case Phase.COLD, Wanted():
            return _load(m, event)
        case Phase.BACKOFF | Phase.FAILED, Wanted(insist=True):
            return _load(replace(m, attempts=0), event)
        case Phase.LOADING, Healthy():
            return m, (Verify(),)
        case Phase.LOADING, Verified():
            return m.to(Phase.READY, event), ()
        case Phase.LOADING, Progressed():
            moved = replace(m, epoch=m.epoch + 1)
            return moved, (Arm(Timer.LOAD, m.limits.load_s, moved.epoch),)
        case Phase.LOADING, Rejected(detail):
            return _stop(m, event, Cause.START_FAILED, detail)
        case Phase.LOADING, Elapsed(Timer.LOAD, epoch) if epoch == m.epoch:
            return _stop(m, event, Cause.LOAD_TIMEOUT, f"no progress for {m.limits.load_s:g} s while loading")
        case Phase.BACKOFF, Elapsed(Timer.BACKOFF, epoch) if epoch == m.epoch:
            return _load(m, event)
        case Phase.FAILED, Elapsed(Timer.COOLDOWN, epoch) if epoch == m.epoch:
            # One more try is allowed; another failure opens the breaker again at once.
            return replace(m.to(Phase.COLD, event, m.cause, m.detail), attempts=MAX_ATTEMPTS - 1), ()

        # -- on the way down
        case Phase.READY, Unwanted(cause):
            n = m.to(Phase.DRAINING, event, cause)
            return n, (Arm(Timer.DRAIN, m.limits.drain_s, n.epoch),)
        case Phase.LOADING, Unwanted(cause):
            return _stop(m, event, cause)
        case Phase.DRAINING, Drained():
            return _leave(m, event)
        case Phase.DRAINING, Elapsed(Timer.DRAIN, epoch) if epoch == m.epoch:
            return _leave(m, event)
        case Phase.READY, Broken(cause, detail):
            return _kill(m, event, cause, detail)
        case Phase.DRAINING, Broken():
            return _kill(m, event, m.cause or Cause.REQUESTED)
        case Phase.STOPPING, Elapsed(Timer.GRACE, epoch) if epoch == m.epoch:
            return m, (Signal(signal.SIGKILL),)
        case Phase.STOPPING, Unwanted(cause):
            return replace(m, cause=m.cause if m.cause in ORDERLY else cause), ()
        case Phase.BACKOFF | Phase.FAILED, Unwanted(cause):
            return m.to(Phase.COLD, event, cause), ()

        # -- the process is gone
        case Phase.LOADING | Phase.READY, Exited(gone, lighter=True):
            return _back_off(m, event, Cause.OOM, str(gone), 1)  # another launch: the budget of tries is not its fault
        case Phase.LOADING, Exited(gone):
            return _failed(m, event, Cause.START_FAILED if gone.cause is Cause.CRASH else gone.cause, str(gone))
        case Phase.READY, Exited(gone):
            return _failed(m, event, gone.cause, str(gone))
        case Phase.DRAINING, Exited(gone):
            return m.to(Phase.COLD, event, m.cause or Cause.REQUESTED, str(gone)), ()
        case Phase.STOPPING, Exited() if m.cause in ORDERLY:
            return m.to(Phase.COLD, event, m.cause or Cause.REQUESTED), ()
        case Phase.STOPPING, Exited():
            return _failed(m, event, m.cause or Cause.START_FAILED, m.detail)

        # -- nothing to do
        case _, Served():
            return replace(m, attempts=0), ()
        case Phase.COLD | Phase.DRAINING, Unwanted():
            return m, ()
        case Phase.FAILED, Exited():
            return m, ()  # failed by a bug in garra while its process lived
        case _, Elapsed() | Healthy() | Progressed() | Verified() | Rejected() | Drained() | Broken() | Wanted():
            return m, ()  # a timer, a probe, a lease or a wish that lost its race
    raise IllegalEvent(m, event)


def _load(m: Machine, event: Event) -> Step:
    n = m.to(Phase.LOADING, event)
    return n, (Spawn(), Probe(), Arm(Timer.LOAD, m.limits.load_s, n.epoch))


def _kill(m: Machine, event: Event, cause: Cause, detail: str = "") -> Step:
    """No politeness for an engine that hears nothing."""
    n = m.to(Phase.STOPPING, event, cause, detail)
    return n, (Disconnect(), Signal(signal.SIGKILL))


def _leave(m: Machine, event: Event) -> Step:
    """It served until now: what it holds may be of use to the next one."""
    n, effects = _stop(m, event, m.cause or Cause.REQUESTED)
    return n, (Keep(), *effects)


def _stop(m: Machine, event: Event, cause: Cause, detail: str = "") -> Step:
    n = m.to(Phase.STOPPING, event, cause, detail)
    return n, (Disconnect(), Signal(signal.SIGTERM), Arm(Timer.GRACE, m.limits.grace_s, n.epoch))


def _failed(m: Machine, event: Event, cause: Cause, detail: str) -> Step:
    attempts = m.attempts + 1
    m = replace(m, attempts=attempts)
    if cause in HOPELESS:
        return m.to(Phase.FAILED, event, cause, detail), (Disconnect(),)
    if attempts >= MAX_ATTEMPTS:
        n = m.to(Phase.FAILED, event, cause, detail)
        return n, (Disconnect(), Arm(Timer.COOLDOWN, COOLDOWN_S, n.epoch))
    return _back_off(m, event, cause, detail, attempts)


def _back_off(m: Machine, event: Event, cause: Cause, detail: str, attempts: int) -> Step:
    n = m.to(Phase.BACKOFF, event, cause, detail)
    return n, (Disconnect(), Arm(Timer.BACKOFF, backoff_s(attempts), n.epoch))
