"""What is worth keeping, in which order, and what is thrown away for room. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from garra.prompts.words import Costs, Held, Kept

_LEAST_TOKENS = 256
_LEAST_GAIN_S = 0.1
"""Less is not felt."""


def gain_s(n_tokens: int, costs: Costs) -> float:
    """Seconds a restore saves against a prefill: negative where it costs more."""
    n_bytes = n_tokens * costs.token_bytes
    return n_tokens * costs.prefill_s - n_bytes * costs.restore_s


def to_save(held: Iterable[Held], costs: Costs, budget_s: float) -> list[Held]:
    """Slots worth saving that can be saved in time, the most worth first. What was never measured is tried."""
    worth = [one for one in held if one.n_tokens >= _LEAST_TOKENS and gain_s(one.n_tokens, costs) >= _LEAST_GAIN_S]
    chosen, left_s = [], budget_s
    for one in sorted(worth, key=lambda one: -gain_s(one.n_tokens, costs)):
        cost_s = one.n_tokens * costs.token_bytes * costs.save_s
        if cost_s <= left_s:
            chosen.append(one)
            left_s -= cost_s
    return chosen


def to_restore(kept: Iterable[Kept], n_slots: int) -> list[Kept]:
    """What goes back into an engine with so many slots: what a person warmed first, then by worth. Of conversations
    that are the same text, only the longest."""
    chosen: list[Kept] = []
    for one in sorted(kept, key=lambda one: (not one.pinned, -one.worth_s)):
        inside = [other for other in chosen if one.chain and other.chain[: len(one.chain)] == one.chain]
        if not inside and len(chosen) < n_slots:
            chosen.append(one)
    return chosen


def to_discard(kept: Sequence[Kept], n_bytes: int, budget_bytes: int) -> list[Kept] | None:
    """What must go so that `n_bytes` more fit into the budget: the least worth per byte, the longest unused first of
    equals; None where even that does not suffice. What a person warmed stays."""
    total, gone = sum(one.n_bytes for one in kept), []
    for one in sorted(kept, key=lambda one: (one.worth_s / max(1, one.n_bytes), one.used_at)):
        if total + n_bytes <= budget_bytes:
            break
        if not one.pinned:
            gone.append(one)
            total -= one.n_bytes
    return gone if total + n_bytes <= budget_bytes else None
