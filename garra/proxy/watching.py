"""What the web page watches, over the public listener: the snapshot, the facts, and a quick benchmark with its log."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncGenerator, Callable

import msgspec
from aiohttp import web

from garra.apis.bodies import decoded
from garra.config import Config
from garra.errors import Taken
from garra.overview import Overview
from garra.proxy.answers import answer, as_events
from garra.proxy.listener import read_body
from garra.proxy.management import Management

_QUICK = "--concurrency 1,4 --requests 4 --repeats 2 --output-tokens 64".split()
_STOP_S = 5.0
_LINE_LIMIT = 64 * 1024


class _Named(msgspec.Struct):
    model: str


class Watching:
    """For who may manage: it tells of everybody's requests, if not what is in them."""

    def __init__(
        self, overview: Overview, follow: Callable[[], AsyncGenerator[bytes, None]], management: Management
    ) -> None:
        self._overview = overview
        self._follow = follow
        self._management = management
        self._one_at_a_time = asyncio.Lock()

    def configure(self, config: Config) -> None:
        self._config = config

    async def status(self, request: web.BaseRequest) -> web.Response:
        """GET /garra/v1/status: a snapshot."""
        self._management.require(request)
        return answer(await self._overview.snapshot(closely=True), headers={"Cache-Control": "no-store"})

    async def events(self, request: web.BaseRequest) -> web.StreamResponse:
        """GET /garra/v1/events: the last facts and every new one, server-sent."""
        self._management.require(request)
        return await as_events(request, self._follow())

    async def bench(self, request: web.BaseRequest) -> web.StreamResponse:
        """POST /garra/v1/bench {"model": "NAME"}: `garra bench` for as long as this answer is being read.

        Raises Taken while another one runs.
        """
        self._management.require(request)
        name = self._config.profile(decoded(await read_body(request), _Named).model).name
        try:
            async with asyncio.timeout(_STOP_S + 1):  # one that was stopped a moment ago is still ending
                await self._one_at_a_time.acquire()
        except TimeoutError:
            raise Taken("a benchmark runs already", fix="wait until it is over, or stop it") from None
        try:
            return await as_events(request, _lines(name))
        finally:
            self._one_at_a_time.release()


async def _lines(profile: str) -> AsyncGenerator[bytes, None]:
    """What the command prints, each line as JSON, and at the end how it went. Ends with whoever reads."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "garra", "bench", "run", profile, *_QUICK),
        *("--seed", str(secrets.randbelow(1 << 30))),  # prompts of the last time would be in the cache
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        limit=_LINE_LIMIT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        async for line in process.stdout:
            yield msgspec.json.encode({"line": line.decode("utf-8", "replace").rstrip()})
        yield msgspec.json.encode({"exit": await process.wait()})
    finally:
        await asyncio.shield(_ended(process))


async def _ended(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await process.wait()
                return
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
