"""What cheaper weights and caches cost in answers, and what they bring: speed, memory and divergence side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from garra.engine.perplexity import Quality
from garra.errors import GarraError
from garra.spec import KvType, LaunchPlan, Profile
from garra.tuner.lab import Figures, Lab
from garra.tuner.materials import Workbench
from garra.tuner.tune import middle

AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class Row:
    """One variant."""

    weights: str
    cache_type: KvType
    figures: Figures | None
    """Medians over the rounds."""
    cache_mib: float
    """KV cache, as planned."""
    weights_mib: float
    quality: Quality | None
    problem: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def compare(
    profile: Profile,
    bench: Workbench,
    lab: Lab,
    cache_types: Sequence[KvType],
    weights: Sequence[str],
    rounds: int,
    say: Callable[[str], None],
) -> list[Row]:
    """A row for each type of cache with the weights as they are; for each other type of weights, with an f16 cache."""
    variants = {(AS_IT_IS, kind): _cached(profile, kind) for kind in cache_types}
    for kind in weights:
        say(f"making {kind}")
        variants[kind, "f16"] = replace(_cached(profile, "f16"), model=f"file:{await bench.weights(kind)}")
    plans: dict[tuple[str, KvType], LaunchPlan] = {}
    measured: dict[tuple[str, KvType], list[Figures]] = {key: [] for key in variants}
    problems: dict[tuple[str, KvType], str] = {}
    for number in range(rounds):
        for key in list(variants) if number % 2 == 0 else list(variants)[::-1]:
            if key in problems:
                continue
            say(f"round {number + 1} of {rounds}: weights {key[0]}, cache {key[1]}")
            try:
                plans[key] = await bench.plan(variants[key])
                measured[key].append(await lab.measure(plans[key], number))
            except GarraError as error:
                problems[key] = error.what
    rows = []
    for key, variant in variants.items():
        say(f"quality: weights {key[0]}, cache {key[1]}")
        quality = None
        if key not in problems:
            try:
                quality = await bench.quality(variant)
            except GarraError as error:
                problems[key] = error.what
        parts = _parts(plans[key]) if key in plans else {}
        rows.append(
            Row(
                key[0], key[1], middle(measured[key]), parts.get("KV cache", 0) / (1 << 20),
                parts.get("weights", 0) / (1 << 20), quality, problems.get(key, ""),
            )
        )  # fmt: skip
    return rows


def _cached(profile: Profile, kind: KvType) -> Profile:
    return replace(profile, cache_type_k=kind, cache_type_v=kind, flash_attention="on", speculation="none")


def _parts(plan: LaunchPlan) -> Mapping[str, int]:
    """Bytes by what they are for, over all devices."""
    total: dict[str, int] = {}
    for here in plan.bill.parts.values() if plan.bill is not None else ():
        for name, n_bytes in here.items():
            total[name] = total.get(name, 0) + n_bytes
    return total
