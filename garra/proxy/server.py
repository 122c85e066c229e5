"""The public listener: the guard, then whoever answers the path."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web
from multidict import istr

from garra.apis.routes import ROUTES, api_of
from garra.config import Config
from garra.errors import Forbidden, GarraError, NotFound
from garra.overview import Overview
from garra.ports import Fleet, Registry
from garra.proxy import cors, guard, listing, ollama, registry
from garra.proxy.access import Access, own_key
from garra.proxy.answers import render
from garra.proxy.inference import Inference
from garra.proxy.listener import Listener, with_limit
from garra.proxy.listing import Listing
from garra.proxy.management import Management
from garra.proxy.metrics import METRICS_TYPE, exposition
from garra.proxy.ollama import OllamaApi
from garra.proxy.ollama_pull import Puller
from garra.proxy.page import Page, wanted
from garra.proxy.recorder import Recorder
from garra.proxy.registry import RegistryApi
from garra.proxy.upstream import UpstreamPool
from garra.proxy.watching import Watching
from garra.registry.cards import Cards

log = logging.getLogger(__name__)


_HOST, _ORIGIN, _FETCH_SITE = istr("Host"), istr("Origin"), istr("Sec-Fetch-Site")
ALIVE = "Ollama is running"

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ProxyServer:
    """Handlers of the public listener. Holds no state but its parts."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        pool: UpstreamPool,
        models: Registry,
        cards: Cards,
        reload: Callable[[], Any],
        overview: Overview,
        follow: Callable[[], AsyncGenerator[bytes, None]],
    ) -> None:
        self._access: Access | None = None
        self.own_key, self._own = own_key()
        """For the commands of whoever started this garra."""
        self._fleet = fleet
        self._pool = pool
        self.registry = RegistryApi(models)
        self.recorder = Recorder()
        self._management = Management(fleet, models, reload)
        self._watching = Watching(overview, follow, self._management)
        self._page = Page()
        self._inference = Inference(fleet, pool, self.recorder)
        self._listing = Listing(config, fleet, cards)
        self._ollama = OllamaApi(config, fleet, self._inference, cards, Puller(models), self._management)
        self._routes: dict[tuple[str, str], Handler] = {
            (route.method, route.path): partial(
                self._inference.answer if route.work.leases else self._inference.look, route
            )
            for route in ROUTES
        }
        self._routes |= {("POST", "/models/load"): self._management.load}
        self._routes |= {("POST", "/models/unload"): self._management.unload}
        self._routes |= {("GET", path): self._listing.models for path in ("/v1/models", "/models")}
        self._routes |= {("GET", path): self._listing.health for path in ("/health", "/v1/health")}
        self._routes |= {("GET", path): self._page.answer for path in self._page.paths}
        self._routes |= {("GET", "/garra/v1/status"): self._watching.status}
        self._routes |= {("GET", "/garra/v1/events"): self._watching.events}
        self._routes |= {("POST", "/garra/v1/bench"): self._watching.bench}
        self._routes |= {("GET", "/openapi.json"): self._listing.openapi}
        self._routes |= {("GET", "/metrics"): self.metrics, ("GET", "/"): self.root, ("HEAD", "/"): self.root}
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Settings for requests from now on."""
        settings = config.settings
        loopback = guard.is_loopback(settings.host)
        access = Access(config.keys, loopback=loopback, keyless=settings.keyless, own=self._own)
        self._access = access.inherit(self._access) if self._access is not None else access
        self._inference.configure(config, access)
        self._management.configure(config, access)
        self._listing.configure(config)
        self._watching.configure(config)
        self._ollama.configure(config)
        self._body_limit = settings.body_limit_mib * 1024 * 1024
        self._pages = frozenset(settings.cors_origins)
        self._hosts = guard.host_allow_list(settings.host, settings.allowed_hosts)

    def web_server(self) -> web.Server:
        """The listener's protocol.

        No router: a dictionary is enough for a handful of paths, and faster (measured: 40 instead of 46 us a request).
        """
        return Listener(self._handle, with_limit(self._pool.loop, lambda: self._body_limit))

    def _handle(self, request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        """The guard, then whoever answers. Not itself a coroutine: one less for every request."""
        headers = request.headers
        origin = headers.get(_ORIGIN)
        refusal = guard.objection(headers.get(_HOST), origin, headers.get(_FETCH_SITE), self._hosts, self._pages)
        if refusal is not None:
            return self._refuse(request, refusal)
        if origin is not None and origin in self._pages:
            return self._for_a_page(request, origin)
        return self._answer(request)

    async def _refuse(self, request: web.BaseRequest, why: str) -> web.Response:
        response = render(Forbidden(why), api_of(request.method, request.path))
        response.force_close()  # the body stays unread
        return response

    async def _for_a_page(self, request: web.BaseRequest, origin: str) -> web.StreamResponse:
        """The same for a page of another origin that may call."""
        if request.method == "OPTIONS":
            return web.Response(status=204, headers=cors.preflight(origin, request.headers))
        told = cors.headers_for(origin)
        request["told"] = tuple((name, value.encode()) for name, value in told.items())
        response = await self._answer(request)
        if not response.prepared:
            response.headers.update(told)
        return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The handler of the path; errors in the words of its API."""
        headers, method, path = request.headers, request.method, request.path
        try:
            access = self._access
            assert access is not None
            if not access.open:
                request["key"] = access.identify(headers, path)
            handler = self._routes.get((method, path)) or self._by_prefix(method, path)
            return await handler(request)
        except GarraError as error:
            return render(error, api_of(method, path), request.get("id"))
        except Exception:
            log.exception("a bug in garra, at %s %s", method, path)
            response = render(GarraError("a bug in garra: see its log"), api_of(method, path))
            response.force_close()
            return response

    def _by_prefix(self, method: str, path: str) -> Handler:
        if path.startswith(registry.PREFIX):
            return self.manage_models
        if path.startswith(ollama.PREFIX):
            return self._ollama.handle
        return self._listing.model if method == "GET" and path.startswith(listing.MODELS) else self.unknown

    async def manage_models(self, request: web.BaseRequest) -> web.StreamResponse:
        self._management.require(request, always_admin=request.method == "DELETE")
        return await self.registry.answer(request)

    async def root(self, request: web.BaseRequest) -> web.Response:
        """The page for browsers; what Ollama says there for clients that look whether somebody is at home."""
        if wanted(request) and request.method == "GET":
            return await self._page.answer(request)
        return web.Response(text=ALIVE, content_type="text/plain")

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """Prometheus's text format; a scrape touches no engine."""
        return web.Response(body=exposition(self._fleet), headers={"Content-Type": METRICS_TYPE})

    async def unknown(self, request: web.BaseRequest) -> web.Response:
        raise NotFound(
            f"there is no {request.method} {request.path[:100]} here", fix="POST /v1/chat/completions; see docs/api.md"
        )
