"""The protocol of the public listener: aiohttp's, with errors that API clients can read, and an end to waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from garra.errors import BadRequest, GarraError
from garra.proxy.answers import render

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75.0
"""aiohttp's own default is an hour; nginx and browsers expect about this. A request's head must come within it, too."""
_BODY_SILENCE_S = 30.0
"""Between two pieces of a body."""
_BODY_LIMIT_S = 600.0


class Listener(web.Server):
    """Makes a `Connection` for each client. Handlers are cancelled when their client leaves, else that would go
    unnoticed."""

    def __init__(
        self,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        request_factory: Callable[..., web.BaseRequest],
    ) -> None:
        super().__init__(handler, request_factory=request_factory, handler_cancellation=True)

    def __call__(self) -> Connection:
        return Connection(self, loop=self._loop, access_log=None, keepalive_timeout=KEEP_ALIVE_S)  # type: ignore[arg-type]


class Connection(web.RequestHandler):
    """One client's connection."""

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """What is no HTTP, or not as one may send it: told in JSON, and then the connection ends."""
        if isinstance(exc, HttpProcessingError) or status < 500:
            error: GarraError = BadRequest(f"this is not HTTP as it is spoken here: {_brief(exc, message)}")
        else:
            log.error("a bug in garra", exc_info=exc)
            error = GarraError("a bug in garra: see its log")
        response = render(error)
        response.force_close()
        return response


def _brief(exc: BaseException | None, message: str | None) -> str:
    text = message or (str(exc) if exc is not None else "") or "a bad request"
    return text.strip().splitlines()[0][:200]


async def read_body(request: web.BaseRequest) -> bytes:
    """All of it. Raises HTTPRequestEntityTooLarge, and BadRequest when it stops coming or is not what it says."""
    try:
        async with asyncio.timeout(_BODY_LIMIT_S):
            return await _read_lively(request)
    except TimeoutError:
        raise BadRequest("the request body did not come to its end in time") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise BadRequest(f"the request body cannot be read: {_brief(error, None)}") from None


async def _read_lively(request: web.BaseRequest) -> bytes:
    reading: asyncio.Future[bytes] = asyncio.ensure_future(request.read())
    seen = -1
    try:
        while True:
            done, _ = await asyncio.wait((reading,), timeout=_BODY_SILENCE_S)
            if done:
                return reading.result()
            if (now := request.content.total_bytes) == seen:
                raise TimeoutError
            seen = now
    finally:
        reading.cancel()


def with_limit(loop: asyncio.AbstractEventLoop, limit: Callable[[], int]) -> Callable[..., web.BaseRequest]:
    """Makes requests whose bodies may have so many bytes."""

    def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=limit())

    return make
