"""A tune from its first question to its result: performs what the search asks, keeps a journal, confirms the winner."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from garra.bench import statistics as st
from garra.bench.session import dice
from garra.errors import DoesNotFit, GarraError
from garra.spec import LaunchPlan, Profile
from garra.tuner.journal import Entry, Journal
from garra.tuner.lab import Figures, Objective
from garra.tuner.search import (
    ORIGINAL,
    Answer,
    Ask,
    Decision,
    Divergence,
    Found,
    Rules,
    Setting,
    Speed,
    Stage,
    search,
)

_FRESH_ROUND = 100_000
"""Prompts of the confirmation, which no trial has seen."""
_WEIGHTS = "weights"


class Bench(Protocol):
    """Where launches are measured."""

    async def measure(self, plan: LaunchPlan, round_: int, *, bare: bool = False) -> Figures: ...


class Materials(Protocol):
    """What trials are made of. Answers may take a while; nobody waits for them on the event loop."""

    async def weights(self, kind: str) -> Path:
        """The model with weights of this type. Raises GarraError."""
        ...

    async def plan(self, profile: Profile) -> LaunchPlan:
        """Its launch. Raises DoesNotFit unless it fits as it asks."""
        ...

    async def divergence(self, profile: Profile) -> float:
        """Mean KLD of this profile's weights and cache from the original's weights with an f16 cache."""
        ...


@dataclass(slots=True)
class Progress:
    """How far it is, for whoever shows it."""

    stage: str = ""
    doing: str = ""
    elapsed_s: float = 0.0
    n_trials: int = 0
    last: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """What a tune found."""

    profile: str
    objective: Objective
    streams: int
    setting: Setting
    changes: Mapping[str, tuple[Any, Any]]
    """Keys of the profile: before, after."""
    kld: float | None
    ratio: st.Interval | None
    """Output tokens per second of all streams: the winner over llama-server's own defaults, paired, fresh prompts."""
    ratio_alone: st.Interval | None
    """Decode speed of one client alone, likewise."""
    winner: Figures | None
    defaults: Figures | None
    decisions: tuple[Decision, ...]
    figures: Mapping[str, Figures]
    """Of every setting that was measured, by name; medians."""
    notes: tuple[str, ...]
    elapsed_s: float
    n_trials: int
    resumed: int = 0
    """Trials taken from the journal."""


@dataclass(slots=True)
class Tune:
    """One tune of one profile."""

    profile: Profile
    stages: Sequence[Stage]
    rules: Rules
    objective: Objective
    streams: int
    lab: Bench
    materials: Materials
    journal: Journal
    n_pairs: int = 6
    """Comparisons with llama-server's own defaults at the end."""
    tell: Callable[[Progress], None] = lambda progress: None
    clock: Callable[[], float] = time.monotonic
    _measured: dict[str, list[Figures]] = field(default_factory=dict)
    _progress: Progress = field(default_factory=Progress)
    _before_s: float = 0.0
    _began: float = 0.0
    _replayed: int = 0

    async def run(self) -> Result:
        """The result; every trial is in the journal before the next one begins."""
        entries = list(self.journal.entries)
        self._before_s = entries[-1]["elapsed_s"] if entries else 0.0
        self._began = self.clock()
        found = await self._search(entries)
        pairs = await self._confirm(found.setting, entries)
        result = await self._result(found, pairs)
        self.journal.finish(as_json(result))
        return result

    @property
    def elapsed_s(self) -> float:
        return self._before_s + self.clock() - self._began

    async def _search(self, entries: list[Entry]) -> Found:
        asking = search(self.stages, self.rules)
        try:
            ask = next(asking)
            while True:
                ask = asking.send(await self._answer(ask, entries))
        except StopIteration as done:
            found: Found = done.value
            return found

    async def _answer(self, ask: Ask, entries: list[Entry]) -> Answer:
        key = _key(ask)
        entry = self._taken(key, entries)
        if entry is None:
            entry = {"ask": key, **await self._perform(ask)}
            entry["elapsed_s"] = self.elapsed_s
            self.journal.add(entry)
        self._note(ask.stage, name_of(ask.setting), entry)
        return self._as_answer(entry, ask.stage)

    def _taken(self, key: Any, entries: list[Entry]) -> Entry | None:
        """The journal's next entry, if it answers this; one that does not ends the repetition."""
        if entries and entries[0]["ask"] == key:
            self._replayed += 1
            return entries.pop(0)
        entries.clear()
        return None

    async def _perform(self, ask: Ask) -> Entry:
        self._progress = replace(self._progress, stage=ask.stage, doing=name_of(ask.setting), elapsed_s=self.elapsed_s)
        self.tell(self._progress)
        try:
            profile = await self._profile(ask.setting)
            if isinstance(ask, Divergence):
                return {"kld": await self.materials.divergence(profile)}
            plan = await self.materials.plan(profile)
            return {"figures": (await self.lab.measure(plan, ask.round)).as_json()}
        except DoesNotFit as error:
            return {"problem": error.what, "fits": False}
        except GarraError as error:
            return {"problem": error.what}

    async def _profile(self, setting: Setting) -> Profile:
        """The profile with these knobs turned."""
        knobs = dict(setting)
        kind = knobs.pop(_WEIGHTS, None)
        model = f"file:{await self.materials.weights(kind)}" if kind is not None else self.profile.model
        return replace(self.profile, model=model, **knobs)

    def _as_answer(self, entry: Entry, stage: str) -> Answer:
        figures = Figures(**entry["figures"]) if "figures" in entry else None
        shared = any(one.throughput for one in self.stages if one.knob == stage)
        objective: Objective = "throughput" if shared else self.objective
        return Answer(
            elapsed_s=entry["elapsed_s"],
            score=figures.score(objective) if figures is not None else None,
            kld=entry.get("kld"),
            problem=entry.get("problem", ""),
            fits=entry.get("fits", True),
        )

    def _note(self, stage: str, name: str, entry: Entry) -> None:
        told = entry.get("problem", "")
        if "figures" in entry:
            figures = Figures(**entry["figures"])
            self._measured.setdefault(name, []).append(figures)
            told = f"{figures.decode_tok_s:.0f} tok/s alone, {figures.output_tok_s:.0f} together"
        elif "kld" in entry:
            told = f"mean KLD {entry['kld']:.4f}"
        n = self._progress.n_trials + 1
        self._progress = Progress(stage, name, entry["elapsed_s"], n, f"{name}: {told}")
        self.tell(self._progress)

    async def _confirm(self, setting: Setting, entries: list[Entry]) -> list[tuple[Figures, Figures]]:
        """Winner and llama-server's own defaults in turns, on prompts no trial has seen."""
        pairs = []
        for number in range(self.n_pairs):
            got: dict[bool, Figures] = {}
            for bare in (True, False) if number % 2 == 0 else (False, True):
                key = ["confirm", number, bare, [list(pair) for pair in setting]]
                entry = self._taken(key, entries)
                if entry is None:
                    self._progress = replace(
                        self._progress,
                        stage="confirming",
                        doing="llama-server's defaults" if bare else name_of(setting),
                    )
                    self.tell(self._progress)
                    entry = {"ask": key, **await self._one_of_a_pair(setting, number, bare)}
                    entry["elapsed_s"] = self.elapsed_s
                    self.journal.add(entry)
                if "figures" in entry:
                    got[bare] = Figures(**entry["figures"])
            if len(got) == 2:
                pairs.append((got[True], got[False]))
        return pairs

    async def _one_of_a_pair(self, setting: Setting, number: int, bare: bool) -> Entry:
        try:
            plan = await self.materials.plan(await self._profile(ORIGINAL if bare else setting))
            figures = await self.lab.measure(plan, _FRESH_ROUND + number, bare=bare)
            return {"figures": figures.as_json()}
        except GarraError as error:
            return {"problem": error.what}

    async def _result(self, found: Found, pairs: list[tuple[Figures, Figures]]) -> Result:
        after = await self._profile(found.setting)
        keys = ["model" if key == _WEIGHTS else key for key, _ in found.setting]
        changes = {key: (getattr(self.profile, key), getattr(after, key)) for key in keys}
        notes = list(found.notes)
        if len(pairs) < self.n_pairs:
            notes.append(f"only {len(pairs)} of {self.n_pairs} comparisons with llama-server's defaults came to an end")
        return Result(
            profile=self.profile.name,
            objective=self.objective,
            streams=self.streams,
            setting=found.setting,
            changes={key: pair for key, pair in changes.items() if pair[0] != pair[1]},
            kld=found.kld,
            ratio=_ratio(pairs, "output_tok_s"),
            ratio_alone=_ratio(pairs, "decode_tok_s"),
            winner=middle([after for _, after in pairs]),
            defaults=middle([before for before, _ in pairs]),
            decisions=tuple(found.decisions),
            figures={name: one for name, many in self._measured.items() if (one := middle(many)) is not None},
            notes=tuple(notes),
            elapsed_s=self.elapsed_s,
            n_trials=len(self.journal.entries),
            resumed=self._replayed,
        )


def name_of(setting: Setting) -> str:
    """A setting in words: `slots=4 weights=Q8_0`."""
    return " ".join(f"{knob}={value}" for knob, value in setting) or "as it is"


def as_json(result: Result) -> dict[str, Any]:
    """The result with what programs look for at its end: ratio, ratio_low, kld, rejected, winner."""
    told = asdict(result)
    lost = ("slower", "no gain", "quality", "failed", "does not fit", "out of time")
    rejected = [
        {"setting": name_of(one.setting), "stage": one.stage, "why": one.verdict, "kld": one.kld, "ratio": one.ratio,
         "detail": one.detail}
        for one in result.decisions
        if one.verdict in lost
    ]  # fmt: skip
    full = {f"{name}_in_full": told.pop(name) for name in ("ratio", "winner")}
    del told["kld"]
    return (
        told
        | full
        | {
            "ratio": result.ratio.value if result.ratio else None,
            "ratio_low": result.ratio.low if result.ratio else None,
            "kld": result.kld,
            "rejected": rejected,
            "winner": dict(result.setting),
        }
    )


def _ratio(pairs: Sequence[tuple[Figures, Figures]], name: str) -> st.Interval | None:
    if len(pairs) < 3:
        return None
    before, after = [getattr(one, name) for one, _ in pairs], [getattr(one, name) for _, one in pairs]
    return st.paired_ratio(before, after, dice(1)("ratio"))


def middle(many: Sequence[Figures]) -> Figures | None:
    """The median of each figure."""
    if not many:
        return None
    told: dict[str, Any] = {}
    for name in Figures.__dataclass_fields__:
        values = [value for one in many if (value := getattr(one, name)) is not None]
        told[name] = st.median(values) if values else None
    return Figures(**told)


def _key(ask: Ask) -> list[Any]:
    """What was asked, as JSON gives it back."""
    setting = [list(pair) for pair in ask.setting]
    return ["speed", ask.stage, setting, ask.round] if isinstance(ask, Speed) else ["kld", ask.stage, setting]
