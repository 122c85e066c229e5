"""One completion request through: to the engine, and its answer back until the body ends."""

from __future__ import annotations

import functools
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from garra.apis.endings import is_whole, usage_of
from garra.apis.errors import EngineRefused, error_event
from garra.apis.passages import Passage
from garra.apis.routes import Api, Route
from garra.errors import EngineDied, GarraError
from garra.ports import Lease
from garra.proxy.call import Call
from garra.proxy.head import (
    as_comments,
    as_headers,
    date,
    head_bytes,
    is_stream,
    request_head,
    server_timing,
    translated,
)
from garra.proxy.overflow import excess_of, shortened
from garra.proxy.upstream import ClientStalled, Upstream, UpstreamGone, UpstreamPool
from garra.proxy.wire import Framing, ResponseHead, WireError, frame
from garra.traffic import Outcome

_LAST_CHUNK = b"0\r\n\r\n"
_REFUSAL_BYTES = 64 * 1024
_ANSWER_BYTES = 64 * 1024 * 1024
_SHORTENINGS = 4


async def forward(call: Call, lease: Lease, pool: UpstreamPool) -> web.StreamResponse:
    """The engine's answer, passed on byte by byte. Raises EngineDied while no byte of an answer was sent, EngineRefused
    for an error of the engine's, BadRequest."""
    body, mended = call.prepared(lease)
    body = call.with_hints(body, lease)
    told = dict(call.told)
    if mended:
        told["X-Garra-Mended"] = ", ".join(mended).encode("ascii", "replace")
        for name in mended:
            lease.mended(name)
    upstream, head = await _ask(call, body, lease, pool)
    lease.began()
    if head.status >= HTTPStatus.BAD_REQUEST:
        upstream, head, body = await _refused(call, body, head, upstream, lease, pool, told)
    if call.patience is not None:
        call.patience.stop()
    if call.translation is not None:
        call.request["load_s"] = lease.waited.load_s
    try:
        if lease.waited.queue_s or lease.waited.load_s:
            told["Server-Timing"] = server_timing(lease.waited)
        return await _Answer(call, lease, upstream, head, told).pass_on()
    finally:
        upstream.finish()


async def _ask(call: Call, body: bytes, lease: Lease, pool: UpstreamPool) -> tuple[Upstream, ResponseHead]:
    """The engine's side of one exchange, answered as far as its head. Raises EngineDied."""
    content_type = call.request.headers.get("Content-Type", "application/json")
    try:
        head = request_head(call.route.method, call.route.path, content_type, len(body))
        return await pool.exchange(lease.socket, head, body)
    except (UpstreamGone, WireError) as error:
        if isinstance(error, WireError):
            lease.ended(Outcome.FAILED)
            reason, untouched = str(error), False
        else:
            reason, untouched = await lease.death(call.print()), error.untouched
        raise EngineDied(
            f"the engine died before it answered: {reason}", fix="try again", untouched=untouched
        ) from None


async def _refused(
    call: Call,
    body: bytes,
    head: ResponseHead,
    upstream: Upstream,
    lease: Lease,
    pool: UpstreamPool,
    told: dict[str, bytes],
) -> tuple[Upstream, ResponseHead, bytes]:
    """The engine said no. Where it was for the length, and the profile allows it, the same is asked without its middle.

    Raises EngineDied, and EngineRefused where it was something else, or nothing more can be left out.
    """
    n_messages = n_chars = 0
    for _ in range(_SHORTENINGS):
        try:
            refusal = await _collected(call, upstream, lease, _REFUSAL_BYTES)
        finally:
            upstream.finish()
        if head.status != HTTPStatus.BAD_REQUEST or call.profile.overflow != "truncate_middle":
            break
        excess = excess_of(refusal)
        shorter = shortened(body, excess) if excess is not None else None
        if shorter is None:
            break
        body = shorter.body
        n_messages, n_chars = n_messages + shorter.n_messages, n_chars + shorter.n_chars
        upstream, head = await _ask(call, body, lease, pool)
        if head.status < HTTPStatus.BAD_REQUEST:
            lease.shortened()
            told["X-Garra-Truncated"] = b"messages=%d, characters=%d" % (n_messages, n_chars)
            return upstream, head, body
    error = EngineRefused(head.status, refusal, template_errors=call.profile.mends.template_errors)
    if error.of_template:
        lease.mended("template_errors")
    lease.ended(_outcome(error.http_status))
    raise error


async def _collected(call: Call, upstream: Upstream, lease: Lease, limit: int) -> bytes:
    """A body that is no stream. Raises EngineDied when it breaks off."""
    body = _Collector(limit)
    if not await upstream.relay(cast(Any, body), body.drain, first=b"", strip=True, stall_s=call.stall_s):
        reason = await lease.death(call.print())
        raise EngineDied(f"the engine died before it answered: {reason}", fix="try again")
    return bytes(body.content)


async def collect(call: Call, lease: Lease, pool: UpstreamPool) -> bytes:
    """The engine's answer in one piece. Raises EngineDied, EngineRefused, BadRequest."""
    body, _ = call.prepared(lease)
    upstream, head = await _ask(call, body, lease, pool)
    lease.began()
    if head.status >= HTTPStatus.BAD_REQUEST:
        upstream, head, _ = await _refused(call, body, head, upstream, lease, pool, {})
    try:
        answer = await _collected(call, upstream, lease, _ANSWER_BYTES)
    finally:
        upstream.finish()
    lease.ended(_outcome(head.status), usage_of(upstream.tail()))
    return answer


async def glance(pool: UpstreamPool, socket: Path, route: Route, body: bytes, stall_s: float) -> bytes:
    """A short answer of an engine, asked past its queue. Raises EngineDied, EngineRefused."""
    collector = _Collector(_ANSWER_BYTES)
    head = request_head(route.method, route.path, "application/json", len(body))
    try:
        upstream, answer = await pool.exchange(socket, head, body)
    except (UpstreamGone, WireError):
        raise EngineDied("the engine does not answer", fix="try again") from None
    try:
        whole = await upstream.relay(cast(Any, collector), collector.drain, first=b"", strip=True, stall_s=stall_s)
    finally:
        upstream.finish()
    if not whole:
        raise EngineDied("the engine does not answer", fix="try again")
    if answer.status >= HTTPStatus.BAD_REQUEST:
        raise EngineRefused(answer.status, bytes(collector.content))
    return bytes(collector.content)


class _Collector:
    """Takes a body in place of a client."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.content = bytearray()

    def write(self, data: bytes) -> None:
        self.content += data[: self._limit - len(self.content)]

    def get_write_buffer_size(self) -> int:
        return 0

    async def drain(self) -> None:
        return None


class _Translator:
    """Stands before a client's transport and says everything in the client's words."""

    def __init__(self, sink: Any, passage: Passage, chunked: bool) -> None:
        self._sink = sink
        self._passage = passage
        self._chunked = chunked

    def write(self, data: bytes) -> None:
        if said := self._passage.feed(data):
            self._sink.write(frame(said) if self._chunked else said)

    def get_write_buffer_size(self) -> int:
        return int(self._sink.get_write_buffer_size())


class _Answer:
    """An answer on its way to its client."""

    def __init__(
        self, call: Call, lease: Lease, upstream: Upstream, head: ResponseHead, told: dict[str, bytes]
    ) -> None:
        self._call = call
        self._lease = lease
        self._upstream = upstream
        self._head = head
        self._told = told
        self._streams = is_stream(head)
        self._passage = call.passage()

    async def pass_on(self) -> web.StreamResponse:
        """All of it, until the body ends."""
        request = self._call.request
        sink, modern = request.transport, request.version >= HttpVersion11
        whole: bytes | None = None
        if self._passage is not None and not self._streams:
            whole = self._passage.whole(await _collected(self._call, self._upstream, self._lease, _ANSWER_BYTES))
            content_type = "application/json"
            self._head = translated(self._head, content_type, len(whole))
        elif self._call.translation is not None:
            self._head = translated(self._head, self._call.translation.content_type, None)
        framing = self._head.framing
        chunked = modern and framing is Framing.CHUNKED
        closing = not request.keep_alive or not (chunked or framing is Framing.LENGTH)
        relayed = relayed_response(self._head.status, keep_alive=not closing)
        if sink is None:
            return relayed
        first = self._first(chunked, closing)
        try:
            ended = await self._relay(sink, first, whole, chunked)
        except (ClientStalled, ConnectionError):
            sink.abort()
            return relayed
        except BaseException:  # a bug, or the client left: what was sent must not look like a whole answer
            sink.abort()
            raise
        tail = self._upstream.tail()
        if not ended:
            await self._tell_of_death(chunked)
            return relayed
        if self._streams and self._call.profile.mends.unfinished and not is_whole(tail, self._call.api):
            self._lease.mended("unfinished")
            self._lease.ended(Outcome.FAILED)
            self._break_off(EngineDied("the engine ended its answer without saying why", fix="try again"), chunked)
            return relayed
        if chunked:
            sink.write(_LAST_CHUNK)
        self._lease.ended(_outcome(self._head.status), usage_of(tail))
        return relayed

    def _first(self, chunked: bool, closing: bool) -> bytes:
        """What comes before the body."""
        if self._call.begun:
            return as_comments(self._told, chunked) if self._call.voice is not Api.OLLAMA else b""
        own = b"X-Request-Id: %b\r\n" % self._call.id + (as_headers(self._told) if self._told else b"")
        build = head_bytes if self._passage is None else head_bytes.__wrapped__  # those differ from answer to answer
        return build(self._head, chunked, closing) + own + date()

    async def _relay(self, sink: Any, first: bytes, whole: bytes | None, chunked: bool) -> bool:
        drain, stall_s = self._call.request.writer.drain, self._call.stall_s
        if whole is not None:
            sink.write(first + whole)
            return True
        if self._passage is None or not self._streams:
            strip = self._head.framing is Framing.CHUNKED and not chunked
            return await self._upstream.relay(sink, drain, first=first, strip=strip, stall_s=stall_s)
        if first:
            sink.write(first)
        translator = _Translator(sink, self._passage, chunked)
        ended = await self._upstream.relay(cast(Any, translator), drain, first=b"", strip=True, stall_s=stall_s)
        if ended and (rest := self._passage.end()):
            sink.write(frame(rest) if chunked else rest)
        return ended

    async def _tell_of_death(self, chunked: bool) -> None:
        """End a broken stream so that no client can take it for whole: an error event if it is one, then a cut."""
        reason = await self._lease.death(self._call.print())
        self._break_off(EngineDied(f"the engine died while it answered: {reason}", fix="try again"), chunked)

    def _break_off(self, error: GarraError, chunked: bool) -> None:
        transport = self._call.request.transport
        if transport is None or transport.is_closing():
            return
        if self._streams:
            event = error_event(error, self._call.voice)
            transport.write(frame(event) if chunked else event)
        transport.close()


def _outcome(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETE
    if status < 500 or status == HTTPStatus.NOT_IMPLEMENTED:  # it cannot do that: no sign of an engine that is ill
        return Outcome.ERROR
    return Outcome.FAILED


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
