"""The web page's files: few and small, so they are kept in memory as they travel in the package."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

from aiohttp import web

PREFIX = "/web/"
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_GUARDED = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


class _File(NamedTuple):
    body: bytes
    headers: dict[str, str]


class Page:
    """Answers `/` for browsers and everything under `/web/`; no key is needed to see it, for it holds nothing."""

    def __init__(self) -> None:
        self._files = {f"{PREFIX}{name}": made for name, made in _read()}
        self._files["/"] = self._files[f"{PREFIX}index.html"]

    @property
    def paths(self) -> list[str]:
        return [path for path in self._files if path != "/"]

    async def answer(self, request: web.BaseRequest) -> web.Response:
        file = self._files[request.path]
        if request.headers.get("If-None-Match") == file.headers["ETag"]:
            return web.Response(status=304, headers=file.headers)
        return web.Response(body=file.body, headers=file.headers)


def wanted(request: web.BaseRequest) -> bool:
    """Whether who asks for `/` is a browser: everybody else looks whether an Ollama is at home."""
    return "text/html" in request.headers.get("Accept", "")


def _read() -> list[tuple[str, _File]]:
    found = []
    for file in resources.files("garra").joinpath("web").iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _TYPES:
            body = file.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            content_type = f"{_TYPES[ending]}; charset=utf-8"
            found.append((file.name, _File(body, {**_GUARDED, "Content-Type": content_type, "ETag": tag})))
    return found
