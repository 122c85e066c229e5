"""`/api/pull`: a download through the registry, told in Ollama's words."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import msgspec
from aiohttp import web

from garra.downloads import DownloadState, DownloadStatus
from garra.errors import BadRequest, ConfigError, DownloadFailed
from garra.ports import Registry
from garra.proxy.answers import answer

_HUBS = ("hf.co/", "huggingface.co/")


class Puller:
    """Brings models for clients of the Ollama API."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def pull(self, request: web.BaseRequest, named: str, *, stream: bool) -> web.StreamResponse:
        """Begin, or join, and tell how it goes until it ended. Raises BadRequest, DownloadFailed."""
        try:
            job = self._registry.download(ref_of(named))
        except ConfigError as error:  # here it is the request that is wrong
            raise BadRequest(error.what, fix=error.fix) from None
        if stream:
            return await self._told(request, job)
        last = job
        async with aclosing(self._registry.follow(job.id)) as news:
            async for status in news:
                last = status
        if last.state is not DownloadState.DONE:
            raise DownloadFailed(last.detail or "the download did not end")
        return answer({"status": "success"})

    async def _told(self, request: web.BaseRequest, job: DownloadStatus) -> web.StreamResponse:
        headers = {"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(_line({"status": "pulling manifest"}))
        async with aclosing(self._registry.follow(job.id)) as news:
            async for status in news:
                for told in progress(status):
                    await response.write(_line(told))
        return response


def ref_of(named: str) -> str:
    """A model as Ollama's clients name it, as a reference of ours."""
    for hub in _HUBS:
        if named.startswith(hub):
            return "hf:" + named.removeprefix(hub)
    return named


def progress(status: DownloadStatus) -> list[dict[str, Any]]:
    """The lines for one change of a download."""
    match status.state:
        case DownloadState.DONE:
            ends = ("verifying sha256 digest", "writing manifest", "success")
            return [{"status": text} for text in ends]
        case DownloadState.RUNNING:
            name = f"pulling {status.ref.rpartition('/')[2]}"
            told: dict[str, Any] = {"status": name, "digest": status.ref}
            return [
                told | ({"total": status.total_bytes, "completed": status.done_bytes} if status.total_bytes else {})
            ]
        case _:
            return [{"error": status.detail or f"the download was {status.state}"}]


def _line(told: dict[str, Any]) -> bytes:
    return msgspec.json.encode(told) + b"\n"
