"""The control API, served on a Unix socket (0600) for the `garra` command alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec
from aiohttp import web

from garra.apis.bodies import decoded
from garra.config import Config
from garra.errors import BadRequest, GarraError
from garra.overview import Overview
from garra.ports import Fleet
from garra.prompts.warm import Warmer
from garra.proxy import registry
from garra.proxy.answers import answer, as_events, render
from garra.proxy.registry import RegistryApi
from garra.spec import Phase

_HOLD_LOOK_S = 0.25


class _Pin(msgspec.Struct):
    pinned: bool = True


class _Warm(msgspec.Struct):
    label: str
    messages: list[dict[str, Any]]
    tools: list[Any] = []


class ControlServer:
    """Handlers of the control socket."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        *,
        overview: Overview,
        warmer: Warmer,
        key: str,
        models: RegistryApi,
        follow: Callable[[], AsyncGenerator[bytes, None]],
        record: Callable[[bool], AsyncGenerator[bytes, None]],
        reload: Callable[[], Any],
        shut_down: Callable[[], None],
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._models = models
        self._follow = follow
        self._record = record
        self._reload = reload
        self._overview = overview
        self._warmer = warmer
        self._key = key
        self._shut_down = shut_down

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/garra/v1/status", self.status)
        app.router.add_post("/garra/v1/key", self.key)
        app.router.add_post("/garra/v1/profiles/{name}/load", self.load)
        app.router.add_post("/garra/v1/profiles/{name}/unload", self.unload)
        app.router.add_post("/garra/v1/profiles/{name}/pin", self.pin)
        app.router.add_post("/garra/v1/profiles/{name}/warm", self.warm)
        app.router.add_get("/garra/v1/events", self.events)
        app.router.add_get("/garra/v1/traffic", self.traffic)
        app.router.add_post("/garra/v1/reload", self.reload)
        app.router.add_post("/garra/v1/exclusive", self.exclusive)
        app.router.add_post("/garra/v1/shutdown", self.shutdown)
        app.router.add_route("*", registry.PREFIX + "{tail:.*}", self.registry)
        return app

    async def registry(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._models.answer(request)
        except GarraError as error:
            return render(error)

    def configure(self, config: Config) -> None:
        """Settings for requests from now on."""
        self._config = config

    async def status(self, request: web.Request) -> web.Response:
        """A snapshot; with `?closely=1` engines are asked what their slots do."""
        return answer(await self._overview.snapshot(closely=request.query.get("closely") in ("1", "true")))

    async def key(self, request: web.Request) -> web.Response:
        """The key of this garra's own commands: no secret for who may open this socket."""
        return answer({"key": self._key})

    async def load(self, request: web.Request) -> web.Response:
        """Starts a load; with `?wait=1` answers when it is over, and how."""
        try:
            profile = self._config.profile(request.match_info["name"])
            loaded = self._fleet.load(profile.name)
            if request.query.get("wait") in ("1", "true"):
                await asyncio.wait((asyncio.ensure_future(loaded),))  # not `await`: a caller who leaves ends no load
                await loaded
            return answer({"profile": profile.name})
        except GarraError as error:
            return render(error)

    async def unload(self, request: web.Request) -> web.Response:
        return self._do(self._fleet.unload, request)

    async def pin(self, request: web.Request) -> web.Response:
        """Body `{"pinned": false}` lets it go; no body pins."""
        try:
            pinned = msgspec.json.decode(await request.read() or b"{}", type=_Pin).pinned
        except msgspec.DecodeError as error:
            return render(BadRequest(f"the request body is not usable: {error}"))
        return self._do(lambda name: self._fleet.pin(name, pinned), request)

    async def warm(self, request: web.Request) -> web.Response:
        """Body `{"label": "...", "messages": [...], "tools": [...]}`: the beginning they make is computed and kept."""
        try:
            profile = self._config.profile(request.match_info["name"])
            asked = decoded(await request.read(), _Warm)
            return answer(await self._warmer.warm(profile, asked.label, asked.messages, asked.tools))
        except GarraError as error:
            return render(error)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The last facts and every new one, as server-sent events."""
        return await as_events(request, self._follow())

    async def traffic(self, request: web.Request) -> web.StreamResponse:
        """The shape of every request that ends, as server-sent events; with `?text=1` what it asked, too."""
        return await as_events(request, self._record(request.query.get("text") in ("1", "true")))

    async def exclusive(self, request: web.Request) -> web.StreamResponse:
        """The machine without engines for as long as this answer is being read: `{"held": true}` once they are gone."""
        try:
            self._fleet.reserve(True)
        except GarraError as error:
            return render(error)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            await response.prepare(request)
            while request.transport is not None and not request.transport.is_closing():
                phases = [self._fleet.status(profile.name).phase for profile in self._fleet.profiles()]
                held = all(phase in (Phase.COLD, Phase.FAILED) for phase in phases)
                await response.write(msgspec.json.encode({"held": held}) + b"\n")
                await asyncio.sleep(_HOLD_LOOK_S)
        except ConnectionError:
            pass  # whoever held it is gone
        finally:
            self._fleet.reserve(False)
        return response

    async def reload(self, request: web.Request) -> web.Response:
        try:
            return answer(self._reload())
        except GarraError as error:
            return render(error)

    async def shutdown(self, request: web.Request) -> web.Response:
        self._shut_down()
        return answer({"stopping": True})

    def _do(self, what: Callable[[str], object], request: web.Request) -> web.Response:
        try:
            profile = self._config.profile(request.match_info["name"])
            what(profile.name)
            return answer({"profile": profile.name})
        except GarraError as error:
            return render(error)
