"""The engine's HTTP surface as the supervisor uses it: `/health`, `/props`, `/slots`, one warm-up token.

A connection per call: the engine keeps a thread for every idle one, and ignores SIGTERM while any is open.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from garra.dialogue import Kind
from garra.errors import EngineDown
from garra.prompts.words import Moved
from garra.registry.template import traits_of
from garra.snapshot import SlotState
from garra.spec import EngineProps
from garra.traffic import Usage

_HEALTH_LIMIT = aiohttp.ClientTimeout(total=2)
_PROPS_LIMIT = aiohttp.ClientTimeout(total=30)
_SLOTS_LIMIT = aiohttp.ClientTimeout(total=4)  # answers within milliseconds, even in the middle of a batch
_MOVE_LIMIT = aiohttp.ClientTimeout(total=60)  # gigabytes on a slow disk; whoever asks has a limit of their own
_WARM_UP_LIMIT = aiohttp.ClientTimeout(total=300)  # the first token of a big model on a slow disk
_WARM_UPS: Mapping[Kind, tuple[str, dict[str, Any]]] = {
    "chat": ("/completion", {"prompt": "Hello", "n_predict": 1, "cache_prompt": False}),
    "embedding": ("/embedding", {"content": "Hello"}),
    "rerank": ("/rerank", {"query": "Hello", "documents": ["Hello"]}),
}
WARM_UP_HEADER = "X-Garra-Warm-Up"
_WARM_UP = {WARM_UP_HEADER: "1"}
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


class _Generation(msgspec.Struct):
    n_ctx: int


class _Caps(msgspec.Struct):
    supports_tools: bool | None = None


class _Props(msgspec.Struct):
    total_slots: int
    default_generation_settings: _Generation
    model_path: str = ""
    build_info: str = ""
    chat_template: str = ""
    chat_template_caps: _Caps = msgspec.field(default_factory=_Caps)


class _Timings(msgspec.Struct):
    cache_n: int = 0
    prompt_n: int = 1
    prompt_ms: float = 0.0


class _Completion(msgspec.Struct):
    timings: _Timings = msgspec.field(default_factory=_Timings)
    id_slot: int | None = None


class _SlotMoved(msgspec.Struct):
    n_saved: int = 0
    n_written: int = 0
    n_restored: int = 0
    n_read: int = 0


class _NextToken(msgspec.Struct):
    n_decoded: int = 0


class _Slot(msgspec.Struct):
    is_processing: bool
    n_prompt_tokens: int = 0
    id_task: int = -1
    n_prompt_tokens_processed: int = 0
    next_token: list[_NextToken] = []


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
        traits = traits_of(told.chat_template)
        if told.chat_template_caps.supports_tools is not None:  # the engine has tried it out
            traits = replace(traits, tools=told.chat_template_caps.supports_tools)
        return EngineProps(told.total_slots, generation.n_ctx, told.model_path, told.build_info, traits)

    async def warm_up(self, socket: Path, kind: Kind = "chat") -> float:
        """Seconds of prefill per token of a tiny prompt. Raises EngineDown unless what the kind is for comes back."""
        path, body = _WARM_UPS[kind]
        try:
            async with (
                _session(socket, _WARM_UP_LIMIT) as session,
                session.post(path, json=body, headers=_WARM_UP) as reply,
            ):
                said = await reply.read()
        except _BROKEN as error:
            raise EngineDown(f"the warm-up request failed: {error}") from None
        if reply.status != 200:
            told = said[:200].decode("utf-8", "replace")
            raise EngineDown(f"the warm-up request was answered with {reply.status}: {told}")
        try:
            timings = msgspec.json.decode(said, type=_Completion).timings
        except msgspec.DecodeError:
            return 0.0
        return timings.prompt_ms / 1e3 / max(1, timings.prompt_n)

    async def render(self, socket: Path, conversation: dict[str, Any]) -> str:
        """A conversation as the model's template writes it. Raises EngineDown."""
        return str(msgspec.json.decode(await self._post(socket, "/apply-template", conversation))["prompt"])

    async def prefill(self, socket: Path, prompt: str) -> Usage:
        """Compute a prompt and nothing after it. Raises EngineDown."""
        said = await self._post(socket, "/completion", {"prompt": prompt, "n_predict": 0, "cache_prompt": True})
        told = msgspec.json.decode(said, type=_Completion)
        timings = told.timings
        return Usage(timings.prompt_n, 0, timings.prompt_ms, n_cached=timings.cache_n, slot=told.id_slot)

    async def _post(self, socket: Path, path: str, body: dict[str, Any]) -> bytes:
        try:
            async with _session(socket, _WARM_UP_LIMIT) as session, session.post(path, json=body) as reply:
                said = await reply.read()
        except _BROKEN as error:
            raise EngineDown(f"the engine does not answer {path}: {error}") from None
        if reply.status != 200:
            raise EngineDown(f"the engine answers {path} with {reply.status}: {said[:200].decode('utf-8', 'replace')}")
        return said

    async def save_slot(self, socket: Path, slot: int, name: str) -> Moved:
        return await self._move_slot(socket, slot, "save", name)

    async def restore_slot(self, socket: Path, slot: int, name: str) -> Moved:
        return await self._move_slot(socket, slot, "restore", name)

    async def _move_slot(self, socket: Path, slot: int, action: str, name: str) -> Moved:
        began = time.monotonic()
        try:
            async with (
                _session(socket, _MOVE_LIMIT) as session,
                session.post(f"/slots/{slot}?action={action}", json={"filename": name}) as reply,
            ):
                said = await reply.read()
                if reply.status != 200:
                    raise EngineDown(f"slot {slot} {action}: {said[:200].decode('utf-8', 'replace')}")
                told = msgspec.json.decode(said, type=_SlotMoved)
        except (*_BROKEN, msgspec.DecodeError) as error:
            raise EngineDown(f"slot {slot} {action}: {error or type(error).__name__}") from None
        ms = (time.monotonic() - began) * 1e3
        return Moved(told.n_saved or told.n_restored, told.n_written or told.n_read, ms)

    async def slots(self, socket: Path) -> tuple[SlotState, ...] | None:
        """All slots, or None when no sensible answer came in time."""
        try:
            async with _session(socket, _SLOTS_LIMIT) as session, session.get("/slots") as reply:
                told = msgspec.json.decode(await reply.read(), type=list[_Slot])
        except (*_BROKEN, msgspec.DecodeError):
            return None
        return tuple(
            SlotState(
                busy=slot.is_processing,
                task=slot.id_task,
                n_prompt_tokens=slot.n_prompt_tokens_processed,
                n_decoded=sum(token.n_decoded for token in slot.next_token),
                n_held=slot.n_prompt_tokens,
            )
            for slot in told
        )


@contextlib.asynccontextmanager
async def _session(socket: Path, limit: aiohttp.ClientTimeout) -> AsyncIterator[aiohttp.ClientSession]:
    connector = aiohttp.UnixConnector(str(socket), force_close=True)
    async with aiohttp.ClientSession("http://engine", connector=connector, timeout=limit) as session:
        yield session
