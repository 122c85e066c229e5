"""Which settings are tried next, and which are kept: a generator that asks for measurements and is sent what they gave.

Pure: it knows no process, no clock and no chance, so that a search that was killed is repeated from its journal up to
where it stood. Stage by stage one knob is turned on top of the best so far (the incumbent). Within a stage, successive
halving: all rivals and the incumbent are measured once, on the same prompts; those that are clearly worse are dropped,
then half of the rest, and the others are measured again and again. The incumbent is measured as often as they are, in
turns, so that a machine that drifts does so for all. A rival takes over when it is faster beyond doubt and by enough,
and where it may change answers, when it stays within the quality floor.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from garra.bench import statistics as st

_STUDENT = {2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36}
"""Quantiles of Student's t at 97.5 %, by degrees of freedom."""
_EQUAL = 0.02
Setting = tuple[tuple[str, Any], ...]
"""Knobs turned away from the profile, by name, sorted. Empty: the profile as it is."""
ORIGINAL: Setting = ()
Verdict = Literal["kept", "slower", "no gain", "quality", "failed", "does not fit", "out of time"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One knob with what it may be turned to."""

    knob: str
    options: tuple[Mapping[str, Any], ...]
    changes_answers: bool = False
    """Its rivals are held against the quality floor."""
    advice: bool = False
    """Measured and told, never taken: it is the person's choice."""
    throughput: bool = False
    """Judged by what all streams get together, whatever else the objective weighs."""
    why: str = ""
    """Why there is nothing to try, where there is nothing."""


@dataclass(frozen=True, slots=True)
class Rules:
    """When a search is content."""

    floor: float = 0.02
    """Mean KLD an answer-changing knob may cost, nats per token."""
    budget_s: float = math.inf
    """New rungs are begun before this."""
    rungs: tuple[int, ...] = (1, 1, 2, 2)
    """Repetitions of each rung; in the last one only the best is left, and has to win again."""
    hopeless: float = 0.97
    """Dropped at once below this part of the incumbent's score."""
    gain: float = 1.03
    """What a change must bring to be worth it."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Please measure this setting; the same `round` means the same prompts."""

    stage: str
    setting: Setting
    round: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """Please tell how far this setting's answers are from the profile's own weights with an f16 cache."""

    stage: str
    setting: Setting


Ask = Speed | Divergence


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of it. `score`: more is better; `kld`: nats per token. Neither: it failed, and `problem` says how."""

    elapsed_s: float
    """Of the budget, in all."""
    score: float | None = None
    kld: float | None = None
    problem: str = ""
    fits: bool = True
    """False: the planner refused it before it was started."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of one setting, and why."""

    stage: str
    setting: Setting
    verdict: Verdict
    ratio: float | None = None
    """Its score over the incumbent's."""
    ratio_low: float | None = None
    n: int = 0
    """Times it was measured."""
    kld: float | None = None
    detail: str = ""


@dataclass(slots=True)
class Found:
    """The best setting, and the way there."""

    setting: Setting = ORIGINAL
    kld: float | None = None
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def merged(setting: Setting, option: Mapping[str, Any]) -> Setting:
    """The setting with these knobs turned as well."""
    return tuple(sorted((dict(setting) | dict(option)).items()))


def search(stages: Sequence[Stage], rules: Rules) -> Generator[Ask, Answer, Found]:
    """Yields what is to be measured, is sent what came of it, returns the best."""
    found = Found()
    round_ = 0
    for stage in stages:
        if not stage.options:
            found.notes.append(f"{stage.knob}: {stage.why or 'nothing to try'}")
            continue
        rivals = [_Rival(merged(found.setting, option)) for option in stage.options]
        rivals = [rival for rival in rivals if rival.setting != found.setting]
        incumbent = _Rival(found.setting)
        round_ = yield from _race(stage, rules, incumbent, rivals, found, round_)
        yield from _crown(stage, rules, rivals, found)
    return found


@dataclass(slots=True)
class _Rival:
    setting: Setting
    scores: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    """To the incumbent, each in its own round."""
    kld: float | None = None
    verdict: Verdict | None = None
    detail: str = ""

    @property
    def ratio(self) -> float:
        return math.exp(st.mean([math.log(ratio) for ratio in self.ratios])) if self.ratios else 0.0

    @property
    def ratio_low(self) -> float:
        """Below this it is in one of forty cases, by Student's t; below three rounds the worst of them."""
        n = len(self.ratios)
        if n < 3:
            return min(self.ratios, default=0.0)
        logs = [math.log(ratio) for ratio in self.ratios]
        spread = st.deviation(logs) / math.sqrt(n - 1)
        return math.exp(st.mean(logs) - _STUDENT.get(n - 1, 2.0) * spread)


def _race(
    stage: Stage, rules: Rules, incumbent: _Rival, rivals: list[_Rival], found: Found, round_: int
) -> Generator[Ask, Answer, int]:
    """Measure all of them, drop the worse; the next round's number."""
    alive = list(rivals)
    for rung, repetitions in enumerate(rules.rungs):
        for _ in range(repetitions):
            runners = [incumbent, *alive]
            elapsed_s = 0.0
            for rival in runners if round_ % 2 == 0 else runners[::-1]:
                answer = yield Speed(stage.knob, rival.setting, round_)
                elapsed_s = answer.elapsed_s
                _note(rival, answer)
            round_ += 1
            if incumbent.verdict is not None:
                found.notes.append(f"{stage.knob}: the incumbent itself failed: {incumbent.detail}")
                _end([rival for rival in alive if rival.verdict is None], "failed", "nothing to compare with")
                return round_
            for rival in alive:
                if rival.verdict is None:
                    rival.ratios.append(rival.scores[-1] / incumbent.scores[-1])
            alive = [rival for rival in alive if rival.verdict is None]
            if not alive:
                return round_
            if elapsed_s >= rules.budget_s:
                _end([rival for rival in alive if rival.ratio_low <= rules.gain], "out of time")
                return round_
        _end([rival for rival in alive if rival.ratio < rules.hopeless], "slower")
        alive = [rival for rival in alive if rival.verdict is None]
        if stage.changes_answers and rung == 0:
            yield from _judge(stage, rules, [rival for rival in alive if rival.ratio > 1])
            alive = [rival for rival in alive if rival.verdict is None]
        alive = _ranked(alive)
        if rung:
            n_left = 1 if rung == len(rules.rungs) - 2 else max(1, math.ceil(len(alive) / 2))
            _end(alive[n_left:], "no gain", "others of its kind were faster")
            alive = [rival for rival in alive if rival.verdict is None]
        if not alive or (rung and not stage.advice and not _promising(alive[0], rules)):
            break
    return round_


def _ranked(rivals: list[_Rival]) -> list[_Rival]:
    """The fastest first; of those that are as good as equal, the one named first: it costs least."""
    best = max((rival.ratio for rival in rivals), default=0.0)
    equal = [rival for rival in rivals if rival.ratio >= best - _EQUAL]
    rest = [rival for rival in rivals if rival not in equal]
    return equal + sorted(rest, key=lambda rival: rival.ratio, reverse=True)


def _promising(rival: _Rival, rules: Rules) -> bool:
    """Worth further rounds: it gains enough so far, and while there are few rounds it won every one."""
    return rival.ratio >= rules.gain and (len(rival.ratios) > 2 or rival.ratio_low > 1)


def _judge(stage: Stage, rules: Rules, rivals: Sequence[_Rival]) -> Generator[Ask, Answer, None]:
    """Hold those that would win against the quality floor: how fast a broken model is, is of no interest."""
    for rival in rivals:
        answer = yield Divergence(stage.knob, rival.setting)
        rival.kld = answer.kld
        if answer.kld is None:
            rival.verdict, rival.detail = "failed", answer.problem
        elif not answer.kld <= rules.floor:  # NaN is no quality either
            rival.verdict, rival.detail = "quality", f"mean KLD {answer.kld:.3f} above the floor of {rules.floor:g}"


def _crown(stage: Stage, rules: Rules, rivals: list[_Rival], found: Found) -> Generator[Ask, Answer, None]:
    """The best that is faster beyond doubt becomes the incumbent; every rival's end is written down."""
    for rival in sorted(rivals, key=lambda one: one.ratio_low, reverse=True):
        if rival.verdict is not None:
            continue
        if stage.advice:
            rival.verdict, rival.detail = "no gain", f"{rival.ratio:.2f}x of the speed: yours to choose"
            continue
        if rival.ratio < rules.gain or rival.ratio_low <= 1:
            rival.verdict = "no gain"
            continue
        if stage.changes_answers and rival.kld is None:
            yield from _judge(stage, rules, [rival])
            if rival.verdict is not None:
                continue
        rival.verdict = "kept"
        found.setting = rival.setting
        found.kld = rival.kld if rival.kld is not None else found.kld
        _end([one for one in rivals if one.verdict is None], "no gain", "another one was faster")
        break
    for rival in rivals:
        measured = bool(rival.ratios)
        found.decisions.append(
            Decision(
                stage.knob, rival.setting, rival.verdict or "no gain", rival.ratio if measured else None,
                rival.ratio_low if measured else None, len(rival.ratios), rival.kld, rival.detail,
            )
        )  # fmt: skip


def _note(rival: _Rival, answer: Answer) -> None:
    if answer.score is not None:
        rival.scores.append(answer.score)
    else:
        rival.verdict, rival.detail = "failed" if answer.fits else "does not fit", answer.problem


def _end(rivals: Sequence[_Rival], verdict: Verdict, detail: str = "") -> None:
    for rival in rivals:
        rival.verdict, rival.detail = verdict, detail
