"""The public HTTP surface: OpenAI's completion endpoints, the model list, and health."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from garra.config import Config
from garra.errors import EngineDied, EngineDown, Forbidden, GarraError, NotFound, TooLarge
from garra.ports import Fleet, Hold, Lease, Registry
from garra.proxy import guard, registry
from garra.proxy.forward import Call, forward, relayed_response
from garra.proxy.journal import HEADER, identify, take_down
from garra.proxy.journal import log as request_log
from garra.proxy.metrics import METRICS_TYPE, exposition
from garra.proxy.patience import Patience
from garra.proxy.recorder import Recorder
from garra.proxy.registry import RegistryApi
from garra.proxy.route import FORWARDED, fingerprint, read_call, wish_of
from garra.proxy.shapes import Api, error_body
from garra.proxy.upstream import UpstreamPool
from garra.spec import EngineStatus, Phase, Profile
from garra.traffic import Priority

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 75.0
"""aiohttp's own default is an hour; nginx and browsers expect about this."""
_READY_RETRY_S = 2

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ProxyServer:
    """Handlers of the public listener. Holds no state but its parts."""

    def __init__(self, config: Config, fleet: Fleet, pool: UpstreamPool, models: Registry) -> None:
        self._fleet = fleet
        self._pool = pool
        self._routes: dict[tuple[str, str], Handler] = {("POST", path): self.completion for path in FORWARDED}
        self._routes |= {("GET", "/v1/models"): self.models, ("GET", "/health"): self.health}
        self._routes |= {("GET", "/metrics"): self.metrics}
        self.registry = RegistryApi(models, self._keyless_loopback)
        self.recorder = Recorder()
        self.configure(config)

    def _keyless_loopback(self) -> bool:
        """Whether who reaches the listener may do what the person at the machine may, deleting aside."""
        return guard.is_loopback(self._config.settings.host) and not self._config.settings.keys

    def configure(self, config: Config) -> None:
        """Settings for requests from now on."""
        settings = config.settings
        self._config = config
        self._keyless = Priority[settings.keyless_priority.upper()]
        self._body_limit = settings.body_limit_mib * 1024 * 1024
        self._write_stall_s = settings.write_stall_s
        self._hosts = guard.host_allow_list(config.settings.host, config.settings.allowed_hosts)

    def web_server(self) -> web.Server:
        """The listener's protocol. Handlers are cancelled when their client leaves, else that would go unnoticed.

        No router: a dictionary is enough for a handful of paths, and faster (measured: 40 instead of 46 us a request).
        """
        return web.Server(
            self._handle,
            request_factory=self._request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
        )

    def _request(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        loop = self._pool.loop
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=self._body_limit)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The guard, then the handler of the path; errors in OpenAI's shape."""
        headers = request.headers
        refusal = guard.objection(
            headers.get("Host"), headers.get("Origin"), headers.get("Sec-Fetch-Site"), self._hosts
        )
        if refusal is not None:
            response = render(Forbidden(refusal))
            response.force_close()  # the body stays unread
            return response
        path = request.path
        handler = self._routes.get((request.method, path))
        if handler is None:
            handler = self._by_prefix(request.method, path)
        api = FORWARDED.get(path, Api.CHAT)
        try:
            return await handler(request)
        except GarraError as error:
            return render(error, api, request.get("id"))
        except Exception:
            log.exception("a bug in garra, at %s %s", request.method, path)
            response = render(GarraError("a bug in garra: see its log"), api)
            response.force_close()
            return response

    def _by_prefix(self, method: str, path: str) -> Handler:
        if path.startswith(registry.PREFIX):
            return self.registry.public
        return self.model if method == "GET" and path.startswith("/v1/models/") else self.unknown

    async def completion(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            limit = self._config.settings.body_limit_mib
            raise TooLarge(f"the request is larger than {limit} MiB", fix="raise body_limit_mib") from None
        head = read_call(body)
        profile = self._config.profile(head.model or "")
        api = FORWARDED[request.path]
        address = request.remote or "unknown"
        wish = wish_of(profile.name, request.headers, address, len(body), self._config.keys, self._keyless)
        if self._fleet.suspicious:
            wish = wish._replace(fingerprint=fingerprint(request.path, body))
        ident = request["id"] = identify(request.headers)
        hold = self._fleet.lease(wish)
        patience = self._patience(request, api, profile, hold) if head.stream else None
        may_shorten = profile.overflow == "truncate_middle"
        call = Call(request, api, body, patience, self._write_stall_s, ident.encode(), may_shorten)
        lease: Lease | None = None
        failure: GarraError | None = None
        noted = self.recorder.active or request_log.isEnabledFor(logging.INFO)
        began = self._pool.loop.time() if noted else 0.0
        try:
            try:
                async with hold as lease:
                    return await forward(call, lease, self._pool)
            except EngineDied as died:
                if not died.untouched:
                    raise
            hold.again(call.print())  # the engine died before it said anything: that costs one more try
            async with hold as lease:
                return await forward(call, lease, self._pool)
        except GarraError as error:
            failure = error
            if not call.begun or patience is None:
                raise
            patience.fail(error)
            return relayed_response(200, keep_alive=False)
        finally:
            if patience is not None:
                patience.stop()
            if noted:
                seconds = self._pool.loop.time() - began
                take_down(ident, request.path, wish, lease, seconds, failure)
                self.recorder.take(request.path, body, wish, lease, began, seconds)

    def _patience(self, request: web.BaseRequest, api: Api, profile: Profile, hold: Hold) -> Patience:
        settings = self._config.settings
        grace_s, heartbeat_s = settings.first_byte_grace_s, settings.heartbeat_s
        return Patience(request, api, profile.name, hold, grace_s=grace_s, heartbeat_s=heartbeat_s)

    async def models(self, request: web.BaseRequest) -> web.Response:
        return _json({"object": "list", "data": [self._model(profile) for profile in self._fleet.profiles()]})

    async def model(self, request: web.BaseRequest) -> web.Response:
        return _json(self._model(self._config.profile(request.path.removeprefix("/v1/models/"))))

    async def health(self, request: web.BaseRequest) -> web.Response:
        """200 while garra lives. With `?ready=1`: 503 until some engine is READY."""
        phases = {profile.name: self._fleet.status(profile.name).phase for profile in self._fleet.profiles()}
        ready = Phase.READY in phases.values()
        awake = {name: phase for name, phase in phases.items() if phase is not Phase.COLD}
        body = {"status": "ok", "ready": ready, "profiles": awake}
        if request.query.get("ready") in ("1", "true") and not ready:
            return _json(body | {"status": "unavailable"}, status=503, headers={"Retry-After": str(_READY_RETRY_S)})
        return _json(body)

    async def metrics(self, request: web.BaseRequest) -> web.Response:
        """Prometheus's text format; a scrape touches no engine."""
        return web.Response(body=exposition(self._fleet), headers={"Content-Type": METRICS_TYPE})

    async def unknown(self, request: web.BaseRequest) -> web.Response:
        raise NotFound(f"there is no {request.method} {request.path[:100]} here", fix=f"POST {Api.CHAT.value}")

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
            "engine": status.engine,
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


def render(error: GarraError, api: Api = Api.CHAT, ident: str | None = None) -> web.Response:
    """The error as an HTTP answer; `ident`: of the request, where it has one."""
    response = web.Response(status=error.http_status, body=error_body(error, api), content_type="application/json")
    if ident is not None:
        response.headers[HEADER] = ident
    if isinstance(error, EngineDown) and error.retry_after_s is not None:
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def _json(body: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    encoded = msgspec.json.encode(body)
    return web.Response(status=status, body=encoded, content_type="application/json", headers=headers)
