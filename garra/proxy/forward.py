"""One completion request through: to the engine, and its answer back until the body ends."""

from __future__ import annotations

from aiohttp import HttpVersion11, web

from garra.errors import EngineDied
from garra.ports import Lease
from garra.proxy.route import error_event
from garra.proxy.upstream import ClientStalled, UpstreamGone, UpstreamPool
from garra.proxy.wire import Framing, ResponseHead, WireError, frame

# Hop by hop, or garra's own to say.
_DROPPED = frozenset(
    "connection keep-alive proxy-connection transfer-encoding content-length te trailer upgrade server date".split()
)


async def forward(
    request: web.Request, body: bytes, lease: Lease, pool: UpstreamPool, *, stall_s: float
) -> web.StreamResponse:
    """The engine's answer, passed on byte by byte. Raises EngineDied while nothing was sent yet."""
    try:
        upstream, head = await pool.exchange(lease.socket, _request_head(request, len(body)), body)
    except (UpstreamGone, WireError) as error:
        reason = str(error) if isinstance(error, WireError) else await lease.death()
        raise EngineDied(f"the engine died before it answered: {reason}", fix="try again") from None
    try:
        response = _response(request, head)
        writer = await response.prepare(request)
        sink = request.transport
        if writer is None or sink is None:
            return response
        strip = head.framing is Framing.CHUNKED and not response.chunked
        try:
            ended = await upstream.relay(sink, writer.drain, strip=strip, stall_s=stall_s)
        except (ClientStalled, ConnectionError):
            sink.abort()
            return response
        if ended:
            await response.write_eof()
            if head.status == 200:
                lease.completed()
        else:
            await _tell_of_death(request, response, lease)
        return response
    finally:
        upstream.finish()


def _request_head(request: web.Request, length: int) -> bytes:
    """Only what the engine needs: credentials, cookies and browser headers stay here."""
    content_type = request.headers.get("Content-Type", "application/json")
    return (
        f"{request.method} {request.path} HTTP/1.1\r\nHost: engine\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("latin-1", "replace")


def _response(request: web.Request, head: ResponseHead) -> web.StreamResponse:
    response = web.StreamResponse(status=head.status)
    headers = response.headers
    for name, value in head.headers.items():
        if name not in _DROPPED and not name.startswith("access-control-"):
            headers[name] = value
    if head.headers.get("content-type", "").startswith("text/event-stream"):
        headers["Cache-Control"] = "no-store"
        headers["X-Accel-Buffering"] = "no"
    if head.framing is Framing.LENGTH:
        response.content_length = head.length
    elif request.version >= HttpVersion11:
        response.enable_chunked_encoding()
    else:
        response.force_close()
    return response


async def _tell_of_death(request: web.Request, response: web.StreamResponse, lease: Lease) -> None:
    """End a broken stream so that no client can take it for whole: an error event if it is one, then a cut."""
    reason = await lease.death()
    transport = request.transport
    if transport is None or transport.is_closing():
        return
    if response.content_type == "text/event-stream":
        event = error_event(EngineDied(f"the engine died while it answered: {reason}", fix="try again"))
        transport.write(frame(event) if response.chunked else event)
    transport.close()
