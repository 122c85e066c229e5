"""One benchmark from its wishes to its cells: talks brought to length, warmed up, asked in interleaved rounds."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from garra.bench import dataset, sizing
from garra.bench.arrivals import Pattern, arrivals
from garra.bench.load import Label, Told, closed_loop, open_loop
from garra.bench.machine import Watch
from garra.bench.target import Target
from garra.bench.words import Below, Cell, Sample, Talk
from garra.bench.workload import Kind, kind_of
from garra.errors import BadRequest

Pids = Callable[[], Sequence[int]]
Stage = Callable[[str, int], None]
"""Told what comes next, and how many requests it has."""
_CANCELLED_AFTER = 8
_SHORTEST_PROMPT = 32


@dataclass(frozen=True, slots=True)
class Wish:
    """What is to be measured."""

    workloads: tuple[str, ...] = ("chat",)
    """Names, or paths of .jsonl files."""
    concurrency: tuple[int, ...] = (1, 4)
    rates: tuple[float, ...] = ()
    """Requests per second, open loop; in place of `concurrency`."""
    pattern: Pattern = "poisson"
    requests: int | None = None
    """Per round; None: four, or two per client."""
    repeats: int = 5
    warmup: int = 1
    """Requests per client before each cell, not counted."""
    seed: int = 1
    n_prompt: int | None = None
    n_output: int | None = None
    cancel: float = 0.0
    """Part of the requests whose client leaves after a few tokens."""

    def loads(self) -> list[tuple[str, int | None, float | None]]:
        """Name, clients at once, requests per second."""
        if self.rates:
            return [(f"{self.pattern} {rate:g}/s", None, rate) for rate in self.rates]
        return [(f"c{n}", n, None) for n in self.concurrency]

    def per_round(self, concurrency: int | None) -> int:
        return self.requests or max(4, 2 * (concurrency or 4))


def dice(seed: int) -> Callable[[str], Below]:
    """Random numbers by name."""

    def named(name: str) -> Below:
        return random.Random(f"{seed} {name}").randrange

    return named


async def measure(target: Target, wish: Wish, *, pids: Pids, stage: Stage, told: Told) -> tuple[Cell, ...]:
    """All cells. Rounds are interleaved, so that a machine that drifts does so for all of them alike."""
    plans = []
    for workload in wish.workloads:
        for load, concurrency, rate in wish.loads():
            n = wish.per_round(concurrency)
            stage(f"preparing {workload} {load}", 0)
            rounds = await _talks(target, wish, workload, load, n)
            plans.append(_Plan(workload, load, concurrency, rate, rounds))
    for plan in plans:
        n_warm = wish.warmup * (plan.concurrency or 1)
        stage(f"warming up {plan.workload} {plan.load}", 0)
        await closed_loop(target, plan.warm(n_warm), n_warm or 1, Label("", "", -1), lambda sample: None)
    done: list[list[tuple[list[Sample], float, dict[str, Any]]]] = [[] for _ in plans]
    for round_ in range(wish.repeats):
        for place, plan in enumerate(plans):
            stage(f"{plan.workload} {plan.load}, round {round_ + 1} of {wish.repeats}", len(plan.rounds[round_]))
            with Watch(pids) as watch:
                samples, seconds = await plan.play(target, wish, round_, told)
            done[place].append((samples, seconds, watch.seen()))
    return tuple(plan.cell(rounds) for plan, rounds in zip(plans, done, strict=True))


@dataclass(frozen=True, slots=True)
class _Plan:
    workload: str
    load: str
    concurrency: int | None
    rate: float | None
    rounds: list[list[Talk]]
    """One for each repeat, and a last one to warm up with."""

    def warm(self, n: int) -> list[Talk]:
        return self.rounds[-1][:n]

    async def play(self, target: Target, wish: Wish, round_: int, told: Told) -> tuple[list[Sample], float]:
        label, talks = Label(self.workload, self.load, round_), self.rounds[round_]
        if self.rate is None:
            return await closed_loop(target, talks, self.concurrency or 1, label, told)
        below = dice(wish.seed)(f"arrivals {self.load} {round_}")
        return await open_loop(target, talks, arrivals(wish.pattern, self.rate, len(talks), below), label, told)

    def cell(self, rounds: Sequence[tuple[list[Sample], float, dict[str, Any]]]) -> Cell:
        samples = tuple(sample for some, _, _ in rounds for sample in some)
        seen: dict[str, Any] = {}
        for _, _, one in rounds:
            for key, value in one.items():
                known = seen.get(key)
                numbers = isinstance(value, int | float) and isinstance(known, int | float)
                seen[key] = max(value, known) if numbers else value
        durations = tuple(seconds for _, seconds, _ in rounds)
        return Cell(self.workload, self.load, self.concurrency, self.rate, samples, durations, seen)


async def _talks(target: Target, wish: Wish, workload: str, load: str, n: int) -> list[list[Talk]]:
    """`n` for each repeat and for the warm-up; no two share more than the workload makes them share."""
    n_rounds = wish.repeats + 1
    n_last = max(n, wish.warmup * n)
    if workload.endswith((".jsonl", ".json")):
        talks = dataset.read(Path(workload), n * n_rounds, wish.n_output)
        return [[talks[(round_ * n + place) % len(talks)] for place in range(n)] for round_ in range(n_rounds)]
    kind, named, count = kind_of(workload), dice(wish.seed), sizing.counter(target)
    n_prompt = _fitting(kind, wish, (await target.served()).context)
    fits = sizing.Sizer(count)
    rounds = []
    for round_ in range(n_rounds):
        talks = []
        for place in range(n if round_ < wish.repeats else n_last):
            recipe = kind.recipe(named, f"{load} {round_} {place}", n_prompt, wish.n_output)
            talk = await fits.sized(recipe)
            if wish.cancel and named(f"cancel {load} {round_} {place}")(1000) < wish.cancel * 1000:
                talk = replace(talk, cancel_after=_CANCELLED_AFTER)
            talks.append(talk)
        rounds.append(talks)
    return rounds


def _fitting(kind: Kind, wish: Wish, n_ctx: int | None) -> int:
    """Prompt tokens that leave room for the answers. Raises BadRequest where those that were asked for do not."""
    n_answer = (wish.n_output or kind.n_output) * kind.n_turns + kind.n_later
    n_prompt = wish.n_prompt or kind.n_prompt
    if n_ctx is None or n_prompt + n_answer <= n_ctx:
        return n_prompt
    left = n_ctx - n_answer
    if wish.n_prompt is not None or left < _SHORTEST_PROMPT:
        raise BadRequest(
            f"{kind.name}: prompts of {n_prompt} tokens and their answers do not fit into a context of {n_ctx}",
            fix=f"--prompt-tokens {max(_SHORTEST_PROMPT, left)}, or fewer --output-tokens",
        )
    return left
