"""The knobs in the order that works, and what each may be turned to on this machine. Pure.

First what moves most and everything else depends on: weights, then where they are, then the cache, then batches and
threads, then drafting, then slots.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from garra.spec import LaunchPlan, Profile
from garra.tuner.search import Stage

STAGES = (
    "weights", "gpu_layers", "context", "flash_attention", "cache_type", "batch", "threads", "speculation", "slots",
)  # fmt: skip
_KV_TYPES = ("f16", "q8_0", "q4_0")
_DEPTHS = (1, 2, 3, 4, 6)
_NGRAMS: tuple[Mapping[str, Any], ...] = (
    {"speculation": "ngram", "ngram": "mod"},
    {"speculation": "ngram", "ngram": "map-k", "ngram_match": 6, "ngram_draft": 16},
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides which options there are."""

    plan: LaunchPlan
    """The profile as it would be launched now."""
    weights: tuple[str, ...]
    """Other types of the same weights that are here or can be made."""
    n_layers: int
    n_ctx_train: int
    drafts: bool
    """The model has a multi-token-prediction layer."""
    cores: int
    performance_cores: int | None
    streams: int
    """Clients at once, in the measurement of throughput."""
    alone: bool = False
    """The objective is the speed of one client alone."""
    quantises_cache: bool = True
    """Its rows are long enough for quantised caches."""


def stages(profile: Profile, facts: Facts, only: Sequence[str] = ()) -> list[Stage]:
    """All stages in order, or those named."""
    made = {
        "weights": _weights(facts),
        "gpu_layers": _gpu_layers(facts),
        "context": _context(profile, facts),
        "flash_attention": _flash_attention(profile),
        "cache_type": _cache_type(profile, facts),
        "batch": _batch(profile),
        "threads": _threads(facts),
        "speculation": _speculation(profile, facts),
        "slots": _slots(profile, facts),
    }
    return [made[name] for name in STAGES if not only or name in only]


def _weights(facts: Facts) -> Stage:
    options = tuple({"weights": kind} for kind in facts.weights)
    return Stage("weights", options, changes_answers=True, why="no other type of these weights is here or can be made")


def _gpu_layers(facts: Facts) -> Stage:
    plan, n_all = facts.plan, facts.n_layers + 1
    if plan.gpu is None:
        return Stage("gpu_layers", (), why="no GPU is used")
    if plan.gpu_layers >= n_all:
        return Stage("gpu_layers", (), why="all layers are on the GPU already")
    wanted = {plan.gpu_layers - 2, plan.gpu_layers + 1, plan.gpu_layers + 2, n_all}
    return Stage(
        "gpu_layers", _each("gpu_layers", (n for n in sorted(wanted) if 0 < n <= n_all and n != plan.gpu_layers))
    )


def _context(profile: Profile, facts: Facts) -> Stage:
    """Longer ones are measured as advice: a context is chosen for what is asked, not for speed."""
    options = [n for n in (profile.context * 2, profile.context * 4) if n <= facts.n_ctx_train]
    why = f"{profile.context} per slot is all the model was trained on"
    return Stage("context", _each("context", options), advice=True, why=why)


def _flash_attention(profile: Profile) -> Stage:
    if profile.cache_type_v not in ("f16", "bf16", "f32"):
        return Stage("flash_attention", (), why=f"a {profile.cache_type_v} cache needs it")
    other = "off" if profile.flash_attention != "off" else "on"
    return Stage("flash_attention", ({"flash_attention": other},))


def _cache_type(profile: Profile, facts: Facts) -> Stage:
    if not facts.quantises_cache:
        return Stage("cache_type", (), why="the rows of this model's cache are too short to be quantised")
    options = tuple(
        {"cache_type_k": kind, "cache_type_v": kind, "flash_attention": "on"}
        for kind in _KV_TYPES
        if (kind, kind) != (profile.cache_type_k, profile.cache_type_v)
    )
    return Stage("cache_type", options, changes_answers=True)


def _batch(profile: Profile) -> Stage:
    pairs = [(2048, 512), (512, 512), (256, 256)]
    options = tuple(
        {"batch": batch, "ubatch": ubatch}
        for batch, ubatch in pairs
        if (batch, ubatch) != (profile.batch, profile.ubatch)
    )
    return Stage("batch", options)


def _threads(facts: Facts) -> Stage:
    """Fewer than the cores where they are many, and only the fast ones; never more (tokens took 3.6x as long)."""
    now, cores = facts.plan.threads, facts.cores
    wanted = {cores, cores - 1, max(1, cores * 3 // 4), max(1, cores // 2), facts.performance_cores or cores}
    return Stage("threads", _each("threads", sorted(n for n in wanted if 0 < n <= cores and n != now)))


def _speculation(profile: Profile, facts: Facts) -> Stage:
    options: list[Mapping[str, Any]] = []
    if facts.drafts:  # it can fall off a cliff one step too far: each depth is measured
        depths = [depth for depth in _DEPTHS if (profile.speculation, profile.draft_depth) != ("mtp", depth)]
        options += [{"speculation": "mtp", "draft_depth": depth} for depth in depths]
    if profile.draft_model is not None:
        options += [{"speculation": "draft", "draft_depth": depth} for depth in (2, 4, 8)]
    options += _NGRAMS
    if profile.speculation != "none":
        options.insert(0, {"speculation": "none"})
    return Stage("speculation", tuple(options))


def _slots(profile: Profile, facts: Facts) -> Stage:
    """Only more: fewer would make those wait who need not, which no throughput shows."""
    wanted = {n for n in (facts.streams // 2, facts.streams, facts.streams * 2) if n > profile.slots}
    why = f"{profile.slots} slots are more than the streams need"
    if facts.alone:
        wanted, why = set(), "they are for several clients, and the objective is one alone"
    return Stage("slots", _each("slots", sorted(wanted)), throughput=True, why=why)


def _each(knob: str, values: Iterable[Any]) -> tuple[Mapping[str, Any], ...]:
    return tuple({knob: value} for value in values)
