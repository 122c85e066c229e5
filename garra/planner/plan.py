"""Card + host + profile -> the one command line to run, or DoesNotFit with numbers and what would fit. Pure.

A profile's wish is kept where it fits. Where it does not, the ladder is gone down, in this order and no further than
needed: a smaller type of KV cache (q8_0, which costs little), a shorter context, a mixture's experts in host memory,
fewer layers on the GPU. Slots and the drafting layer are left as they are. Every step is a note a person gets to see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from garra.bill import HOST, Bill
from garra.engine.argv import ALL_LAYERS, longest_draft
from garra.errors import DoesNotFit
from garra.host import HostSpec
from garra.planner import memory
from garra.planner.memory import CHECKPOINTS, Knobs
from garra.planner.room import Room
from garra.registry.card import ModelCard
from garra.spec import MIB, KvType, LaunchPlan, Profile

MIN_CONTEXT = 4096
"""A plan is never given less context per slot than this, unless the profile asks for less."""
_MIN_CHECKPOINTS = 4
_CHECKPOINT_SHARE = 0.25
_UNSURE = 1.01  # the engine's own accounting may come out so much higher
_TO_FIT = ", to fit into memory"
_SPILL = "layers on the CPU cost about 10x of the speed"

Beside = Callable[[Knobs], Mapping[str, int]]
"""Bytes of what is loaded besides the model: projector, draft model."""
_NOTHING: Beside = lambda knobs: {}  # noqa: E731

Account = Callable[[LaunchPlan], Bill | None]
"""A better bill for a plan than the formula's, where there is one: the engine's own accounting."""


@dataclass(frozen=True, slots=True)
class Rung:
    """One step down the ladder: another launch of the same profile."""

    profile: Profile
    gpu_layers: int
    experts_on_host: int = 0
    steps: tuple[str, ...] = ()
    """What was given up for it, in words."""


def plan_launch(
    profile: Profile,
    card: ModelCard,
    host: HostSpec,
    room: Room,
    model_path: Path,
    *,
    account: Account | None = None,
    beside: Beside = _NOTHING,
    skip: int = 0,
    force: bool = False,
) -> LaunchPlan:
    """The first rung of the ladder that fits the room, from number `skip` on.

    `account`: the engine's own bill, where there is one. `beside`: what else is loaded. `force`: the profile's wish as
    it is, with a warning where it does not fit. Raises DoesNotFit.
    """
    best: LaunchPlan | None = None
    for number, rung in enumerate(ladder(profile, card, room)):
        if number < skip:
            continue
        plan = _billed(rung, number, card, host, room, model_path, account, beside)
        missing = shortfall(plan.bill, room)
        if not missing:
            return plan
        if force:
            return replace(plan, notes=(*plan.notes, f"forced: {_short(missing)}; the engine may run out of memory"))
        best = plan
    if best is None:  # every rung was tried before: the last one is all there is
        raise DoesNotFit(f"cannot load {profile.name}: it ran out of memory on the smallest plan there is", fix=_REFUGE)
    raise _does_not_fit(profile, card, best, room)


def ladder(profile: Profile, card: ModelCard, room: Room) -> Iterator[Rung]:
    """The profile's wish, then what could be given up, step by step."""
    on_gpu = room.device is not None and profile.gpu_layers != 0
    wished = ALL_LAYERS if profile.gpu_layers is None else profile.gpu_layers
    rung = Rung(profile, wished if on_gpu else 0)
    yield rung
    if _quantisable(profile, card):
        cached = replace(rung.profile, cache_type_k="q8_0", cache_type_v="q8_0")
        rung = _down(rung, f"KV cache q8_0 instead of {profile.cache_type_k}", profile=cached)
        yield rung
    context = rung.profile.context
    shorter = rung
    while context // 2 >= MIN_CONTEXT:
        context = context // 2
        said = f"context {context} per slot instead of {profile.context}"
        shorter = replace(rung, profile=replace(rung.profile, context=context), steps=(*rung.steps, said))
        yield shorter
    if not on_gpu:
        return
    rung = shorter
    if any(layer.expert_bytes for layer in card.layers):
        n = len(card.layers)
        for count in _spread(n):
            said = f"the experts of {count} of {n} layers in host memory"
            yield _down(rung, said, experts_on_host=count)
        rung = _down(rung, f"the experts of all {n} layers in host memory", experts_on_host=n)
    n_all = len(card.layers) + 1
    for offloaded in range(n_all - 1, -1, -1):
        yield _down(rung, f"{offloaded} of {n_all} layers on the GPU: {_SPILL}", gpu_layers=offloaded)


def knobs_of(plan: LaunchPlan) -> Knobs:
    """What of a plan decides memory."""
    profile = plan.profile
    return Knobs(
        context=profile.context,
        slots=profile.slots,
        ubatch=profile.ubatch,
        cache_type_k=profile.cache_type_k,
        cache_type_v=profile.cache_type_v,
        flash=profile.flash_attention != "off",
        unified=profile.unified_kv,
        gpu_layers=plan.gpu_layers,
        experts_on_host=plan.experts_on_host,
        draft_depth=profile.draft_depth if profile.speculation == "mtp" else 0,
        longest_draft=longest_draft(profile),
        cache_ram_mib=profile.cache_ram_mib,
        checkpoints=plan.checkpoints,
        repack=not {"--no-repack", "-nr"} & set(profile.extra_args),
    )


def shortfall(bill: Bill | None, room: Room) -> dict[str, int]:
    """MiB that are missing, by device; empty when it fits."""
    if bill is None:
        return {}
    ram = _mib(bill.total(HOST) + bill.growth)
    vram = sum(_mib(bill.total(device)) for device in bill.devices)
    if room.unified:
        ram += vram
    missing = {HOST: ram - room.ram_mib, room.device or "gpu": vram - room.vram_mib}
    return {device: mib for device, mib in missing.items() if mib > 0}


def largest_context(profile: Profile, card: ModelCard, room: Room, slots: int, kv_type: KvType) -> int:
    """Tokens per slot that fit at most, with all wished layers on the GPU; a multiple of 256, 0 when nothing fits."""
    layers = (ALL_LAYERS if profile.gpu_layers is None else profile.gpu_layers) if room.device else 0

    def fits(context: int) -> bool:
        changed = replace(profile, context=context, slots=slots, cache_type_k=kv_type, cache_type_v=kv_type)
        rung = Rung(changed, layers)
        plan = _billed(rung, 0, card, HostSpec(1, 0, 0), room, Path(), None, _NOTHING)
        return not shortfall(plan.bill, room)

    low, high = 0, (card.n_ctx or 1 << 20) // 256
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle * 256) else (low, middle - 1)
    return low * 256


def _billed(
    rung: Rung,
    number: int,
    card: ModelCard,
    host: HostSpec,
    room: Room,
    model_path: Path,
    account: Account | None,
    beside: Beside,
) -> LaunchPlan:
    profile, wide = _wide_enough(rung.profile)
    notes = (*(f"{profile.name}: {step}{_TO_FIT}" for step in rung.steps), *wide)
    plan = LaunchPlan(
        profile=profile,
        model_path=model_path,
        threads=profile.threads or host.cores,
        gpu_layers=rung.gpu_layers,
        experts_on_host=rung.experts_on_host,
        gpu=room.gpu.index if room.gpu is not None and rung.gpu_layers else None,
        notes=notes,
        rung=number,
    )
    plan = _with_what_grows(card, plan, room)
    by_formula = memory.bill(
        card,
        knobs_of(plan),
        room.device or "gpu",
        context_bytes=room.context_mib * MIB if rung.gpu_layers else 0,
        beside=beside(knobs_of(plan)),
    )
    plan = replace(plan, bill=by_formula)
    if account is None or _hopeless(by_formula, room):
        return plan
    return replace(plan, bill=account(plan) or by_formula)


def _wide_enough(profile: Profile) -> tuple[Profile, tuple[str, ...]]:
    """With a batch that holds what all slots may draft at once; the engine aborts where it does not (b11434)."""
    draft = longest_draft(profile)
    needed = profile.slots * (1 + draft)
    if not draft or profile.batch >= needed:
        return profile, ()
    why = f"{profile.slots} slots draft up to {draft} tokens each"
    return replace(profile, batch=needed), (f"{profile.name}: batch {needed} instead of {profile.batch}: {why}",)


def _hopeless(bill: Bill, room: Room) -> bool:
    """So far from fitting that exact numbers would change nothing."""
    return any(mib > 256 + bill.total(device) // MIB // 10 for device, mib in shortfall(bill, room).items())


def _with_what_grows(card: ModelCard, plan: LaunchPlan, room: Room) -> LaunchPlan:
    """The plan with a prompt cache, and with snapshots of the recurrent state, that the RAM has room for.

    Snapshots are what a hybrid model rewinds to. Each keeps the state, and the drafting layer's cache so far: up to
    178 MiB for Qwen3.5-4B at 32k tokens. They get a part of what is left: the page cache wants the rest.
    """
    knobs = replace(knobs_of(plan), cache_ram_mib=0, checkpoints=0)
    fixed = memory.bill(card, knobs, room.device or "gpu")
    taken = sum(fixed.total(device) for device in fixed.parts) if room.unified else fixed.total(HOST)
    left = max(0, int(room.ram_mib * MIB - taken * _UNSURE))
    cache_mib = min(plan.profile.cache_ram_mib, left // MIB)
    if cache_mib < plan.profile.cache_ram_mib:
        said = f"prompt cache of {cache_mib} MiB instead of {plan.profile.cache_ram_mib}{_TO_FIT}"
        note = f"{plan.profile.name}: {said}"
        plan = replace(plan, profile=replace(plan.profile, cache_ram_mib=cache_mib), notes=(*plan.notes, note))
    if not card.recurrent:
        return plan
    left -= cache_mib * MIB
    each = max(1, memory.checkpoint_bytes(card, knobs) * plan.profile.slots)
    wanted = max(_MIN_CHECKPOINTS, int(left * _CHECKPOINT_SHARE) // each)
    return replace(plan, checkpoints=min(CHECKPOINTS, wanted, left // each))


def _quantisable(profile: Profile, card: ModelCard) -> bool:
    large = profile.cache_type_k in ("f16", "bf16", "f32") or profile.cache_type_v in ("f16", "bf16", "f32")
    return large and profile.flash_attention != "off" and memory.row_fits(card, "q8_0")


def _down(
    rung: Rung,
    said: str,
    *,
    profile: Profile | None = None,
    gpu_layers: int | None = None,
    experts_on_host: int | None = None,
) -> Rung:
    return Rung(
        profile=profile or rung.profile,
        gpu_layers=rung.gpu_layers if gpu_layers is None else gpu_layers,
        experts_on_host=rung.experts_on_host if experts_on_host is None else experts_on_host,
        steps=(*rung.steps, said),
    )


def _spread(n: int) -> list[int]:
    """A quarter, half and three quarters of n layers."""
    return sorted({n // 4, n // 2, n * 3 // 4} - {0, n})


def _does_not_fit(profile: Profile, card: ModelCard, best: LaunchPlan, room: Room) -> DoesNotFit:
    missing = shortfall(best.bill, room)
    steps = [note.split(": ", 1)[1].removesuffix(_TO_FIT) for note in best.notes]
    tried = f", even with {'; '.join(steps)}" if steps else ""
    return DoesNotFit(
        f"cannot load {profile.name} ({card.name}) on {room.what}{tried}: {_short(missing)}",
        fix=_nearest(profile, card, room),
    )


def _nearest(profile: Profile, card: ModelCard, room: Room) -> str:
    for slots in sorted({profile.slots, 1}, reverse=True):
        for kv_type in ("q8_0", "q4_0"):
            context = largest_context(profile, card, room, slots, kv_type)
            if context >= 1024:
                return (
                    f"this would fit: --set slots={slots} --set context={context} "
                    f"--set cache_type_k={kv_type} --set cache_type_v={kv_type}"
                )
    return _REFUGE


_REFUGE = "take a smaller model or quantisation, close what holds the memory, or: garra up --force"


def _short(missing: dict[str, int]) -> str:
    return " and ".join(
        f"{mib} MiB of {'RAM' if device == HOST else 'VRAM'} are missing" for device, mib in missing.items()
    )


def _mib(n_bytes: int) -> int:
    return -(-n_bytes // MIB)
