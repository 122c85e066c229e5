"""The running garra, asked over its control socket without standing still."""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncIterator
from pathlib import Path
from types import TracebackType

import httpx
import msgspec

from garra.errors import GarraError, NotRunning, of_code
from garra.snapshot import Snapshot
from garra.tui.words import Told

_LIMIT_S = 10.0


class Remote:
    """Used with `async with`. Raises NotRunning where nobody answers, else what garra says."""

    def __init__(self, socket: Path) -> None:
        transport = httpx.AsyncHTTPTransport(uds=str(socket))
        self._client = httpx.AsyncClient(transport=transport, base_url="http://garra/garra/v1", timeout=_LIMIT_S)

    async def __aenter__(self) -> Remote:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        await self._client.aclose()

    async def snapshot(self) -> Snapshot:
        return msgspec.json.decode(await self._ask("GET", "/status?closely=1"), type=Snapshot)

    async def tell(self, path: str, body: object = None) -> None:
        """A POST to `/profiles/NAME/...`."""
        await self._ask("POST", path, body)

    async def events(self) -> AsyncIterator[Told]:
        """The last hundred facts and every new one, until garra ends."""
        try:
            async with self._client.stream("GET", "/events", timeout=None) as reply:
                async for line in reply.aiter_lines():
                    if line.startswith("data: "):
                        yield _told(json.loads(line.removeprefix("data: ")))
        except (httpx.TransportError, FileNotFoundError):
            return

    async def _ask(self, method: str, path: str, body: object = None) -> bytes:
        try:
            reply = await self._client.request(method, path, json=body)
        except (httpx.TransportError, FileNotFoundError):
            raise NotRunning("garra is not running", fix="garra up") from None
        if reply.status_code >= 400:
            raise _refusal(reply)
        return reply.content


def _refusal(reply: httpx.Response) -> GarraError:
    error = reply.json()["error"]
    return of_code(str(error.get("code")), error["message"])


def _told(fact: dict[str, str]) -> Told:
    at = datetime.datetime.fromisoformat(fact["at"]).astimezone()
    return Told(f"{at:%H:%M:%S}", fact["kind"], fact["profile"], fact["detail"])
