"""Which free slots hold what, so that who begins like it goes first. Pure bookkeeping: the engine picks the slot.

Nobody tells beforehand which slot a request will get: the engine takes the free one that holds the most of its prompt,
else the one that was not used for longest. That is repeated here, with the beginnings of requests instead of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from garra.prompts.chain import shared
from garra.prompts.words import Chain

_LEAST_SHARE = 0.5
"""Of the request: with less in common it is no use to wait for that slot."""


@dataclass(slots=True)
class Warmth:
    """What the free slots of one engine hold, the most recently used last."""

    free: list[Chain] = field(default_factory=list)

    def suits(self, chain: Chain) -> bool:
        """Whether a free slot holds most of what such a request begins with."""
        return bool(chain) and self._best(chain) is not None

    def take(self, chain: Chain) -> None:
        """A request begins: it gets the slot that holds its beginning, else the one that was free for longest."""
        if self.free:
            best = self._best(chain) if chain else None
            self.free.pop(0 if best is None else best)

    def give(self, chain: Chain, n_slots: int) -> None:
        """It has ended, and its slot holds it."""
        self.free.append(chain)
        del self.free[: len(self.free) - n_slots]

    def _best(self, chain: Chain) -> int | None:
        common = [shared(one, chain) for one in self.free]
        best = max(range(len(common)), key=common.__getitem__, default=None)
        return best if best is not None and common[best] >= max(1, _LEAST_SHARE * len(chain)) else None
