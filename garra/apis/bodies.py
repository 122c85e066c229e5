"""Bodies of requests, read as JSON. Pure. What cannot be read is the client's mistake, whatever is wrong with it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from garra.errors import BadRequest

T = TypeVar("T")


def decoded(body: bytes, kind: type[T]) -> T:
    """The body as this type. Raises BadRequest; also for one nested so deeply that reading it would not end well, here
    (some hundred levels) or in an engine."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the request body is not usable: {error}") from None
    except RecursionError:
        raise BadRequest("the request body is nested too deeply") from None
