"""Somebody else's server in the place of an engine: the same life, queue and figures for it as for our own.

A bridge listens on a socket as an engine does and passes requests on, with the server's address, key and name of the
model in them; answers go back byte by byte. What garra asks of an engine (`/health`, `/props`, `/slots`, a first token)
it answers itself. When the server stops answering, the bridge ends, as an engine's process does: then the runner's own
rules hold.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from garra.dialogue import Server
from garra.engine.client import WARM_UP_HEADER
from garra.errors import EngineDown
from garra.ports import EngineProcess, Spawner
from garra.spec import Cause, EngineExit, LaunchPlan

_LOOK_EVERY_S = 5.0
_LOOK_LIMIT = aiohttp.ClientTimeout(total=10)
_LOOKS = 3
"""So many looks without an answer, and the server is taken to be down."""
_HEAD_BYTES = 64 * 1024
_PIECE_BYTES = 64 * 1024
_SIGNALLED = "asked to end"
_END = b"\r\n\r\n"
HINTS = ("speculate", "session")
"""What garra tells its own engines alone."""


class AnySpawner:
    """The `Spawner` port: an engine of ours, or a bridge where the profile names a server."""

    def __init__(self, engines: Spawner, folder: Path) -> None:
        self._engines = engines
        self._folder = folder
        self._serial = itertools.count(1)

    async def spawn(self, plan: LaunchPlan) -> EngineProcess:
        if (server := plan.profile.server) is None:
            return await self._engines.spawn(plan)
        key = os.environ.get(server.key_env, "") if server.key_env else ""
        if server.key_env and not key:
            raise EngineDown(
                f"{server.key_env} is not set: it holds the key of {server.url}", fix=f"export {server.key_env}=KEY"
            )
        socket = self._folder / f"{plan.profile.name[:24]}-b{next(self._serial)}-{secrets.token_hex(3)}.sock"
        bridge = Bridge(plan, server, key, socket)
        await bridge.begin()
        return bridge


@dataclass(slots=True)
class _Exchange:
    """One request on its way."""

    number: int
    n_pieces: int = 0


class Bridge:
    """The `EngineProcess` port over a server."""

    pid = 0
    """It is no process."""

    def __init__(self, plan: LaunchPlan, server: Server, key: str, socket: Path) -> None:
        self._plan = plan
        self._server = server
        self._key = key
        self._socket = socket
        self._url = urllib.parse.urlsplit(server.url)
        self._ssl = ssl.create_default_context() if self._url.scheme == "https" else None
        self._listener: asyncio.Server | None = None
        self._running: dict[int, _Exchange] = {}
        self._numbers = itertools.count(1)
        self._healthy = False
        self._n_looks = 0
        self._told_to_end = asyncio.Event()
        self._why = ""

    @property
    def socket(self) -> Path:
        return self._socket

    async def begin(self) -> None:
        self._listener = await asyncio.start_unix_server(self._serve, str(self._socket), limit=_HEAD_BYTES)

    def send_signal(self, signum: int) -> None:
        self._told_to_end.set()

    async def wait(self) -> EngineExit:
        """Until it is told to end, or the server does not answer any more."""
        looking = asyncio.ensure_future(self._look())
        told = asyncio.ensure_future(self._told_to_end.wait())
        try:
            await asyncio.wait((looking, told), return_when=asyncio.FIRST_COMPLETED)
        finally:
            looking.cancel()
            told.cancel()
            await asyncio.gather(looking, told, return_exceptions=True)
            if self._listener is not None:
                self._listener.close()
            self._socket.unlink(missing_ok=True)
        if self._told_to_end.is_set():
            return EngineExit(0, None, Cause.REQUESTED, _SIGNALLED)
        return EngineExit(None, None, Cause.CRASH, f"{self._server.url} does not answer: {self._why}")

    def progress(self) -> int:
        return self._n_looks

    def rss_bytes(self) -> int | None:
        return None

    # -- is it there?

    async def _look(self) -> None:
        """Ask for its models again and again; returns when it was silent too often."""
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        silent = 0
        async with aiohttp.ClientSession(timeout=_LOOK_LIMIT, headers=headers) as session:
            while silent < _LOOKS:
                silent = 0 if await self._answers(session) else silent + 1
                self._healthy = not silent
                self._n_looks += 1
                await asyncio.sleep(_LOOK_EVERY_S if not silent else _LOOK_EVERY_S / 5)

    async def _answers(self, session: aiohttp.ClientSession) -> bool:
        try:
            async with session.get(f"{self._server.url.rstrip('/')}/models") as reply:
                self._why = f"it answers {reply.status}"
                return reply.status < 500 and reply.status not in (401, 403)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._why = str(error) or type(error).__name__
            return False

    # -- requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._exchange(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError):
            pass  # one of the two left: the other sees its connection end
        finally:
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(_END)
        first, *lines = head[: -len(_END)].decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if (own := self._own_answer(path, headers)) is not None:
            writer.write(own)
            await writer.drain()
            return
        exchange = _Exchange(next(self._numbers))
        self._running[exchange.number] = exchange
        try:
            await self._pass_on(method, path, headers, self._renamed(body), reader, writer, exchange)
        finally:
            self._running.pop(exchange.number, None)

    async def _pass_on(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        client: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        exchange: _Exchange,
    ) -> None:
        host, tls = self._url.hostname or "", self._ssl is not None
        port = self._url.port or (443 if tls else 80)
        answer, sender = await asyncio.open_connection(
            host, port, ssl=self._ssl, server_hostname=host if tls else None, limit=_PIECE_BYTES
        )
        left = asyncio.ensure_future(client.read(1))  # nothing more comes: it only tells when the client is gone
        copying = asyncio.ensure_future(_copy(answer, writer, exchange))
        try:
            sender.write(self._head(method, path, headers, len(body)) + body)
            await sender.drain()
            await asyncio.wait((left, copying), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (left, copying):
                task.cancel()
            await asyncio.gather(left, copying, return_exceptions=True)
            sender.transport.abort()

    def _head(self, method: str, path: str, headers: dict[str, str], length: int) -> bytes:
        """The request's head for the server; one request a connection, so that its end ends the answer."""
        prefix = self._url.path.rstrip("/")
        below = path.removeprefix("/v1") if prefix else path
        lines = [
            f"{method} {prefix}{below} HTTP/1.1",
            f"Host: {self._url.netloc.rpartition('@')[2]}",
            f"Content-Type: {headers.get('content-type', 'application/json')}",
            f"Content-Length: {length}",
            "Connection: close",
        ]
        lines += [f"Authorization: Bearer {self._key}", f"x-api-key: {self._key}"] if self._key else []
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")

    def _renamed(self, body: bytes) -> bytes:
        """The body with the name the model has there."""
        try:
            asked = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return body
        asked["model"] = self._server.model
        for hint in HINTS:
            asked.pop(hint, None)
        return msgspec.json.encode(asked)

    # -- what garra asks of an engine

    def _own_answer(self, path: str, headers: dict[str, str]) -> bytes | None:
        profile = self._plan.profile
        if WARM_UP_HEADER.lower() in headers:  # the first token is not asked of a server that others pay for
            return _json({"content": ""}, 200 if self._healthy else 503)
        match path:
            case "/health":
                return _json({"status": "ok"} if self._healthy else {}, 200 if self._healthy else 503)
            case "/props":
                settings = {"n_ctx": profile.context}
                told = {"total_slots": profile.slots, "default_generation_settings": settings}
                caps = {"supports_tools": True}
                return _json({**told, "model_path": str(self._plan.model_path), "chat_template_caps": caps})
            case "/slots":
                return _json([self._slot(n) for n in range(profile.slots)])
        return None

    def _slot(self, place: int) -> dict[str, Any]:
        running = list(self._running.values())
        if place >= len(running):
            return {"is_processing": False}
        one = running[place]
        decoded = [{"n_decoded": one.n_pieces}]
        return {"is_processing": True, "id_task": one.number, "next_token": decoded}


async def _copy(answer: asyncio.StreamReader, writer: asyncio.StreamWriter, exchange: _Exchange) -> None:
    """The server's bytes, as they come, until it ends."""
    while piece := await answer.read(_PIECE_BYTES):
        exchange.n_pieces += 1
        writer.write(piece)
        await writer.drain()


def _json(told: Any, status: int = 200) -> bytes:
    body = msgspec.json.encode(told)
    phrase = "OK" if status == 200 else "Service Unavailable"
    head = f"HTTP/1.1 {status} {phrase}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode("ascii") + b"Connection: close\r\n\r\n" + body
