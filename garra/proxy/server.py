"""The public HTTP surface: OpenAI's completion endpoints, the model list, and health."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from garra.config import Config
from garra.errors import EngineDown, GarraError
from garra.ports import Fleet
from garra.proxy import guard
from garra.proxy.forward import forward
from garra.proxy.route import FORWARDED, error_body, read_call
from garra.proxy.upstream import UpstreamPool
from garra.spec import EngineStatus, Phase, Profile

KEEP_ALIVE_S = 75.0
"""aiohttp's own default is an hour; nginx and browsers expect about this."""
_READY_RETRY_S = 2

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class NotFound(GarraError):
    """No such path."""

    http_status = 404
    code = "not_found"


class Refused(GarraError):
    """The guard's word."""

    http_status = 403
    code = "forbidden"


class TooLarge(GarraError):
    """A body past the limit."""

    http_status = 413
    code = "request_too_large"


class ProxyServer:
    """Handlers of the public listener. Holds no state but its parts."""

    def __init__(self, config: Config, fleet: Fleet, pool: UpstreamPool) -> None:
        self._config = config
        self._fleet = fleet
        self._pool = pool
        self._hosts = guard.host_allow_list(config.settings.host, config.settings.allowed_hosts)

    def application(self) -> web.Application:
        """The aiohttp application. Run it with `handler_cancellation=True`, else clients that leave go unnoticed."""
        app = web.Application(client_max_size=self._config.settings.body_limit_mib * 1024 * 1024)
        for path in FORWARDED:
            app.router.add_post(path, self._guarded(self.completion))
        app.router.add_get("/v1/models", self._guarded(self.models))
        app.router.add_get("/v1/models/{model:.+}", self._guarded(self.model))
        app.router.add_get("/health", self._guarded(self.health))
        app.router.add_route("*", "/{path:.*}", self._guarded(self.unknown))
        return app

    def _guarded(self, handler: Handler) -> Handler:
        """`handler` behind the guard, its errors in OpenAI's shape."""

        async def guarded(request: web.Request) -> web.StreamResponse:
            refusal = guard.objection(request.headers, self._hosts)
            if refusal is not None:
                response = render(Refused(refusal))
                response.force_close()  # the body stays unread
                return response
            try:
                return await handler(request)
            except GarraError as error:
                return render(error)

        return guarded

    async def completion(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            limit = self._config.settings.body_limit_mib
            raise TooLarge(f"the request is larger than {limit} MiB", fix="raise body_limit_mib") from None
        profile = self._config.profile(read_call(body).model or "")
        async with self._fleet.lease(profile.name) as lease:
            return await forward(request, body, lease, self._pool, stall_s=self._config.settings.write_stall_s)

    async def models(self, request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._model(profile) for profile in self._fleet.profiles()]})

    async def model(self, request: web.Request) -> web.Response:
        return _json(self._model(self._config.profile(request.match_info["model"])))

    async def health(self, request: web.Request) -> web.Response:
        """200 while garra lives. With `?ready=1`: 503 until some engine is READY."""
        phases = {profile.name: self._fleet.status(profile.name).phase for profile in self._fleet.profiles()}
        ready = Phase.READY in phases.values()
        awake = {name: phase for name, phase in phases.items() if phase is not Phase.COLD}
        body = {"status": "ok", "ready": ready, "profiles": awake}
        if request.query.get("ready") in ("1", "true") and not ready:
            return _json(body | {"status": "unavailable"}, status=503, headers={"Retry-After": str(_READY_RETRY_S)})
        return _json(body)

    async def unknown(self, request: web.Request) -> web.Response:
        raise NotFound(f"there is no {request.method} {request.path[:100]} here", fix=f"POST {FORWARDED[0]}")

    def _model(self, profile: Profile) -> dict[str, Any]:
        status = self._fleet.status(profile.name)
        return {
            "id": profile.name,
            "object": "model",
            "created": 0,
            "owned_by": "garra",
            "aliases": profile.aliases,
            "description": profile.description,
            "status": {"value": _model_state(status, self._fleet.present(profile.name))},
            "context_length": status.slot_context,
            "slots": status.slots,
        }


def _model_state(status: EngineStatus, present: bool) -> str:
    match status.phase:
        case Phase.READY:
            return "loaded"
        case Phase.LOADING | Phase.BACKOFF:
            return "loading"
        case Phase.FAILED:
            return "failed"
        case _:
            return "unloaded" if present else "not_downloaded"


def render(error: GarraError) -> web.Response:
    """The error as an HTTP answer."""
    response = web.Response(status=error.http_status, body=error_body(error), content_type="application/json")
    if isinstance(error, EngineDown) and error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _json(body: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    encoded = msgspec.json.encode(body)
    return web.Response(status=status, body=encoded, content_type="application/json", headers=headers)
