"""One completion request through: to the engine, and its answer back until the body ends."""

from __future__ import annotations

import email.utils
import functools
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, cast

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from garra.errors import EngineDied
from garra.ports import Lease
from garra.proxy.overflow import excess_of, shortened
from garra.proxy.patience import Patience
from garra.proxy.route import COUNTING, fingerprint, without_drafts
from garra.proxy.shapes import Api, EngineRefused, error_event, usage_of
from garra.proxy.upstream import ClientStalled, Upstream, UpstreamGone, UpstreamPool
from garra.proxy.wire import Framing, ResponseHead, WireError, frame
from garra.traffic import Outcome, Waited

# Hop by hop, or garra's own to say.
_DROPPED = frozenset(
    "connection keep-alive proxy-connection transfer-encoding content-length te trailer upgrade server date".split()
)
_LAST_CHUNK = b"0\r\n\r\n"
_REFUSAL_BYTES = 64 * 1024
_SHORTENINGS = 4
_COMMENTS = {"Server-Timing": b"timing", "X-Garra-Truncated": b"truncated"}


class Call(NamedTuple):
    """One completion request: what it asks and what its client was told meanwhile."""

    request: web.BaseRequest
    api: Api
    body: bytes
    patience: Patience | None
    """For streams."""
    stall_s: float
    id: bytes = b""
    may_shorten: bool = False
    """A conversation that outgrew its slot is asked again without its middle."""

    @property
    def begun(self) -> bool:
        """The client has a response head already, of an event stream."""
        return self.patience is not None and self.patience.begun

    def print(self) -> bytes:
        """The request's fingerprint."""
        return fingerprint(self.request.path, self.body)


async def forward(call: Call, lease: Lease, pool: UpstreamPool) -> web.StreamResponse:
    """The engine's answer, passed on byte by byte. Raises EngineDied while no byte of an answer was sent."""
    request = call.request
    body = call.body if lease.drafts or request.path in COUNTING else without_drafts(call.body)
    upstream, head = await _ask(call, body, lease, pool)
    lease.began()
    told: dict[str, bytes] = {}
    if head.status == HTTPStatus.BAD_REQUEST and call.may_shorten:
        upstream, head, told["X-Garra-Truncated"] = await _ask_for_less(call, body, upstream, lease, pool)
    if call.patience is not None:
        call.patience.stop()
    try:
        if call.begun and not _is_stream(head):
            await _refused_late(call, head, upstream, lease)
        sink, modern = request.transport, request.version >= HttpVersion11
        chunked = modern and head.framing is Framing.CHUNKED
        closing = not request.keep_alive or not (chunked or head.framing is Framing.LENGTH)
        relayed = relayed_response(head.status, keep_alive=not closing)
        if sink is None:
            return relayed
        if lease.waited.queue_s or lease.waited.load_s:
            told["Server-Timing"] = _server_timing(lease.waited)
        if call.begun:
            first = _as_comments(told, chunked)
        else:
            own = b"X-Request-Id: %b\r\n" % call.id + (_as_headers(told) if told else b"")
            first = _head_bytes(head, chunked, closing) + own + _date()
        strip = head.framing is Framing.CHUNKED and not chunked
        try:
            ended = await upstream.relay(sink, request.writer.drain, first=first, strip=strip, stall_s=call.stall_s)
        except (ClientStalled, ConnectionError):
            sink.abort()
            return relayed
        except BaseException:  # a bug, or the client left: what was sent must not look like a whole answer
            sink.abort()
            raise
        if not ended:
            await _tell_of_death(call, head, lease, chunked)
            return relayed
        if chunked:
            sink.write(_LAST_CHUNK)
        lease.ended(_outcome(head.status), usage_of(upstream.tail()))
        return relayed
    finally:
        upstream.finish()


async def _ask(call: Call, body: bytes, lease: Lease, pool: UpstreamPool) -> tuple[Upstream, ResponseHead]:
    """The engine's side of one exchange, answered as far as its head. Raises EngineDied."""
    try:
        return await pool.exchange(lease.socket, _request_head(call.request, len(body)), body)
    except (UpstreamGone, WireError) as error:
        if isinstance(error, WireError):
            lease.ended(Outcome.FAILED)
            reason, untouched = str(error), False
        else:
            reason, untouched = await lease.death(call.print()), error.untouched
        raise EngineDied(
            f"the engine died before it answered: {reason}", fix="try again", untouched=untouched
        ) from None


async def _ask_for_less(
    call: Call, body: bytes, upstream: Upstream, lease: Lease, pool: UpstreamPool
) -> tuple[Upstream, ResponseHead, bytes]:
    """The same without its middle, where the engine refused it for its length; and what was left out.

    Raises EngineDied, and EngineRefused where it was something else, or nothing more can be left out.
    """
    n_messages = n_chars = 0
    for _ in range(_SHORTENINGS):
        try:
            refusal = await _collected(call, upstream, lease)
        finally:
            upstream.finish()
        excess = excess_of(refusal)
        shorter = shortened(body, excess) if excess is not None else None
        if shorter is None:
            break
        body = shorter.body
        n_messages, n_chars = n_messages + shorter.n_messages, n_chars + shorter.n_chars
        upstream, head = await _ask(call, body, lease, pool)
        if head.status != HTTPStatus.BAD_REQUEST:
            lease.shortened()
            return upstream, head, b"messages=%d, characters=%d" % (n_messages, n_chars)
    lease.ended(Outcome.ERROR)
    raise EngineRefused(HTTPStatus.BAD_REQUEST, refusal)


async def _refused_late(call: Call, head: ResponseHead, upstream: Upstream, lease: Lease) -> None:
    """An error in place of a stream whose head is out already becomes an event of that stream."""
    body = await _collected(call, upstream, lease)
    lease.ended(_outcome(head.status))
    raise EngineRefused(head.status, body)


async def _collected(call: Call, upstream: Upstream, lease: Lease) -> bytes:
    """The body of a short answer. Raises EngineDied when it breaks off."""
    body = _Collector()
    if not await upstream.relay(cast(Any, body), body.drain, first=b"", strip=True, stall_s=call.stall_s):
        reason = await lease.death(call.print())
        raise EngineDied(f"the engine died before it answered: {reason}", fix="try again")
    return bytes(body.content)


class _Collector:
    """Takes a small body in place of a client."""

    def __init__(self) -> None:
        self.content = bytearray()

    def write(self, data: bytes) -> None:
        self.content += data[: _REFUSAL_BYTES - len(self.content)]

    def get_write_buffer_size(self) -> int:
        return 0

    async def drain(self) -> None:
        return None


def _is_stream(head: ResponseHead) -> bool:
    return head.status == HTTPStatus.OK and head.headers.get("content-type", "").startswith("text/event-stream")


def _outcome(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETE
    return Outcome.ERROR if status < 500 else Outcome.FAILED


class Relayed(web.StreamResponse):
    """A response that is on its way already: aiohttp learns only whether the connection may be used again.

    Its own writing of heads costs more than all the rest of a short answer's way (measured: 15 of 60 us). It holds
    nothing of a request, so that equal ones are one object.
    """

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        self._reusable = keep_alive

    @property
    def keep_alive(self) -> bool:
        return self._reusable

    @property
    def prepared(self) -> bool:
        return True

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        return None


@functools.lru_cache(maxsize=64)
def relayed_response(status: int, *, keep_alive: bool) -> Relayed:
    """The response of this kind."""
    return Relayed(status, keep_alive=keep_alive)


def _request_head(request: web.BaseRequest, length: int) -> bytes:
    """Only what the engine needs: credentials, cookies and browser headers stay here."""
    content_type = request.headers.get("Content-Type", "application/json")
    return (
        f"{request.method} {request.path} HTTP/1.1\r\nHost: engine\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {length}\r\n\r\n"
    ).encode("latin-1", "replace")


@functools.lru_cache(maxsize=256)
def _head_bytes(head: ResponseHead, chunked: bool, closing: bool) -> bytes:
    """The head for the client, all but its date and the empty line."""
    lines = [f"HTTP/1.1 {head.status} {_phrase(head.status)}"]
    lines += [
        f"{name.title()}: {value}"
        for name, value in head.headers.items()
        if name not in _DROPPED and not name.startswith("access-control-")
    ]
    if head.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line for line in lines if not line.startswith(("Cache-Control:", "X-Accel-Buffering:"))]
        lines += ["Cache-Control: no-store", "X-Accel-Buffering: no"]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif head.framing is Framing.LENGTH:
        lines.append(f"Content-Length: {head.length}")
    if closing:
        lines.append("Connection: close")
    return "\r\n".join([*lines, ""]).encode("latin-1", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def _server_timing(waited: Waited) -> bytes:
    """The parts of the wait in milliseconds, as browsers and `garra bench` read them."""
    return b"queue;dur=%.1f, load;dur=%.1f" % (waited.queue_s * 1e3, waited.load_s * 1e3)


def _as_headers(told: Mapping[str, bytes]) -> bytes:
    return b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in told.items())


def _as_comments(told: Mapping[str, bytes], chunked: bool) -> bytes:
    """The same for a client whose headers are out already."""
    said = b"".join(b": garra %b %b\n\n" % (_COMMENTS[name], value) for name, value in told.items())
    return frame(said) if said and chunked else said


def _date() -> bytes:
    return _date_of(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    """The date header and the empty line that ends the head, made once a second."""
    return f"Date: {email.utils.formatdate(usegmt=True)}\r\n\r\n".encode("ascii")


async def _tell_of_death(call: Call, head: ResponseHead, lease: Lease, chunked: bool) -> None:
    """End a broken stream so that no client can take it for whole: an error event if it is one, then a cut."""
    reason = await lease.death(call.print())
    transport = call.request.transport
    if transport is None or transport.is_closing():
        return
    if _is_stream(head):
        event = error_event(EngineDied(f"the engine died while it answered: {reason}", fix="try again"), call.api)
        transport.write(frame(event) if chunked else event)
    transport.close()
