"""Connections to engines. Body bytes go from `data_received` straight to the client's transport: no await, no task
switch and no decoding per event.

A connection that carried a stream is never used again: the engine closes it without saying so. Others are kept a few
seconds, and a request on a kept one that ends with no byte at all is sent once more on a fresh one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

from garra.proxy.wire import MAX_HEAD_BYTES, BodyReader, Framing, ResponseHead, WireError, body_reader, parse_head

IDLE_LIMIT_S = 4.0  # the engine closes idle connections after 5
IDLE_CONNECTIONS = 32  # each one holds a thread of the engine (55 kB, measured) until it expires
HIGH_WATER_BYTES = 64 * 1024
_TAIL_PIECES = 4
_JOIN_BYTES = 64 * 1024  # below this, copying is cheaper than a second buffer

Drain = Callable[[], Awaitable[None]]


class UpstreamGone(Exception):
    """The engine's side ended, or could not be reached, before a response head came. `untouched`: no byte came."""

    def __init__(self, *, untouched: bool = True) -> None:
        super().__init__()
        self.untouched = untouched


class ClientStalled(Exception):
    """The client read nothing for too long."""


class Upstream(asyncio.Protocol):
    """One connection to an engine, carrying one exchange at a time."""

    def __init__(self, pool: UpstreamPool, socket: Path) -> None:
        self._pool = pool
        self.socket = socket
        self.idle_since = 0.0
        self.n_pieces = 0
        """Pieces of answers that came over this connection: the engine's sign of life."""
        self._transport: asyncio.Transport | None = None
        self._news = asyncio.Event()
        self._last: deque[bytes] = deque(maxlen=_TAIL_PIECES)
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._head: ResponseHead | None = None
        self._head_came: asyncio.Future[ResponseHead] | None = None
        self._reader: BodyReader | None = None
        self._sink: asyncio.WriteTransport | None = None
        self._ended: bool | None = None
        self._congested = False
        self._news.clear()
        self._last.clear()
        self.untouched = True
        """No byte of an answer came."""

    # -- one exchange

    def send(self, request: bytes, body: bytes) -> asyncio.Future[ResponseHead]:
        """Send at once; the response's head, to be waited for however long it takes. Raises UpstreamGone, WireError."""
        self._reset()
        self._head_came = self._pool.loop.create_future()
        if self._transport is None or self._transport.is_closing():
            raise UpstreamGone
        if len(body) < _JOIN_BYTES:
            self._transport.write(request + body)
        else:
            self._transport.writelines((request, body))
        return self._head_came

    async def relay(
        self, sink: asyncio.WriteTransport, drain: Drain, *, first: bytes, strip: bool, stall_s: float
    ) -> bool:
        """Write `first` and pass the body on to `sink`; True when the body ended as it should, False when the engine's
        side broke. `strip` takes the chunk framing off. Raises ClientStalled.
        """
        assert self._head is not None
        self._sink = sink
        self._reader = body_reader(self._head, strip=strip)
        try:
            self._pass_on(self._buffer, first)
        except WireError as error:
            self._break(error)
        if self._transport is None:
            self._lost()
        while self._ended is None:
            await self._news.wait()
            self._news.clear()
            if self._congested:
                await self._wait_for_reader(drain, stall_s)
        return self._ended

    async def _wait_for_reader(self, drain: Drain, stall_s: float) -> None:
        try:
            async with asyncio.timeout(stall_s):
                await drain()
        except TimeoutError:
            raise ClientStalled from None
        self._congested = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def tail(self) -> bytes:
        """The last few pieces of the body: the engine's own account of the answer is in there."""
        return b"".join(self._last)

    def finish(self) -> None:
        """Give the connection back to the pool if it may be used again, else close it."""
        head = self._head
        clean = self._ended is True and head is not None and head.keep_alive and head.framing is Framing.LENGTH
        if clean and head is not None and head.status < 400:
            self._pool.keep(self)
        else:
            self.abort()

    def abort(self) -> None:
        """Close at once: the engine sees that its client left."""
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        try:
            if self._sink is not None:
                self._pass_on(data)
            else:
                self._gather(data)
        except WireError as error:
            self._break(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._pool.forget(self)
        if self._sink is not None:
            self._lost()
        if self._head_came is not None and not self._head_came.done():
            self._head_came.set_exception(UpstreamGone(untouched=self.untouched))

    # -- inside

    def _gather(self, data: bytes) -> None:
        """Bytes that come before `relay`: the head, and perhaps a first part of the body."""
        if self._ended is not None:
            self.abort()  # nobody asked: a kept connection that speaks is of no use
            return
        self.untouched = False
        self.n_pieces += 1
        self._buffer += data
        if self._head is None:
            self._look_for_head()
        elif len(self._buffer) > HIGH_WATER_BYTES:
            self._congest()

    def _look_for_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise WireError("a response head without end")
            return
        head = parse_head(self._buffer[:end])
        self._buffer = self._buffer[end + 4 :]
        if head.status == 100:
            self._look_for_head()
            return
        self._head = head
        if self._head_came is not None and not self._head_came.done():
            self._head_came.set_result(head)

    def _pass_on(self, data: bytes, first: bytes = b"") -> None:
        """The way of every event."""
        reader, sink = self._reader, self._sink
        assert reader is not None
        assert sink is not None
        data = first + reader.feed(data) if first else reader.feed(data)
        if data:
            self.n_pieces += 1
            self._last.append(data)
            sink.write(data)
            if sink.get_write_buffer_size() > HIGH_WATER_BYTES:
                self._congest()
        if reader.ended:
            self._end(True)

    def _lost(self) -> None:
        """The connection is gone, and everything that came over it was passed on."""
        self._end(self._head is not None and self._head.framing is Framing.UNTIL_CLOSE)

    def _congest(self) -> None:
        """The client reads slower than the engine writes: stop reading, let the handler wait for the client."""
        if not self._congested and self._transport is not None:
            self._congested = True
            self._transport.pause_reading()
            self._news.set()

    def _end(self, well: bool) -> None:
        if self._ended is None:
            self._ended = well
            self._sink = None  # whatever still comes is not the client's
            self._news.set()

    def _break(self, error: WireError) -> None:
        self._end(False)
        if self._head_came is not None and not self._head_came.done():
            self._head_came.set_exception(error)
        self.abort()


class UpstreamPool:
    """All connections to all engines: opens, keeps a few, and can close every one to a given engine."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()  # asked once: every look costs a getpid, four per request together
        self._open: dict[Path, set[Upstream]] = {}
        self._idle: dict[Path, list[Upstream]] = {}
        self._closed: set[Path] = set()
        self._past_pieces: dict[Path, int] = {}

    async def exchange(self, socket: Path, request: bytes, body: bytes) -> tuple[Upstream, ResponseHead]:
        """A connection on which `request` was answered with this head. The caller must `finish` or `abort` it.

        Raises UpstreamGone, WireError.
        """
        upstream, kept = self._take(socket), True
        while True:
            if upstream is None:
                upstream, kept = await self._connect(socket), False
            try:
                return upstream, await upstream.send(request, body)
            except BaseException as error:  # also when the client left: the engine must see it at once
                upstream.abort()
                if not (kept and isinstance(error, UpstreamGone) and error.untouched):
                    raise
            upstream = None

    async def _connect(self, socket: Path) -> Upstream:
        try:
            _, upstream = await self.loop.create_unix_connection(lambda: Upstream(self, socket), str(socket))
        except OSError as error:
            raise UpstreamGone from error
        if socket in self._closed:  # the supervisor stopped this engine meanwhile: an open connection would keep it
            upstream.abort()
            raise UpstreamGone
        self._open.setdefault(socket, set()).add(upstream)
        return upstream

    def _take(self, socket: Path) -> Upstream | None:
        idle = self._idle.get(socket)
        now = self.loop.time()
        while idle:
            upstream = idle.pop()
            if now - upstream.idle_since < IDLE_LIMIT_S:
                return upstream
            upstream.abort()
        return None

    def keep(self, upstream: Upstream) -> None:
        """Use this connection again soon."""
        idle = self._idle.setdefault(upstream.socket, [])
        if len(idle) >= IDLE_CONNECTIONS:
            upstream.abort()
            return
        upstream.idle_since = self.loop.time()
        idle.append(upstream)

    def forget(self, upstream: Upstream) -> None:
        """The connection is closed."""
        self._past_pieces[upstream.socket] = self._past_pieces.get(upstream.socket, 0) + upstream.n_pieces
        self._open.get(upstream.socket, set()).discard(upstream)
        idle = self._idle.get(upstream.socket, [])
        if upstream in idle:
            idle.remove(upstream)

    def close(self, socket: Path) -> None:
        """Abort every connection to this engine, now and in future (the `Connections` port)."""
        self._closed.add(socket)
        for upstream in list(self._open.pop(socket, ())):
            upstream.abort()
        self._idle.pop(socket, None)

    def activity(self, socket: Path) -> int:
        """Pieces of answers that came from this engine so far."""
        return self._past_pieces.get(socket, 0) + sum(upstream.n_pieces for upstream in self._open.get(socket, ()))

    def close_all(self) -> None:
        """Abort everything."""
        for socket in list(self._open):
            self.close(socket)

    def n_open(self, socket: Path) -> int:
        """Open connections to this engine, idle ones included."""
        return len(self._open.get(socket, ()))
