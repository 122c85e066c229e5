"""The data path against scripted engines on real Unix sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from garra.proxy.upstream import HIGH_WATER_BYTES, ClientStalled, UpstreamGone, UpstreamPool
from garra.proxy.wire import frame

REQUEST = b"POST /x HTTP/1.1\r\nHost: engine\r\nContent-Length: 2\r\n\r\n"
STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Sink:
    """A client's transport that remembers; `full` says how much it has not sent yet."""

    def __init__(self) -> None:
        self.written = b""
        self.full = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.full


class Engine:
    """Runs one script per connection and counts them."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await self.script(reader, writer)
        writer.close()


@contextlib.asynccontextmanager
async def engine(folder: Path, script: Script) -> AsyncIterator[tuple[Engine, UpstreamPool, Path]]:
    path = folder / "e.sock"
    served = Engine(script)
    pool = UpstreamPool()
    server = await asyncio.start_unix_server(served.serve, str(path))
    try:
        yield served, pool, path
    finally:
        pool.close_all()
        server.close()
        async with asyncio.timeout(10):  # every script ends when its client is gone
            await asyncio.gather(*served.tasks)


async def read_request(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")
    await reader.readexactly(2)


async def never() -> None:
    await asyncio.get_running_loop().create_future()


async def exchange(pool: UpstreamPool, path: Path, sink: Sink, drain: Callable[[], Awaitable[None]] = never) -> bool:
    upstream, _ = await pool.exchange(path, REQUEST, b"{}")
    try:
        return await upstream.relay(sink, drain, first=b"", strip=False, stall_s=0.05)  # type: ignore[arg-type]
    finally:
        upstream.finish()


async def test_plain_answers_share_a_connection(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(PLAIN)

    async with engine(private_folders, script) as (served, pool, path):
        for _ in range(5):
            sink = Sink()
            assert await exchange(pool, path, sink)
            assert sink.written == b"hello"
        assert served.connections == 1


async def test_a_connection_that_streamed_is_never_used_again(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            writer.write(STREAM + frame(b"data: 1\n\n") + b"0\r\n\r\n")

    async with engine(private_folders, script) as (served, pool, path):
        for _ in range(3):
            sink = Sink()
            assert await exchange(pool, path, sink)
            assert sink.written == frame(b"data: 1\n\n"), "the terminal chunk is the server's to write"
        assert served.connections == 3


async def test_a_kept_connection_that_was_closed_is_replaced(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(PLAIN)
        await reader.read(1)  # the next request comes, and is answered by closing

    async with engine(private_folders, script) as (served, pool, path):
        for _ in range(4):
            assert await exchange(pool, path, Sink())
        assert served.connections == 4


async def test_a_fresh_connection_is_not_tried_twice(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)

    async with engine(private_folders, script) as (served, pool, path):
        with pytest.raises(UpstreamGone):
            await pool.exchange(path, REQUEST, b"{}")
        assert served.connections == 1
        assert pool.n_open(path) == 0


async def test_nobody_there(private_folders: Path) -> None:
    pool = UpstreamPool()
    with pytest.raises(UpstreamGone):
        await pool.exchange(private_folders / "none.sock", REQUEST, b"{}")


async def test_an_engine_that_dies_mid_chunk_leaves_whole_chunks(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + frame(b"data: 1\n\n") + b"9\r\ndata:")

    async with engine(private_folders, script) as (_, pool, path):
        sink = Sink()
        assert not await exchange(pool, path, sink)
        assert sink.written == frame(b"data: 1\n\n")


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
    ],
)
async def test_garbage_for_a_head_is_an_error(private_folders: Path, garbage: bytes) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(garbage)
        await reader.read(1)

    async with engine(private_folders, script) as (_, pool, path):
        with pytest.raises(ValueError):
            await pool.exchange(path, REQUEST, b"{}")


async def test_garbage_for_a_chunk_breaks_the_stream(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + frame(b"data: 1\n\n") + b"zz\r\n")
        await reader.read(1)

    async with engine(private_folders, script) as (_, pool, path):
        assert not await exchange(pool, path, Sink())


async def test_head_and_body_in_any_pieces(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        for byte in STREAM + frame(b"data: 1\n\n") + frame(b"data: 2\n\n") + b"0\r\n\r\n":
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)

    async with engine(private_folders, script) as (_, pool, path):
        sink = Sink()
        assert await exchange(pool, path, sink)
        assert sink.written == frame(b"data: 1\n\n") + frame(b"data: 2\n\n")


async def test_a_stream_that_is_over_before_it_is_relayed_is_whole(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + frame(b"data: 1\n\n") + b"0\r\n\r\n")

    async with engine(private_folders, script) as (_, pool, path):
        upstream, _ = await pool.exchange(path, REQUEST, b"{}")
        async with asyncio.timeout(10):
            while pool.n_open(path):  # noqa: ASYNC110 - the other side's close is what is waited for
                await asyncio.sleep(0)
        sink = Sink()
        assert await upstream.relay(sink, never, first=b"head ", strip=False, stall_s=1)  # type: ignore[arg-type]
        assert sink.written == b"head " + frame(b"data: 1\n\n")


async def test_bytes_after_the_end_are_not_passed_on(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + frame(b"data: 1\n\n") + b"0\r\n\r\n")
        await writer.drain()
        writer.write(frame(b"data: 2\n\n"))
        await reader.read(1)

    async with engine(private_folders, script) as (_, pool, path):
        sink = Sink()
        assert await exchange(pool, path, sink)
        await asyncio.sleep(0)
        assert sink.written == frame(b"data: 1\n\n")


async def test_a_slow_reader_stops_the_engine_and_is_waited_for(private_folders: Path) -> None:
    n_chunks = 2_000
    chunk = frame(b"data: " + b"x" * 8_000 + b"\n\n")
    sent = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await read_request(reader)
        writer.write(STREAM)
        for _ in range(n_chunks):
            writer.write(chunk)
            await writer.drain()
            sent += 1
        writer.write(b"0\r\n\r\n")
        await writer.drain()

    async with engine(private_folders, script) as (_, pool, path):
        sink = Sink()
        sink.full = HIGH_WATER_BYTES + 1
        waits = 0

        async def drain() -> None:
            nonlocal waits
            waits += 1
            assert len(sink.written) < 2 * 1024 * 1024 + waits * 256 * 1024, "the engine was not held back"

        assert await exchange(pool, path, sink, drain)
        assert waits > 10
        assert sink.written == chunk * n_chunks


async def test_a_reader_that_never_reads_is_dropped(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + frame(b"data: 1\n\n"))
        await reader.read(1)

    async with engine(private_folders, script) as (_, pool, path):
        sink = Sink()
        sink.full = HIGH_WATER_BYTES + 1
        with pytest.raises(ClientStalled):
            await exchange(pool, path, sink)
        await asyncio.sleep(0)
        assert pool.n_open(path) == 0


async def test_a_cancelled_request_closes_its_connection(private_folders: Path) -> None:
    arrived, left = asyncio.Event(), asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        arrived.set()
        await reader.read(1)
        left.set()

    async with engine(private_folders, script) as (_, pool, path):
        waiting = asyncio.ensure_future(pool.exchange(path, REQUEST, b"{}"))
        await arrived.wait()
        waiting.cancel()
        await asyncio.wait_for(left.wait(), 5)
        assert pool.n_open(path) == 0


async def test_an_engine_that_was_closed_takes_no_new_connection(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    async with engine(private_folders, script) as (served, pool, path):
        connecting = asyncio.ensure_future(pool.exchange(path, REQUEST, b"{}"))
        await asyncio.sleep(0)
        pool.close(path)
        with pytest.raises(UpstreamGone):
            await connecting
        assert pool.n_open(path) == 0
        async with asyncio.timeout(10):
            while not served.connections:  # noqa: ASYNC110 - the server's accept comes late
                await asyncio.sleep(0)


async def test_close_ends_every_exchange_with_this_engine(private_folders: Path) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(STREAM + frame(b"data: 1\n\n"))
        await reader.read(1)

    async with engine(private_folders, script) as (_, pool, path):
        upstream, _ = await pool.exchange(path, REQUEST, b"{}")
        running = asyncio.ensure_future(upstream.relay(Sink(), never, first=b"", strip=False, stall_s=1))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        pool.close(path)
        assert await running is False
        assert pool.n_open(path) == 0
