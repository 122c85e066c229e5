"""A streaming client that waits is kept awake: comments first, an empty event of its API where it ignores those.

Until `grace_s` is over nothing is written: the status line can still tell the truth. Nothing here is a byte of the
answer, so the request may still be tried again, or fail as an event inside the stream.
"""

from __future__ import annotations

import asyncio
import email.utils

from aiohttp import HttpVersion11, web

from garra.apis.errors import error_event
from garra.apis.routes import Api
from garra.apis.signs import comment, content_type, heartbeat
from garra.errors import GarraError
from garra.ports import Hold
from garra.proxy.wire import frame

_COMMENT_EVERY_S = 5.0


class Patience:
    """The time from a streaming request to the first byte of its answer. `stop` it when that comes."""

    def __init__(
        self, request: web.BaseRequest, api: Api, model: str, headers: bytes, *, grace_s: float, heartbeat_s: float
    ) -> None:
        self._request = request
        self._api = api
        self._model = model
        self._headers = headers
        self._hold: Hold | None = None
        self._every_s = min(_COMMENT_EVERY_S, grace_s)
        self._heartbeat_s = heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._next_heartbeat = self._loop.time() + heartbeat_s
        self._chunked = request.version >= HttpVersion11
        self.begun = False
        """The response head is out: errors can only be events."""
        self._timer = self._loop.call_later(grace_s, self._beat)

    def watch(self, hold: Hold) -> None:
        """This is what is waited for now."""
        self._hold = hold

    def stop(self) -> None:
        self._timer.cancel()

    def fail(self, error: GarraError) -> None:
        """Tell it inside the stream, then cut: no client may take it for whole."""
        self.stop()
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            self._write(error_event(error, self._api))
            transport.close()

    def _beat(self) -> None:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            return
        if not self.begun:
            self.begun = True
            transport.write(_head(self._chunked, content_type(self._api), self._headers))
        if self._hold is not None:
            self._write(comment(self._hold.news(), self._api))
        if self._loop.time() >= self._next_heartbeat:
            self._next_heartbeat += self._heartbeat_s
            self._write(heartbeat(self._api, self._model))
        self._timer = self._loop.call_later(self._every_s, self._beat)

    def _write(self, event: bytes) -> None:
        if event and (transport := self._request.transport) is not None:
            transport.write(frame(event) if self._chunked else event)


def _head(chunked: bool, content_type: str, headers: bytes) -> bytes:
    lines = ["HTTP/1.1 200 OK", f"Content-Type: {content_type}", "Cache-Control: no-store", "X-Accel-Buffering: no"]
    lines.append("Transfer-Encoding: chunked" if chunked else "Connection: close")
    lines.append(f"Date: {email.utils.formatdate(usegmt=True)}")
    return "\r\n".join([*lines, ""]).encode("ascii") + headers + b"\r\n"
