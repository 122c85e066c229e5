"""One completion request through: to the engine, and its answer back until the body ends."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

from aiohttp import HttpVersion11, web
from multidict import istr

from garra.apis.endings import is_whole, usage_of
from garra.apis.errors import EngineRefused, error_event
from garra.apis.passages import Passage
from garra.apis.routes import Api, Route
from garra.errors import EngineDied
from garra.ports import Lease
from garra.proxy.answers import JSON
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
from garra.proxy.relay import Collector, Translator, relayed_response
from garra.proxy.upstream import ClientStalled, Upstream, UpstreamGone, UpstreamPool
from garra.proxy.wire import Framing, ResponseHead, WireError, frame
from garra.traffic import Outcome

_CONTENT_TYPE = istr("Content-Type")
_LAST_CHUNK = b"0\r\n\r\n"
_REFUSAL_BYTES = 64 * 1024
_ANSWER_BYTES = 64 * 1024 * 1024
_SHORTENINGS = 4
_LAST_WORD_S = 0.25


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
    if lease.waited.queue_s or lease.waited.load_s:
        told["Server-Timing"] = server_timing(lease.waited)
    try:
        return await _pass_on(call, lease, upstream, head, told)
    finally:
        upstream.finish()


async def _pass_on(
    call: Call, lease: Lease, upstream: Upstream, head: ResponseHead, told: dict[str, bytes]
) -> web.StreamResponse:
    """The answer's way to its client, until the body ends."""
    request, sink = call.request, call.request.transport
    streams = head.framing is not Framing.LENGTH and is_stream(head)
    passage, whole = call.passage(), None
    if passage is not None:
        head, whole = await _in_other_words(call, lease, upstream, head, passage)
    framing = head.framing
    chunked = framing is Framing.CHUNKED and request.version >= HttpVersion11
    closing = not request.keep_alive or not (chunked or framing is Framing.LENGTH)
    relayed = relayed_response(head.status, keep_alive=not closing)
    if sink is None:
        return relayed
    first = _first(call, head, told, chunked=chunked, closing=closing)
    drain, stall_s = request.writer.drain, call.stall_s
    try:
        if passage is None:
            strip = framing is Framing.CHUNKED and not chunked
            ended = await upstream.relay(sink, drain, first=first, strip=strip, stall_s=stall_s)
        elif whole is not None:
            sink.write(first + whole)
            ended = True
        else:
            translator = Translator(sink, passage, first, chunked)
            ended = await upstream.relay(cast(Any, translator), drain, first=b"", strip=True, stall_s=stall_s)
            if ended:
                translator.end()
    except (ClientStalled, ConnectionError):
        sink.abort()
        return relayed
    except BaseException:  # a bug, or the client left: what was sent must not look like a whole answer
        if streams and is_whole(tail := upstream.tail(), call.api):  # it left when it had all it wanted, as Codex does
            lease.ended(_outcome(head.status), usage_of(tail))
        sink.abort()
        raise
    tail = upstream.tail()
    if not ended:
        reason = await lease.death(call.print())
        await _break_off(call, f"the engine died while it answered: {reason}", streams=streams, chunked=chunked)
    elif streams and call.profile.mends.unfinished and not is_whole(tail, call.api):
        lease.mended("unfinished")
        lease.ended(Outcome.FAILED)
        await _break_off(call, "the engine ended its answer without saying why", streams=True, chunked=chunked)
    else:
        if chunked:
            sink.write(_LAST_CHUNK)
        lease.ended(_outcome(head.status), usage_of(tail))
    return relayed


async def _in_other_words(
    call: Call, lease: Lease, upstream: Upstream, head: ResponseHead, passage: Passage
) -> tuple[ResponseHead, bytes | None]:
    """The head of a translated answer, and the answer itself where it is no stream. Raises EngineDied."""
    if call.translation is not None:
        call.request["load_s"] = lease.waited.load_s
    if not is_stream(head):
        whole = passage.whole(await _collected(call, upstream, lease, _ANSWER_BYTES))
        return translated(head, JSON["Content-Type"], len(whole)), whole
    return (translated(head, passage.content_type, None) if call.translation is not None else head), None


def _first(call: Call, head: ResponseHead, told: dict[str, bytes], *, chunked: bool, closing: bool) -> bytes:
    """What comes before the body."""
    if call.begun:
        return as_comments(told, chunked) if call.voice is not Api.OLLAMA else b""
    own = b"X-Request-Id: %b\r\n" % call.id + (as_headers(told) if told else b"")
    return head_bytes(head, chunked, closing) + own + date()


async def _break_off(call: Call, why: str, *, streams: bool, chunked: bool) -> None:
    """End a broken answer so that no client can take it for whole: an error event if it is a stream, then a cut.

    A breath lies between the two: browsers throw away what they have not read yet when a connection breaks. The handler
    waits for it, so that no pipelined request is answered into the open body.
    """
    transport = call.request.transport
    if transport is None or transport.is_closing():
        return
    if streams:
        event = error_event(EngineDied(why, fix="try again"), call.voice)
        transport.write(frame(event) if chunked else event)
    try:
        if streams:
            await asyncio.sleep(_LAST_WORD_S)
    finally:
        transport.close()


async def _ask(call: Call, body: bytes, lease: Lease, pool: UpstreamPool) -> tuple[Upstream, ResponseHead]:
    """The engine's side of one exchange, answered as far as its head. Raises EngineDied."""
    content_type = call.request.headers.get(_CONTENT_TYPE, "application/json")
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
    body = Collector(limit)
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
    collector = Collector(_ANSWER_BYTES)
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


def _outcome(status: int) -> Outcome:
    if status < 400:
        return Outcome.COMPLETE
    if status < 500 or status == HTTPStatus.NOT_IMPLEMENTED:  # it cannot do that: no sign of an engine that is ill
        return Outcome.ERROR
    return Outcome.FAILED
