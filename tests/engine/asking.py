"""A client that asks one garra and keeps what came."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from tests.support import PATIENCE_S, Garra, eventually

LATE = {"stream": True, "messages": [{"role": "user", "content": "hi"}]}


class Client:
    """Asks one garra; every answer of the late stub takes about 0.3 s of its slot."""

    def __init__(self, garra: Garra) -> None:
        self.http = httpx.AsyncClient(base_url=garra.url, timeout=180, limits=httpx.Limits(max_connections=None))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def ask(self, model: str = "demo", *, path: str = "/v1/chat/completions", **headers: str) -> Reply:
        named = {f"X-Garra-{key.title()}": value for key, value in headers.items()}
        begin, reply = time.monotonic(), Reply()
        async with self.http.stream("POST", path, json=LATE | {"model": model}, headers=named) as answer:
            reply.status, reply.headers = answer.status_code, dict(answer.headers)
            try:
                async for line in answer.aiter_lines():
                    if line.startswith("data: {") and not reply.first_s:
                        reply.first_s = time.monotonic() - begin
                    reply.lines.append(line)
            except httpx.RemoteProtocolError:
                reply.cut = True
        reply.ended_at = time.monotonic()
        return reply


class Reply:
    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.lines: list[str] = []
        self.first_s = 0.0
        self.ended_at = 0.0
        self.cut = False

    @property
    def whole(self) -> bool:
        return "data: [DONE]" in self.lines and not self.cut


async def until(condition: Any, within_s: float = PATIENCE_S) -> None:
    await asyncio.to_thread(eventually, condition, within_s)
