"""The control API, served on a Unix socket (0600) for the `garra` command alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from garra import __version__
from garra.config import Config
from garra.errors import GarraError
from garra.ports import Clock, Fleet
from garra.proxy.server import render
from garra.spec import EngineStatus


class ProfileReport(msgspec.Struct):
    """One profile in `status`."""

    engine: EngineStatus
    model: str
    present: bool
    aliases: tuple[str, ...]


class StatusReport(msgspec.Struct):
    """What `garra status` shows."""

    version: str
    pid: int
    url: str
    uptime_s: float
    engine: str
    """Stamp of the engine build in use."""
    profiles: list[ProfileReport]


class ControlServer:
    """Handlers of the control socket."""

    def __init__(
        self, config: Config, fleet: Fleet, *, url: str, engine: str, clock: Clock, shut_down: Callable[[], None]
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._url = url
        self._engine = engine
        self._clock = clock
        self._started = clock.now()
        self._shut_down = shut_down

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/garra/v1/status", self.status)
        app.router.add_post("/garra/v1/profiles/{name}/load", self.load)
        app.router.add_post("/garra/v1/profiles/{name}/unload", self.unload)
        app.router.add_post("/garra/v1/shutdown", self.shutdown)
        return app

    async def status(self, request: web.Request) -> web.Response:
        profiles = [
            ProfileReport(self._fleet.status(p.name), p.model, self._fleet.present(p.name), p.aliases)
            for p in self._fleet.profiles()
        ]
        uptime_s = self._clock.now() - self._started
        return _answer(StatusReport(__version__, os.getpid(), self._url, uptime_s, self._engine, profiles))

    async def load(self, request: web.Request) -> web.Response:
        return self._do(self._fleet.load, request)

    async def unload(self, request: web.Request) -> web.Response:
        return self._do(self._fleet.unload, request)

    async def shutdown(self, request: web.Request) -> web.Response:
        self._shut_down()
        return _answer({"stopping": True})

    def _do(self, what: Callable[[str], object], request: web.Request) -> web.Response:
        try:
            profile = self._config.profile(request.match_info["name"])
            what(profile.name)
            return _answer({"profile": profile.name})
        except GarraError as error:
            return render(error)


def _answer(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
