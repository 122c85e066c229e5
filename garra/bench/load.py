"""Clients that ask: so many at once (closed loop), or at given moments (open loop)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from garra.bench.target import Reply, Target
from garra.bench.words import Sample, Talk

Told = Callable[[Sample], None]


@dataclass(frozen=True, slots=True)
class Label:
    """What is written on the samples of one round."""

    workload: str
    load: str
    round: int


async def closed_loop(
    target: Target, talks: Sequence[Talk], concurrency: int, label: Label, told: Told
) -> tuple[list[Sample], float]:
    """All talks, `concurrency` at once, each client beginning its next when one ends; samples and seconds it took."""
    desk = _Desk(target, label, told)
    waiting: Iterator[Talk] = iter(talks)

    async def client() -> None:
        for talk in waiting:
            await desk.hold(talk)

    await _all(client() for _ in range(min(concurrency, len(talks))))
    return desk.samples, desk.elapsed_s


async def open_loop(
    target: Target, talks: Sequence[Talk], moments_s: Sequence[float], label: Label, told: Told
) -> tuple[list[Sample], float]:
    """Each talk at its moment, whatever became of those before it."""
    desk = _Desk(target, label, told)

    async def at(moment_s: float, talk: Talk) -> None:
        await asyncio.sleep(moment_s - desk.elapsed_s)
        await desk.hold(talk)

    await _all(at(moment, talk) for moment, talk in zip(moments_s, talks, strict=True))
    return desk.samples, desk.elapsed_s


async def _all(work: Iterator[Any]) -> None:
    async with asyncio.TaskGroup() as tasks:
        for one in work:
            tasks.create_task(one)


class _Desk:
    """Holds talks and keeps their samples."""

    def __init__(self, target: Target, label: Label, told: Told) -> None:
        self._target = target
        self._label = label
        self._told = told
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock()
        self.samples: list[Sample] = []

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._began

    async def hold(self, talk: Talk) -> None:
        said: tuple[Mapping[str, Any], ...] = ()
        for turn in talk.turns:
            said += turn.new
            at_s = self.elapsed_s
            reply = await self._target.ask(said, turn.max_tokens, talk.extra, cancel_after=talk.cancel_after)
            sample = sample_of(reply, self._label, at_s, turn.n_prompt)
            self.samples.append(sample)
            self._told(sample)
            if sample.ending != "ok":
                return  # there is nothing to go on from
            said += ({"role": "assistant", "content": "".join(reply.tap.text)},)


def sample_of(reply: Reply, label: Label, began_s: float, n_wanted: int | None) -> Sample:
    """The raw values of one answer."""
    tap = reply.tap
    timings = tap.timings
    return Sample(
        workload=label.workload,
        load=label.load,
        round=label.round,
        began_s=began_s,
        stamps_s=tuple(tap.stamps_s),
        e2e_s=reply.e2e_s,
        ending=reply.ending,
        status=reply.status,
        n_prompt=tap.n_prompt,
        n_wanted=n_wanted,
        n_cached=tap.n_cached,
        n_output=tap.n_output,
        finish=tap.finish,
        error=reply.error[:300],
        queue_s=tap.queue_s,
        load_s=tap.load_s,
        prefill_s=tap.prefill_s,
        n_drafted=timings.draft_n if timings is not None else 0,
        n_accepted=timings.draft_n_accepted if timings is not None else 0,
    )
