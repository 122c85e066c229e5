"""Does drafting pay for this profile? Found out on its own requests, and acted on. Pure.

Two kinds of requests run on one engine: with drafts and without (`"speculate": false`, garra's patch 0003). What counts
is the time per decoded token of answers long enough to tell. While little is known both kinds alternate; then a few of
the other kind keep the comparison honest, for what pays depends on what is asked. Drafting is turned off when it is
slower beyond doubt, and on again when it is faster beyond doubt and by enough: two thresholds, so that it does not
flutter.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from garra.spec import Profile
from garra.traffic import Usage

TELLING_TOKENS = 16
"""Shorter answers tell little about speed."""
LEARNING = 8
"""Answers of each kind before anything is decided."""
_WINDOW = 48
_PROBE_ON = 16
"""While on, one request in so many goes without drafts."""
_PROBE_OFF = 32
"""While off, one request in so many has them."""
_OFF_BELOW = 1.0
_ON_ABOVE = 1.05
_SURE = 2.0
"""Standard errors of the difference."""


@dataclass(slots=True)
class Drafting:
    """What is known of one profile's drafting; `choose` before a request, `learn` after it."""

    on: bool = True
    can_choose: bool = True
    """False: the engine drafts whatever it is told."""
    n_drafted: int = 0
    n_accepted: int = 0
    _with: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _without: deque[float] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    _asked: int = 0

    def choose(self) -> bool:
        """Whether the next request may draft."""
        if not self.can_choose:
            return True
        self._asked += 1
        if min(len(self._with), len(self._without)) < LEARNING:
            return len(self._with) <= len(self._without)
        probing = self._asked % (_PROBE_ON if self.on else _PROBE_OFF) == 0
        return self.on is not probing

    def learn(self, usage: Usage, *, drafted: bool) -> None:
        """An answer ended; `drafted`: it was allowed to draft."""
        self.n_drafted += usage.n_drafted
        self.n_accepted += usage.n_accepted
        if not drafted and usage.n_drafted:
            self.can_choose, self.on = False, True
            return
        if usage.n_decoded < TELLING_TOKENS or usage.decode_ms <= 0:
            return
        ms = usage.decode_ms / (usage.n_decoded - 1)
        (self._with if drafted else self._without).append(math.log(ms))
        self._decide()

    @property
    def acceptance_rate(self) -> float | None:
        return self.n_accepted / self.n_drafted if self.n_drafted else None

    @property
    def speedup(self) -> float | None:
        """Decode speed with drafts over that without; None before both are known."""
        if min(len(self._with), len(self._without)) < LEARNING:
            return None
        return math.exp(_mean(self._without) - _mean(self._with))

    def _decide(self) -> None:
        speedup = self.speedup
        if speedup is None:
            return
        doubt = math.sqrt(_variance(self._with) / len(self._with) + _variance(self._without) / len(self._without))
        sure = abs(math.log(speedup)) > _SURE * doubt
        if self.on and sure and speedup < _OFF_BELOW:
            self.on = False
        elif not self.on and sure and speedup > _ON_ABOVE:
            self.on = True

    def __str__(self) -> str:
        accepted = f", {self.acceptance_rate:.0%} accepted" if self.acceptance_rate is not None else ""
        speedup = self.speedup
        if not self.can_choose:
            return f"on{accepted}; this engine cannot be told to go without, so nobody knows whether it pays"
        if speedup is None:
            return f"being measured{accepted}"
        return f"{'on' if self.on else 'off: it loses'}, {speedup:.2f}x{accepted}"


class Drafters:
    """One `Drafting` for each profile that speculates."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        self._tell = tell
        """Told of a profile whose drafting is turned on or off, and why."""
        self._by_name: dict[str, tuple[Profile, Drafting]] = {}

    def configure(self, profiles: Mapping[str, Profile]) -> None:
        """What is known stays for those that start the same engine as before."""
        before = self._by_name
        self._by_name = {
            name: before[name] if name in before and before[name][0].launches_like(profile) else (profile, Drafting())
            for name, profile in profiles.items()
            if profile.speculation != "none"
        }

    def choose(self, profile: str) -> bool:
        """Whether the profile's next request may draft."""
        known = self._by_name.get(profile) if self._by_name else None
        return known is None or known[1].choose()

    def learn(self, profile: str, usage: Usage, *, drafted: bool) -> None:
        """An answer of it ended; `drafted`: it was allowed to draft."""
        known = self._by_name.get(profile) if self._by_name else None
        if known is None:
            return
        drafting = known[1]
        before = drafting.on
        drafting.learn(usage, drafted=drafted)
        if drafting.on is not before:
            self._tell(profile, str(drafting))

    def said(self, profile: str) -> str:
        """What is known, in words; empty where nothing is drafted."""
        known = self._by_name.get(profile)
        return str(known[1]) if known is not None else ""


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return math.fsum(listed) / len(listed)


def _variance(values: Iterable[float]) -> float:
    listed = list(values)
    middle = _mean(listed)
    return math.fsum((value - middle) ** 2 for value in listed) / (len(listed) - 1)
