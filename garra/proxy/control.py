"""The control API, served on a Unix socket (0600) for the `garra` command alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from garra import __version__
from garra.bench.statistics import percentile
from garra.config import Config
from garra.errors import BadRequest, GarraError
from garra.ports import Clock, Fleet
from garra.proxy import registry
from garra.proxy.answers import answer, render
from garra.proxy.registry import RegistryApi
from garra.spec import EngineStatus, Phase, Profile
from garra.tally import Past
from garra.traffic import Outcome

_HOLD_LOOK_S = 0.25
_RECENT_S = 300.0


class Recent(msgspec.Struct):
    """Whole answers of the last while: figures that nobody measured are None."""

    answers: int = 0
    output_tok_s: float | None = None
    """All answers together, over the time from the first to the last."""
    p50_ttft_ms: float | None = None
    p95_ttft_ms: float | None = None
    p50_tpot_ms: float | None = None


class ProfileReport(msgspec.Struct):
    """One profile in `status`."""

    engine: EngineStatus
    model: str
    present: bool
    aliases: tuple[str, ...]
    requests: dict[Outcome, int]
    """How requests ended, since garra started."""
    swaps: int
    retries: int
    load_s: float | None
    """What its last load took."""
    recent: Recent
    """Of the last five minutes."""


class _Pin(msgspec.Struct):
    pinned: bool = True


class StatusReport(msgspec.Struct):
    """What `garra status` shows."""

    version: str
    pid: int
    url: str
    uptime_s: float
    engine: str
    """Stamp of the engine build in use."""
    tasks: int
    """Running asyncio tasks: a number that must not grow."""
    profiles: list[ProfileReport]


class ControlServer:
    """Handlers of the control socket."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        *,
        url: str,
        key: str,
        engine: Callable[[], str],
        clock: Clock,
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
        self._url = url
        self._key = key
        self._engine = engine
        self._clock = clock
        self._started = clock.now()
        self._shut_down = shut_down

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/garra/v1/status", self.status)
        app.router.add_post("/garra/v1/key", self.key)
        app.router.add_post("/garra/v1/profiles/{name}/load", self.load)
        app.router.add_post("/garra/v1/profiles/{name}/unload", self.unload)
        app.router.add_post("/garra/v1/profiles/{name}/pin", self.pin)
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
        profiles = [self._profile(profile) for profile in self._fleet.profiles()]
        uptime_s = self._clock.now() - self._started
        n_tasks = len(asyncio.all_tasks())
        return _answer(StatusReport(__version__, os.getpid(), self._url, uptime_s, self._engine(), n_tasks, profiles))

    def _profile(self, profile: Profile) -> ProfileReport:
        name, tally = profile.name, self._fleet.tally(profile.name)
        return ProfileReport(
            self._fleet.status(name),
            profile.model,
            self._fleet.present(name),
            profile.aliases,
            dict(tally.outcomes),
            tally.swaps,
            tally.retries,
            tally.last_load_s,
            _recent(tally.recent, self._clock.now()),
        )

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
            return _answer({"profile": profile.name})
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

    async def events(self, request: web.Request) -> web.StreamResponse:
        """The last facts and every new one, as server-sent events."""
        return await _as_events(request, self._follow())

    async def traffic(self, request: web.Request) -> web.StreamResponse:
        """The shape of every request that ends, as server-sent events; with `?text=1` what it asked, too."""
        return await _as_events(request, self._record(request.query.get("text") in ("1", "true")))

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
            return _answer(self._reload())
        except GarraError as error:
            return render(error)

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


async def _as_events(request: web.Request, told: AsyncGenerator[bytes, None]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    async with contextlib.aclosing(told) as lines:
        async for line in lines:
            await response.write(b"data: " + line + b"\n\n")
    return response


def _recent(past: Iterable[Past], now: float) -> Recent:
    late = [one for one in past if now - one.at <= _RECENT_S]
    if not late:
        return Recent()
    ttfts = [one.ttft_s * 1e3 for one in late]
    tpots = [one.tpot_s * 1e3 for one in late if one.tpot_s is not None]
    spent_s = now - min(one.at - one.ttft_s for one in late)
    return Recent(
        answers=len(late),
        output_tok_s=sum(one.n_decoded for one in late) / spent_s if spent_s > 0 else None,
        p50_ttft_ms=statistics.median(ttfts),
        p95_ttft_ms=percentile(ttfts, 95),
        p50_tpot_ms=statistics.median(tpots) if tpots else None,
    )


def _answer(body: Any) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json")
