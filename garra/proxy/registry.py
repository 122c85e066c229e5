"""`/registry/...`: search the hub, download, list and remove models.

POST /registry/search            {"query": "qwen3.5 4b", "limit": 8}
POST /registry/download          {"ref": "hf:owner/repo:QUANT"}          202 and the job; the same again joins it
GET  /registry/download          all jobs          GET /registry/download/ID          one
GET  /registry/download/ID/events                  its progress as server-sent events, until it ended
POST /registry/download/ID/pause | cancel          (cancel throws away what has come)
GET  /registry/models            DELETE /registry/models/REF             the latter for administrators
"""

from __future__ import annotations

import urllib.parse
from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from garra.apis.bodies import decoded
from garra.downloads import DownloadStatus
from garra.errors import BadRequest, ConfigError, NotFound
from garra.ports import Registry
from garra.proxy.listener import read_body

PREFIX = "/registry/"


class _Search(msgspec.Struct, forbid_unknown_fields=True):
    query: str
    limit: int = 8


class _Download(msgspec.Struct, forbid_unknown_fields=True):
    ref: str
    projector: bool = True


class RegistryApi:
    """The handlers."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Raises GarraError."""
        parts = [urllib.parse.unquote(part) for part in request.rel_url.raw_path.split("/")[2:]]
        match request.method, parts:
            case "POST", ["search"]:
                asked = decoded(await read_body(request), _Search)
                return _json({"data": await self._registry.search(asked.query, max(1, min(50, asked.limit)))})
            case "POST", ["download"]:
                wanted = decoded(await read_body(request), _Download)
                return _json(self._download(wanted), status=202)
            case "GET", ["download"]:
                return _json({"data": self._registry.downloads()})
            case "GET", ["download", job]:
                return _json(self._registry.status(job))
            case "GET", ["download", job, "events"]:
                return await self._events(request, job)
            case "POST", ["download", job, "pause" | "cancel" as how]:
                return _json(self._registry.stop(job, discard=how == "cancel"))
            case "GET", ["models"]:
                return _json({"data": await self._registry.models()})
            case "DELETE", ["models", *ref] if ref:
                return _json({"freed_bytes": await self._registry.remove("/".join(ref))})
        raise NotFound(f"there is no {request.method} {request.path[:100]} here", fix="GET /registry/models")

    def _download(self, wanted: _Download) -> DownloadStatus:
        try:
            return self._registry.download(wanted.ref, projector=wanted.projector)
        except ConfigError as error:  # here it is the request that is wrong
            raise BadRequest(error.what, fix=error.fix) from None

    async def _events(self, request: web.BaseRequest, job: str) -> web.StreamResponse:
        self._registry.status(job)  # an unknown one is a 404, not a stream
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        async with aclosing(self._registry.follow(job)) as news:
            async for status in news:
                await response.write(b"data: " + msgspec.json.encode(status) + b"\n\n")
        return response


def _json(body: dict[str, Any] | DownloadStatus, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
