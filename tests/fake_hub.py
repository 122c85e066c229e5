"""A model hub for tests: real HTTP on two origins, and every way a hub, a network or a stranger can misbehave.

Origin one has the API and `resolve`, which redirects to origin two; that one has the bytes and must never see a token.
What goes wrong is a list per repository: each request that a fault fits takes one off.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

API_FAULTS = ("api-500", "api-429", "api-cut")
FILE_FAULTS = (
    "cut",  # the connection ends at a random byte
    "reset",  # it is torn down there
    "503",
    "429",
    "resolve-503",
    "stall",  # some bytes, then silence
    "slow",  # a byte at a time
    "no-range",  # 200 and all of it, whatever was asked for
    "wrong-range",  # 206 with other bytes than asked for
    "wrong-bytes",  # of the right size
)
DEADLY = ("always-wrong", "gone", "forbidden")
_PIECE = 16 * 1024


@dataclass
class Repo:
    """One repository and its troubles."""

    files: dict[str, bytes]
    commit: str = "c" * 40
    gated: bool = False
    token: str | None = None
    """Who may read it; None: everybody."""
    info: dict[str, Any] = field(default_factory=dict)
    """Laid over what the API says."""
    raw: bytes | None = None
    """What the API says instead."""
    plain: tuple[str, ...] = ()
    """Files that are no large files: git's hash only."""
    api_faults: list[str] = field(default_factory=list)
    file_faults: list[str] = field(default_factory=list)
    always: str | None = None
    rate: int | None = None
    """Bytes per second."""


class FakeHub:
    """Serves in a thread of its own; tests look at what was asked."""

    def __init__(self, seed: int = 0) -> None:
        self.repos: dict[str, Repo] = {}
        self.sent: dict[str, list[tuple[int, int]]] = {}
        """By file: where each answer began and how many bytes were sent."""
        self.requests: list[tuple[str, str]] = []
        self.leaked: list[str] = []
        """Requests to the second origin that carried a token."""
        self._random = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> FakeHub:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def environment(self) -> dict[str, str]:
        """What points the real client here."""
        return {"HF_ENDPOINT": self.url, "HF_HUB_DOWNLOAD_TIMEOUT": "1", "HF_HUB_ETAG_TIMEOUT": "2"}

    def bytes_sent(self, path: str) -> int:
        return sum(n_bytes for _, n_bytes in self.sent.get(path, ()))

    # -- inside

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._run())
        self._loop.close()

    async def _run(self) -> None:
        self._stop = asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            self.ports = []
            for add_routes in (self._hub_routes, self._store_routes):
                app = web.Application()
                add_routes(app)
                runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.ports.append(runner.addresses[0][1])
            self._started.set()
            await self._stop.wait()

    def _hub_routes(self, app: web.Application) -> None:
        app.router.add_get("/api/models", self._search)
        app.router.add_get("/api/models/{owner}/{name}", self._info)
        app.router.add_route("*", "/{owner}/{name}/resolve/{commit}/{path:.+}", self._resolve)

    def _store_routes(self, app: web.Application) -> None:
        app.router.add_get("/store/{owner}/{name}/{path:.+}", self._bytes)

    async def _search(self, request: web.Request) -> web.Response:
        self.requests.append(("search", request.query_string))
        wanted = request.query.get("search", "").lower()
        found = [name for name in self.repos if wanted in name.lower()]
        return web.json_response([{"id": name, "modelId": name, "tags": ["gguf"]} for name in found])

    async def _info(self, request: web.Request) -> web.StreamResponse:
        name = f"{request.match_info['owner']}/{request.match_info['name']}"
        self.requests.append(("api", name))
        repo = self.repos.get(name)
        if repo is None:
            headers = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
            return web.json_response({"error": "Repository not found"}, status=404, headers=headers)
        if (refusal := self._refusal(request, repo)) is not None:
            return refusal
        fault = repo.api_faults.pop(0) if repo.api_faults else None
        if fault == "api-500":
            return web.Response(status=500)
        if fault == "api-429":
            return web.Response(status=429, headers={"Retry-After": "1"})
        if fault == "api-cut":
            return self._torn(request)
        if repo.raw is not None:
            return web.Response(body=repo.raw, content_type="application/json")
        siblings = []
        for path, content in repo.files.items():
            entry: dict[str, Any] = {"rfilename": path, "size": len(content)}
            entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            if path not in repo.plain:
                sha256 = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        told = {"id": name, "modelId": name, "sha": repo.commit, "siblings": siblings, "downloads": 7,
                "gated": "manual" if repo.gated else False, "tags": ["gguf", "license:apache-2.0"]}  # fmt: skip
        return web.json_response(told | repo.info)

    def _refusal(self, request: web.Request, repo: Repo) -> web.Response | None:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if repo.token is None or token == repo.token:
            return None
        if repo.gated:
            headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted"}
            return web.Response(status=403, headers=headers)
        return web.Response(status=401, headers={"X-Error-Message": "Invalid username or password."})

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        owner, name, path = (request.match_info[key] for key in ("owner", "name", "path"))
        repo = self.repos[f"{owner}/{name}"]
        self.requests.append(("resolve", path))
        if request.match_info["commit"] != repo.commit:
            return web.Response(status=404)
        if (refusal := self._refusal(request, repo)) is not None:
            return refusal
        if repo.always == "forbidden":
            return web.Response(status=403)
        if repo.file_faults[:1] == ["resolve-503"]:
            repo.file_faults.pop(0)
            return web.Response(status=503)
        return web.Response(
            status=302, headers={"Location": f"http://127.0.0.1:{self.ports[1]}/store/{owner}/{name}/{path}?sign=1"}
        )

    async def _bytes(self, request: web.Request) -> web.StreamResponse:
        owner, name, path = (request.match_info[key] for key in ("owner", "name", "path"))
        repo = self.repos[f"{owner}/{name}"]
        self.requests.append(("bytes", path))
        if "Authorization" in request.headers or "Cookie" in request.headers:
            self.leaked.append(path)
        fault = repo.always or (repo.file_faults.pop(0) if repo.file_faults else None)
        if fault in ("503", "429"):
            return web.Response(status=int(fault), headers={"Retry-After": "0"})
        if fault == "gone":
            return web.Response(status=404)
        content = repo.files[path]
        begin = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        if begin >= len(content):
            return web.Response(status=416, headers={"Content-Range": f"bytes */{len(content)}"})
        status, told = (206, begin) if "Range" in request.headers else (200, 0)
        if fault == "no-range":
            status, begin = 200, 0
        if fault == "wrong-range" and status == 206:
            begin = told = max(0, begin - 10)
        if fault in ("wrong-bytes", "always-wrong"):
            at = len(content) - 1 if begin > len(content) // 2 else begin + (len(content) - begin) // 2
            content = content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]
        answer = web.StreamResponse(status=status, headers={"ETag": '"x"', "Accept-Ranges": "bytes"})
        answer.content_length = len(content) - begin
        if status == 206:
            answer.headers["Content-Range"] = f"bytes {told}-{len(content) - 1}/{len(content)}"
        await answer.prepare(request)
        await self._send(request, answer, repo, path, content, begin, fault)
        return answer

    async def _send(
        self, request: web.Request, answer: web.StreamResponse, repo: Repo, path: str, content: bytes, begin: int,
        fault: str | None,
    ) -> None:  # fmt: skip
        end = len(content)
        if fault in ("cut", "reset", "stall", "slow"):
            end = self._random.randrange(begin, len(content))
        record = self.sent.setdefault(path, [])
        place = len(record)
        record.append((begin, 0))
        for at in range(begin, end, _PIECE):
            piece = content[at : min(end, at + _PIECE)]
            await answer.write(piece)
            record[place] = (begin, record[place][1] + len(piece))
            if repo.rate is not None:
                await asyncio.sleep(len(piece) / repo.rate)
        transport = request.transport
        assert transport is not None
        match fault:
            case "cut":
                transport.close()
            case "reset":
                transport.abort()
            case "stall":
                await asyncio.sleep(30)
            case "slow":
                for at in range(end, len(content)):
                    await answer.write(content[at : at + 1])
                    record[place] = (begin, record[place][1] + 1)
                    await asyncio.sleep(0.02)
            case _:
                await answer.write_eof()

    def _torn(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            request.transport.abort()
        return web.Response()


@contextlib.contextmanager
def hub_with(**repos: Repo) -> Iterator[FakeHub]:
    """A hub with these repositories, `owner__name=Repo(...)`."""
    with FakeHub() as hub:
        hub.repos |= {name.replace("__", "/"): repo for name, repo in repos.items()}
        yield hub
