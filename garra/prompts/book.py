"""One profile's prompts: what its slots hold, what was measured, what must still prove itself. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from garra.prompts.chain import expected_tokens
from garra.prompts.words import NOTHING_MEASURED, Chain, Costs, Held, Kept, Moved
from garra.tally import PromptTally
from garra.traffic import Usage

_LEARN = 0.3
_TELLING_TOKENS = 64
"""Shorter prefills tell little about speed."""
_TELLING_SHARE = 128
"""A request must have so many tokens in common with what was restored to say anything about it."""
_FOUND = 0.5
"""So much of what a request should find counts as found: checkpoints lie a little before the end."""


@dataclass(slots=True)
class Book:
    """One writer: the keeper."""

    fingerprint: str = ""
    """Of the engine that is up, or was the last."""
    held: dict[int, Held] = field(default_factory=dict)
    costs: Costs = NOTHING_MEASURED
    unproved: dict[int, Kept] = field(default_factory=dict)
    """What was restored, by slot, and that no answer has confirmed yet."""
    off: str = ""
    """Why nothing is kept any more, until something changes."""
    tally: PromptTally = field(default_factory=PromptTally)

    def started_anew(self) -> None:
        """An engine without anything in its slots."""
        self.held.clear()
        self.unproved.clear()

    def note(self, chain: Chain, usage: Usage) -> str:
        """A whole answer. Says what is wrong where what was restored was computed all the same; else nothing."""
        if usage.n_prompt >= _TELLING_TOKENS and usage.prompt_ms:
            prefill_s = _learned(self.costs.prefill_s, usage.prompt_ms / 1e3 / usage.n_prompt)
            self.costs = replace(self.costs, prefill_s=prefill_s)
        problem = self._prove(chain, usage) if self.unproved else ""
        if usage.slot is not None:
            self.held[usage.slot] = Held(usage.slot, usage.n_cached + usage.n_prompt + usage.n_decoded, chain)
        return problem

    def _prove(self, chain: Chain, usage: Usage) -> str:
        """The engine may answer from another slot than the one it was restored to: what counts is what it found."""
        best = max(self.unproved.items(), key=lambda pair: expected_tokens(pair[1].chain, pair[1].n_tokens, chain))
        slot, kept = best
        expected = expected_tokens(kept.chain, kept.n_tokens, chain)
        if expected >= _TELLING_SHARE and usage.n_cached >= expected * _FOUND:
            del self.unproved[slot]
            self.tally.events["verified"] += 1
            self.tally.n_tokens += usage.n_cached
            return ""
        if usage.slot not in self.unproved:
            return ""
        missed = slot == usage.slot and expected >= _TELLING_SHARE
        del self.unproved[usage.slot]  # another request has taken its place
        if not missed:
            return ""
        self.tally.events["missed"] += 1
        return f"a restored prompt was computed again: {usage.n_cached} of {expected} tokens were found"

    def saved(self, moved: Moved) -> None:
        """Learn what a save took."""
        self.tally.events["saved"] += 1
        self.tally.n_bytes += moved.n_bytes
        self.tally.save_s += moved.ms / 1e3
        if moved.n_tokens and moved.n_bytes:
            self.costs = replace(
                self.costs,
                token_bytes=_learned(self.costs.token_bytes, moved.n_bytes / moved.n_tokens),
                save_s=_learned(self.costs.save_s, moved.ms / 1e3 / moved.n_bytes),
            )

    def restored(self, slot: int, kept: Kept, seconds: float) -> None:
        """It is in the slot again, and must prove that it is of use."""
        self.tally.events["restored"] += 1
        self.tally.restore_s += seconds
        self.costs = replace(self.costs, restore_s=_learned(self.costs.restore_s, seconds / max(1, kept.n_bytes)))
        self.held[slot] = Held(slot, kept.n_tokens, kept.chain)
        if kept.chain:
            self.unproved[slot] = kept


def _learned(known: float, seen: float) -> float:
    return seen if not known else known + _LEARN * (seen - known)
