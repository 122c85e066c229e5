"""One log line per request, for logs that machines read; and the ids that tie a line to an answer."""

from __future__ import annotations

import itertools
import logging
import re
import secrets
from collections.abc import Mapping

from multidict import istr

from garra.errors import GarraError
from garra.ports import Lease
from garra.traffic import Wish

log = logging.getLogger("garra.requests")
"""Silent unless somebody lets it speak: see garra/logs.py."""

HEADER = istr("X-Request-Id")
_GIVEN = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_PREFIX = secrets.token_hex(4)
_numbers = itertools.count(1)


def identify(headers: Mapping[str, str]) -> str:
    """The client's own id where it sent a sane one, else a new one."""
    given = headers.get(HEADER)
    if given is not None and _GIVEN.fullmatch(given):
        return given
    return f"{_PREFIX}-{next(_numbers)}"


def take_down(ident: str, path: str, wish: Wish, lease: Lease | None, seconds: float, error: GarraError | None) -> None:
    """The request is over. No word of what was asked or answered is written."""
    if not log.isEnabledFor(logging.INFO):
        return
    told: dict[str, object] = {
        "request_id": ident, "path": path, "profile": wish.profile, "client": wish.client,
        "priority": wish.priority.name.lower(), "e2e_ms": round(seconds * 1e3, 1),
    }  # fmt: skip
    if lease is not None:
        told |= {
            "outcome": str(lease.outcome or "left"),
            "queue_ms": round(lease.waited.queue_s * 1e3, 1),
            "load_ms": round(lease.waited.load_s * 1e3, 1),
        }
        if (usage := lease.usage) is not None:
            told |= {
                "prefill_ms": usage.prompt_ms, "decode_ms": usage.decode_ms,
                "prompt_tokens": usage.n_prompt + usage.n_cached, "cached_tokens": usage.n_cached,
                "completion_tokens": usage.n_decoded,
            }  # fmt: skip
    if error is not None:
        told |= {"error": error.code, "detail": error.what}
    log.info("request %s", told.get("outcome") or told.get("error") or "left", extra={"told": told})
