"""How an answer ended and what it took, read from its last bytes. Pure.

Searches, not parses: this is done for every answer.
"""

from __future__ import annotations

import re

from garra.apis.routes import Api
from garra.traffic import Usage

_TIMINGS = re.compile(
    rb'(?:"cache_n":(\d+),)?"prompt_n":(\d+).*?"prompt_ms":([0-9.]+).*?"predicted_n":(\d+)(?:,"predicted_ms":([0-9.]+))?'
    rb'(?:[^}]*?"id_slot":(\d+))?(?:[^}]*"draft_n":(\d+),"draft_n_accepted":(\d+))?',
    re.DOTALL,
)
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
    at = tail.rfind(b'"timings":')
    if at >= 0 and (found := _TIMINGS.search(tail, at)) is not None:
        cached, prompt, prompt_ms, decoded, decode_ms, slot, drafted, accepted = found.groups(b"0")
        return Usage(
            int(prompt),
            int(decoded),
            float(prompt_ms),
            float(decode_ms),
            int(cached),
            int(drafted),
            int(accepted),
            int(slot) if found[6] is not None else None,
        )
    for pattern in _USAGES:
        if (found := pattern.search(tail)) is not None:
            return Usage(int(found[1]), int(found[2]), 0.0)  # only their sum counts
    return None
