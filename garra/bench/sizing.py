"""Prompts of an exact number of tokens: a text is cut between two pieces and filled up, as the server counts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from garra.bench.target import Target
from garra.bench.words import Messages, Talk
from garra.bench.workload import Draft, Recipe, talk_of

Count = Callable[[Messages], Awaitable[int | None]]

_FILLER = " so"
_TRIES = 12


class Sizer:
    """Brings conversations to length. It learns how many tokens a piece has, so that most fit at the second try."""

    def __init__(self, count: Count) -> None:
        self._count = count
        self._per_piece = 1.3

    async def sized(self, recipe: Recipe) -> Talk:
        """With each turn that wants a length at exactly that one; where nobody counts, as near as can be."""
        messages, counts = [], []
        for draft in recipe.drafts:
            if draft.n_prompt is None:
                messages.append(draft.messages(draft.body))
            else:
                messages.append(await self._fitted(draft, draft.n_prompt))
            counts.append(draft.n_prompt)
        return talk_of(recipe, tuple(messages), tuple(counts))

    async def _fitted(self, draft: Draft, wanted: int) -> Messages:
        n_pieces, n_filler = min(len(draft.body), round(wanted / self._per_piece)), 0
        best: tuple[int, Messages] | None = None
        for _ in range(_TRIES):
            said = draft.messages(draft.body[:n_pieces], _FILLER * n_filler)
            n = await self._count(said)
            if n is None:
                return said
            missing = wanted - n
            if best is None or abs(missing) < best[0]:
                best = (abs(missing), said)
            if not missing:
                break
            if n_pieces and n_pieces < len(draft.body) and abs(missing) > 8 * self._per_piece:
                self._per_piece = max(1.0, n / n_pieces)
                n_pieces = max(0, min(len(draft.body), n_pieces + int(missing / self._per_piece)))
            elif missing > 0 or n_filler:
                n_filler = max(0, n_filler + missing)
            elif n_pieces:
                n_pieces = max(0, n_pieces - max(1, round(-missing / self._per_piece + 0.5)))
            else:
                break  # what stands around the text is longer than the wish
        assert best is not None
        return best[1]


def counter(target: Target) -> Count:
    """How this target counts: by its own tokenizer, else by asking for one token of the answer."""

    async def by_usage(messages: Messages) -> int | None:
        disguised = tuple({**message, "content": _disguise(str(message["content"]))} for message in messages)
        reply = await target.ask(disguised, 1, {})
        return reply.tap.n_prompt if reply.ending == "ok" else None

    async def count(messages: Messages) -> int | None:
        if (await target.served()).counts:
            return await target.count(messages)
        return await by_usage(messages)

    return count


def _disguise(text: str) -> str:
    """The same length with other digits: what is measured later must not lie in the server's cache already."""
    return text.translate(_OTHER_DIGITS)


_OTHER_DIGITS = str.maketrans("0123456789", "5678901234")
