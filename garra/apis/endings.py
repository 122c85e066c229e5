"""How an answer ended and what it took, read from its last bytes. Pure.

As little as possible is looked at: this is done for every answer.
"""

from __future__ import annotations

import re

import msgspec

from garra.apis.routes import Api
from garra.traffic import Usage

_TIMINGS_KEY = b'"timings":'


class _Timings(msgspec.Struct, kw_only=True):
    """What is read of the engine's timings, under its own names."""

    cache_n: int = 0
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    id_slot: int | None = None


_timings_decoder = msgspec.json.Decoder(_Timings)
_USAGES = (
    re.compile(rb'"completion_tokens":\s?(\d+).*?"prompt_tokens":\s?(\d+)', re.DOTALL),
    re.compile(rb'"prompt_tokens":\s?(\d+).*?"completion_tokens":\s?(\d+)', re.DOTALL),
    re.compile(rb'"input_tokens":\s?(\d+).*?"output_tokens":\s?(\d+)', re.DOTALL),
)
_ENDS = {
    Api.CHAT: re.compile(rb'"finish_reason":\s?"'),
    Api.TEXT: re.compile(rb'"finish_reason":\s?"'),
    Api.RESPONSES: re.compile(rb'"response\.(?:completed|incomplete|failed)"'),
    Api.MESSAGES: re.compile(rb'"message_stop"|event: error'),
    Api.ENGINE: re.compile(rb'"stop":\s?true'),
}
_ERROR = re.compile(rb'data: \{"error":|event: error')


def is_whole(tail: bytes, api: Api) -> bool:
    """Whether a stream said why it ended. One that only stops is a cut answer, though its framing be in order."""
    pattern = _ENDS.get(api)
    return pattern is None or pattern.search(tail) is not None or _ERROR.search(tail) is not None


def usage_of(tail: bytes) -> Usage | None:
    """What an answer took: the engine's timings, else the API's usage; None without both."""
    if (told := _timings(tail)) is not None:
        return Usage(
            told.prompt_n,
            told.predicted_n,
            told.prompt_ms,
            told.predicted_ms,
            told.cache_n,
            told.draft_n,
            told.draft_n_accepted,
            told.id_slot,
        )
    for pattern in _USAGES:
        if (found := pattern.search(tail)) is not None:
            return Usage(int(found[1]), int(found[2]), 0.0)  # only their sum counts
    return None


def _timings(tail: bytes) -> _Timings | None:
    at = tail.rfind(_TIMINGS_KEY)
    if at < 0:
        return None
    begin = at + len(_TIMINGS_KEY)
    try:  # they hold nothing that nests
        return _timings_decoder.decode(tail[begin : tail.find(b"}", begin) + 1])
    except msgspec.DecodeError:
        return None
