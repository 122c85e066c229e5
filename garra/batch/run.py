"""A batch from its first request to its last answer: several servers, retries, one line per request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec

from garra.batch import lines
from garra.batch.files import Output
from garra.batch.lines import Asked
from garra.batch.window import Window
from garra.errors import EngineDown, GarraError

_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=1800)
_QUICK = aiohttp.ClientTimeout(total=10)
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)
_BUSY = (408, 425, 429, 503, 504)
"""Later, here or elsewhere."""
_TRIES = 5
"""Of a request that a server breaks at, or answers with a 5xx."""
_LONGEST_WAIT_S = 60.0
_SYNC_S = 5.0


class _Tokens(msgspec.Struct):
    completion_tokens: int = 0
    output_tokens: int = 0


class _Counted(msgspec.Struct):
    usage: _Tokens | None = None


@dataclass(slots=True)
class Server:
    """One server and what it is given."""

    url: str
    window: Window
    in_flight: int = 0
    n_answered: int = 0
    down_since: float | None = None


@dataclass(slots=True)
class Progress:
    """How far it is."""

    n_total: int
    n_before: int
    """Answered by earlier runs."""
    n_ok: int = 0
    n_failed: int = 0
    n_retries: int = 0
    n_tokens: int = 0
    servers: list[Server] = field(default_factory=list)

    @property
    def n_done(self) -> int:
        return self.n_before + self.n_ok + self.n_failed


@dataclass(slots=True)
class _Work:
    asked: Asked
    tries: int = 0


class Batch:
    """Hands requests to servers and writes down what comes back; the only writer of both outputs."""

    def __init__(
        self,
        requests: Iterator[Asked],
        progress: Progress,
        output: Output,
        errors: Output,
        *,
        model: str | None,
        key: str | None,
        patience_s: float,
        concurrency: int | None,
        told: Callable[[Progress], None] = lambda progress: None,
    ) -> None:
        self._requests = requests
        self._again: list[_Work] = []
        self._progress = progress
        self._output = output
        self._errors = errors
        self._model = model
        self._headers = {"Content-Type": "application/json", "X-Garra-Priority": "batch"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._patience_s = patience_s
        self._concurrency = concurrency
        self._told = told
        self._clock = asyncio.get_running_loop().time
        self._open = 0
        """Requests that are being asked, or wait to be asked again."""
        self._changed = asyncio.Event()

    async def run(self, urls: Sequence[str]) -> Progress:
        """Until every request has its line.

        Raises EngineDown when no server answers for as long as patience lasts, DownloadFailed when the disk is full.
        """
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)  # engines close idle ones after 5 s
        async with aiohttp.ClientSession(
            connector=connector, timeout=_LIMIT, headers=self._headers, auto_decompress=True
        ) as session:
            self._progress.servers = [await self._server(session, url) for url in urls]
            syncing = asyncio.ensure_future(self._sync())
            try:
                async with asyncio.TaskGroup() as tasks:
                    for server in self._progress.servers:
                        for _ in range(int(server.window.ceiling)):
                            tasks.create_task(self._clerk(session, server))
            except* GarraError as group:
                raise group.exceptions[0] from None
            finally:
                syncing.cancel()
                self._output.sync()
                self._errors.sync()
        return self._progress

    async def _server(self, session: aiohttp.ClientSession, url: str) -> Server:
        base = url.rstrip("/").removesuffix("/v1")
        if self._concurrency is not None:
            return Server(base, Window(self._concurrency, exact=True))
        slots = None
        try:
            async with session.get(f"{base}/v1/models", timeout=_QUICK) as reply:
                rows = (await reply.json()).get("data", [])
            known = [row["slots"] for row in rows if row.get("slots") and self._model in (None, row.get("id"))]
            slots = max(known) if known else None
        except (*_BROKEN, ValueError, AttributeError):
            pass  # it may come up later
        return Server(base, Window(slots))

    async def _clerk(self, session: aiohttp.ClientSession, server: Server) -> None:
        """One of a server's places: takes a request, brings its answer, takes the next."""
        while True:
            work = self._next() if server.in_flight < server.window.n else None
            if work is None:
                if self._finished():
                    return
                await self._changed.wait()
                continue
            server.in_flight += 1
            try:
                pause_s = await self._ask(session, server, work)
            finally:
                server.in_flight -= 1
                self._wake()
            self._told(self._progress)
            if pause_s:
                self._check_patience()
                await asyncio.sleep(pause_s)

    def _wake(self) -> None:
        """Something changed for clerks that have nothing to do."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _next(self) -> _Work | None:
        if self._again:
            return self._again.pop(0)
        asked = next(self._requests, None)
        if asked is None:
            return None
        self._open += 1
        return _Work(asked)

    def _finished(self) -> bool:
        return self._open == 0 and self._progress.n_done >= self._progress.n_total

    async def _ask(self, session: aiohttp.ClientSession, server: Server, work: _Work) -> float:
        """Seconds to wait before this place asks again."""
        asked = work.asked
        body = lines.body_for(asked, self._model)
        try:
            async with session.post(server.url + asked.url, data=body) as reply:
                said = await reply.read()
        except _BROKEN as error:
            server.down_since = server.down_since if server.down_since is not None else self._clock()
            refused = isinstance(error, aiohttp.ClientConnectorError)
            self._once_more(work, "broken", f"{server.url} broke: {error!r}", counts=not refused)
            return server.window.failed()
        server.down_since = None
        if reply.status in _BUSY:
            server.window.refused()
            self._once_more(work, str(reply.status), said.decode("utf-8", "replace"), counts=False)
            return _retry_after(reply.headers.get("Retry-After"))
        if reply.status >= 500:
            self._once_more(work, str(reply.status), said.decode("utf-8", "replace"))
            return server.window.failed()
        server.window.answered()
        line = lines.answered(asked, reply.status, reply.headers.get("X-Request-Id", ""), said)
        if reply.status < 400:
            self._output.write(line)
            self._progress.n_ok += 1
            self._progress.n_tokens += _tokens(said)
            server.n_answered += 1
        else:
            self._errors.write(line)
            self._progress.n_failed += 1
        self._open -= 1
        return 0.0

    def _once_more(self, work: _Work, code: str, message: str, *, counts: bool = True) -> None:
        work.tries += counts
        if work.tries >= _TRIES:
            self._errors.write(lines.failed(work.asked, code, message))
            self._progress.n_failed += 1
            self._open -= 1
        else:
            self._progress.n_retries += 1
            self._again.append(work)

    def _check_patience(self) -> None:
        """Raises EngineDown when every server has been gone for too long."""
        gone = [server.down_since for server in self._progress.servers]
        since = [at for at in gone if at is not None]
        if len(since) == len(gone) and self._clock() - max(since) > self._patience_s:
            named = ", ".join(server.url for server in self._progress.servers)
            raise EngineDown(
                f"no server answers for {self._patience_s:g} s ({named}); {self._progress.n_done} of "
                f"{self._progress.n_total} are done and kept",
                fix="bring one up, then the same command again: it goes on there",
            )

    async def _sync(self) -> None:
        while True:
            await asyncio.sleep(_SYNC_S)
            await asyncio.to_thread(self._output.sync)


def _retry_after(header: str | None) -> float:
    try:
        return min(_LONGEST_WAIT_S, max(0.1, float(header or 1)))
    except ValueError:
        return 1.0


def _tokens(said: bytes) -> int:
    """Output tokens, as the answer counts them."""
    try:
        usage = msgspec.json.decode(said, type=_Counted).usage
    except msgspec.DecodeError:
        return 0
    return usage.completion_tokens or usage.output_tokens if usage is not None else 0
