"""How much two requests have in common, from their bodies as they came: no decoding, a checksum per piece. Pure."""

from __future__ import annotations

import itertools
import zlib

from garra.prompts.words import Chain

PIECE_BYTES = 512
"""Some 130 tokens: what is shorter tells nothing."""
_MOST_PIECES = 4096
_BEGINNINGS = (b'"messages"', b'"input"', b'"prompt"', b'"system"', b'"instructions"')


def chain_of(body: bytes) -> Chain:
    """Empty for what is shorter than a piece. Clients write the same fields in the same order each turn, and what they
    add stands at the end; what comes before the text (model, limits) may change and does not count."""
    if len(body) < PIECE_BYTES:
        return ()
    found = [at for at in (body.find(key) for key in _BEGINNINGS) if at >= 0]
    start = min(found, default=0)
    seen, chain = 0, []
    for at in range(start, min(len(body) - PIECE_BYTES, start + _MOST_PIECES * PIECE_BYTES) + 1, PIECE_BYTES):
        seen = zlib.crc32(body[at : at + PIECE_BYTES], seen)
        chain.append(seen)
    return tuple(chain)


def shared(one: Chain, other: Chain) -> int:
    """Pieces both begin with."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same)


def expected_tokens(held: Chain, n_tokens: int, asked: Chain) -> int:
    """How many of the tokens behind `held` a request that begins like it should find: by its share of the text."""
    if not held:
        return 0
    return n_tokens * shared(held, asked) // (len(held) + 1)
