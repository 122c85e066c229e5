"""Answers garra gives itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from aiohttp import web

from garra.apis.errors import error_body
from garra.apis.routes import Api
from garra.errors import GarraError
from garra.proxy.journal import HEADER

JSON = {"Content-Type": "application/json; charset=utf-8"}
"""As the engine writes it."""
LONGEST_RETRY_S = 60
"""Clients ignore a longer Retry-After, or give up at it (measured: docs/api.md)."""


def render(error: GarraError, api: Api = Api.OPENAI, ident: str | None = None) -> web.Response:
    """The error as an HTTP answer in the words of its API; `ident`: of the request, where it has one."""
    response = web.Response(status=error.http_status, body=error_body(error, api), headers=JSON)
    if ident is not None:
        response.headers[HEADER] = ident
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is not None:
        response.headers["Retry-After"] = str(min(retry_after_s, LONGEST_RETRY_S))
    return response


def answer(body: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """JSON."""
    encoded = msgspec.json.encode(body)
    return web.Response(status=status, body=encoded, headers={**JSON, **(headers or {})})


async def as_events(request: web.BaseRequest, told: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    """Server-sent events, for as long as there are any and somebody reads."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    async with contextlib.aclosing(told) as lines:
        async for line in lines:
            await response.write(b"data: " + line + b"\n\n")
    return response
