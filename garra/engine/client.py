"""The engine's HTTP surface as the supervisor uses it: `/health`, `/props`, one warm-up token. A connection per call:
the engine keeps a thread for every idle one, and ignores SIGTERM while any is open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from garra.errors import EngineDown
from garra.spec import EngineProps

_HEALTH_LIMIT = aiohttp.ClientTimeout(total=2)
_PROPS_LIMIT = aiohttp.ClientTimeout(total=30)
_WARM_UP_LIMIT = aiohttp.ClientTimeout(total=300)  # the first token of a big model on a slow disk
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class _Generation(msgspec.Struct):
    n_ctx: int


class _Props(msgspec.Struct):
    total_slots: int
    default_generation_settings: _Generation
    model_path: str = ""
    build_info: str = ""


class HttpEngine:
    """Talks to engines on Unix sockets."""

    async def healthy(self, socket: Path) -> bool:
        try:
            async with _session(socket, _HEALTH_LIMIT) as session, session.get("/health") as reply:
                return reply.status == 200
        except _BROKEN:
            return False

    async def props(self, socket: Path) -> EngineProps:
        """What the engine says it is. Raises EngineDown when it cannot say."""
        try:
            async with _session(socket, _PROPS_LIMIT) as session, session.get("/props") as reply:
                told = msgspec.json.decode(await reply.read(), type=_Props)
        except (*_BROKEN, msgspec.DecodeError) as error:
            raise EngineDown(f"the engine does not answer /props: {error}") from None
        generation = told.default_generation_settings
        return EngineProps(told.total_slots, generation.n_ctx, told.model_path, told.build_info)

    async def warm_up(self, socket: Path) -> None:
        """Raises EngineDown unless one token comes back."""
        body: dict[str, Any] = {"prompt": "Hello", "n_predict": 1, "cache_prompt": False}
        try:
            async with _session(socket, _WARM_UP_LIMIT) as session, session.post("/completion", json=body) as reply:
                said = await reply.text()
        except _BROKEN as error:
            raise EngineDown(f"the warm-up request failed: {error}") from None
        if reply.status != 200:
            raise EngineDown(f"the warm-up request was answered with {reply.status}: {said[:200]}")


@contextlib.asynccontextmanager
async def _session(socket: Path, limit: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(socket), force_close=True)
    async with aiohttp.ClientSession("http://engine", connector=connector, timeout=limit) as session:
        yield session
