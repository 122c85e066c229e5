"""A server that speaks OpenAI's API, asked as any client would ask it; every piece of an answer stamped as it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import aiohttp
import msgspec

from garra.bench.tap import Tap
from garra.bench.words import Ending, Messages
from garra.errors import EngineDown, UnknownModel

_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=600)
_QUICK = aiohttp.ClientTimeout(total=10)
_BROKEN = (aiohttp.ClientError, TimeoutError, OSError)


@dataclass(frozen=True, slots=True)
class Served:
    """What answers, as far as it says."""

    engine: str
    """Program and build: `garra 0.1.0 b11434-cpu-1a2b3c4d`, `llama-server b11434`, `ollama 0.9.1`, or unknown."""
    model: str
    context: int | None = None
    slots: int | None = None
    counts: bool = False
    """It counts tokens of a chat without computing it (`/apply-template`, `/tokenize`)."""
    is_garra: bool = False


@dataclass(slots=True)
class Reply:
    """One answer: what came, when, and how it ended. Times since the request was sent."""

    tap: Tap
    e2e_s: float
    ending: Ending
    status: int
    error: str = ""


class Target:
    """One model on one server. Use as `async with`. `socket`: a Unix socket in place of an address."""

    def __init__(self, url: str, model: str | None, *, socket: Path | None = None, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._model = model
        self._socket = socket
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._served: Served | None = None

    async def __aenter__(self) -> Target:
        connector: aiohttp.BaseConnector
        # a connection per request: engines close streams' connections without saying so
        if self._socket is not None:
            connector = aiohttp.UnixConnector(str(self._socket), force_close=True, limit=0)
        else:
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=_LIMIT, headers=self._headers, auto_decompress=False
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._session.close()

    # -- what it is

    async def served(self) -> Served:
        """Asked once. Raises EngineDown where nobody answers, UnknownModel where there is no such model."""
        if self._served is None:
            self._served = await self._find_out()
        return self._served

    async def _find_out(self) -> Served:
        listed = await self._get("/v1/models")
        if listed is None:
            raise EngineDown(f"nobody at {self.url} answers GET /v1/models", fix="check the address, or: garra up")
        rows = {str(row.get("id")): row for row in listed.get("data", ())}
        model = self._model or next(iter(rows), "")
        row = rows.get(model)
        if row is None:
            aliases = {alias: one for one in rows.values() for alias in one.get("aliases", ())}
            row = aliases.get(model)
        if row is None:
            raise UnknownModel(f'{self.url} has no model "{model}"', fix=f"--model, one of: {', '.join(rows)}")
        owner = row.get("owned_by", "")
        counts = await self.count(({"role": "user", "content": "a"},), model=model) is not None
        if owner == "garra":
            engine = f"garra {row.get('engine', '')}".strip()
            return Served(engine, str(row["id"]), row.get("context_length"), row.get("slots"), counts, is_garra=True)
        props = await self._get("/props")
        if props is not None:
            generation = props.get("default_generation_settings", {})
            engine = f"llama-server {props.get('build_info', '')}".strip()
            return Served(engine, model, generation.get("n_ctx"), props.get("total_slots"), counts)
        version = await self._get("/api/version")
        engine = f"ollama {version['version']}" if version and "version" in version else str(owner) or "unknown"
        return Served(engine, model, row.get("max_model_len"), None, counts)

    # -- asking

    async def ask(
        self, messages: Messages, max_tokens: int, extra: Mapping[str, Any], *, cancel_after: int | None = None
    ) -> Reply:
        """The streamed answer to these messages. Never raises for what the server does; that is the answer's ending."""
        served = await self.served()
        body = {
            "model": served.model, "messages": messages, "max_tokens": max_tokens, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True, **extra,
        }  # fmt: skip
        reply = await self._stream("/v1/chat/completions", msgspec.json.encode(body), cancel_after)
        if served.is_garra and reply.tap.queue_s is None:
            reply.tap.server_timing("queue;dur=0.0, load;dur=0.0")  # it tells of waits only where there was one
        return reply

    async def _stream(self, path: str, body: bytes, cancel_after: int | None) -> Reply:
        clock = asyncio.get_running_loop().time
        tap, began = Tap(), clock()
        headers = {"Content-Type": "application/json"}
        status = 0
        try:
            async with self._session.post(self.url + path, data=body, headers=headers) as reply:
                status = reply.status
                if status != 200:
                    said = (await reply.content.read(2000)).decode("utf-8", "replace")
                    return Reply(
                        tap, clock() - began, "refused" if status in (429, 503, 504) else "error", status, said
                    )
                tap.server_timing(reply.headers.get("Server-Timing", ""))
                while data := await reply.content.readany():
                    tap.feed(data, clock() - began)
                    if cancel_after is not None and len(tap.stamps_s) >= cancel_after:
                        reply.close()
                        return Reply(tap, clock() - began, "cancelled", status)
        except _BROKEN as error:
            return Reply(tap, clock() - began, "cut" if tap.stamps_s else "error", status, str(error) or repr(error))
        if tap.error:
            return Reply(tap, clock() - began, "error", status, tap.error)
        whole = tap.done or bool(tap.finish)
        return Reply(tap, clock() - began, "ok" if whole else "cut", status, "" if whole else "the stream just ended")

    async def count(self, messages: Messages, *, model: str | None = None) -> int | None:
        """Prompt tokens of this chat, template included, without computing it; None where the server cannot tell."""
        model = model or (await self.served()).model
        rendered = await self._post("/apply-template", {"model": model, "messages": messages})
        if rendered is None or "prompt" not in rendered:
            return None
        asked = {"model": model, "content": rendered["prompt"], "add_special": True, "parse_special": True}
        told = await self._post("/tokenize", asked)
        return len(told["tokens"]) if told is not None and "tokens" in told else None

    async def _get(self, path: str) -> dict[str, Any] | None:
        try:
            async with self._session.get(self.url + path, timeout=_QUICK) as reply:
                return _object(await reply.read()) if reply.status == 200 else None
        except _BROKEN:
            return None

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            async with self._session.post(self.url + path, json=body) as reply:
                return _object(await reply.read()) if reply.status == 200 else None
        except _BROKEN:
            return None


def _object(body: bytes) -> dict[str, Any] | None:
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    return told if isinstance(told, dict) else None
