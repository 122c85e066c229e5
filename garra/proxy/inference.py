"""A request from its body to the end of its answer: whose it is, which engine's, the wait, and one more try."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from garra.apis.passages import Passage
from garra.apis.routes import Api, Route
from garra.config import Config
from garra.errors import BadModel, BadRequest, EngineDied, EngineDown, GarraError, ModelNotPresent, TooLarge
from garra.ports import Fleet, Lease
from garra.prompts.chain import PIECE_BYTES, chain_of
from garra.proxy.access import Access, may_use
from garra.proxy.answers import JSON
from garra.proxy.call import Call, Told
from garra.proxy.forward import collect, forward, glance
from garra.proxy.head import as_headers
from garra.proxy.journal import identify, take_down
from garra.proxy.journal import log as request_log
from garra.proxy.listener import read_body
from garra.proxy.patience import Patience
from garra.proxy.recorder import Recorder
from garra.proxy.relay import relayed_response
from garra.proxy.route import CallHead, fingerprint, read_call, session_of, wish_of
from garra.proxy.upstream import UpstreamPool
from garra.spec import Phase, Profile
from garra.traffic import ClientKey, Outcome, Priority, Wish

log = logging.getLogger(__name__)

_ELSEWHERE = (EngineDown, ModelNotPresent, BadModel)
"""What another profile may do better: this one is down, or its queue full."""
Do = Callable[[Call, Lease, UpstreamPool], Awaitable[Any]]


class Asked(NamedTuple):
    """What a request wants, in the words of an engine."""

    route: Route
    body: bytes
    head: CallHead
    profile: Profile
    translation: Passage | None = None
    keep_s: float | None = None
    """How long the client would like the model to stay when nobody uses it; negative: for ever."""
    told: Told = ()


class Inference:
    """All that needs an engine. Holds no state but its parts."""

    def __init__(self, fleet: Fleet, pool: UpstreamPool, recorder: Recorder) -> None:
        self._fleet = fleet
        self._pool = pool
        self._recorder = recorder

    def configure(self, config: Config, access: Access) -> None:
        """Settings for requests from now on."""
        settings = config.settings
        self._access = access
        self._config = config
        self._keyless = Priority[settings.keyless_priority.upper()]
        self._write_stall_s = settings.write_stall_s
        self._body_limit = settings.body_limit_mib * 2**20
        self._for_pages = bool(settings.cors_origins)

    async def body_of(self, request: web.BaseRequest) -> bytes:
        """The whole body. Raises TooLarge, BadRequest."""
        try:
            if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
                request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return await read_body(request)
        except web.HTTPRequestEntityTooLarge:
            limit = self._config.settings.body_limit_mib
            raise TooLarge(f"the request is larger than {limit} MiB", fix="raise body_limit_mib") from None

    def answer(self, route: Route, request: web.BaseRequest) -> Coroutine[Any, Any, web.StreamResponse]:
        """The engine's answer, in an API the engine speaks. Not itself a coroutine: one less for every short answer."""
        content = request.content
        if content.is_eof() and content.total_bytes <= self._body_limit:  # as a rule it came with the head
            return self._answer(route, request, content.read_nowait())
        return self._answer_later(route, request)

    async def _answer_later(self, route: Route, request: web.BaseRequest) -> web.StreamResponse:
        return await self._answer(route, request, await self.body_of(request))

    def _answer(self, route: Route, request: web.BaseRequest, body: bytes) -> Coroutine[Any, Any, web.StreamResponse]:
        head = read_call(body)
        return self._run(request, Asked(route, body, head, self._config.profile(head.model or "")), forward)

    async def look(self, route: Route, request: web.BaseRequest) -> web.StreamResponse:
        """A look at an engine, or a word to one of its answers: no slot, no load, only where it is up."""
        body = await self.body_of(request)
        named = request.query.get("model") or (read_call(body).model if body else None)
        profile = self._config.profile(named) if named else self._only_one_up()
        self._check_key(request, profile)
        told = await glance(self._pool, self._address(profile), route, body, self._write_stall_s)
        return web.Response(body=told, headers=JSON)

    async def serve(self, request: web.BaseRequest, asked: Asked) -> web.StreamResponse:
        """The engine's answer on its way to the client, once it is this request's turn."""
        response: web.StreamResponse = await self._run(request, asked, forward)
        return response

    async def collect(self, request: web.BaseRequest, asked: Asked) -> bytes:
        """The engine's answer in one piece, for whoever makes something else of it."""
        body: bytes = await self._run(request, asked, collect)
        return body

    async def touch(self, request: web.BaseRequest, profile: Profile) -> None:
        """Bring the model into memory, in its turn."""
        self._check_key(request, profile)
        wish = self._wish(request, profile, 0)
        async with self._fleet.lease(wish) as lease:
            lease.ended(Outcome.COMPLETE)

    async def glance(self, profile: Profile, route: Route, asked: dict[str, Any]) -> bytes:
        """What the profile's engine answers to a small question past the queue. Raises EngineDown."""
        return await glance(self._pool, self._address(profile), route, msgspec.json.encode(asked), self._write_stall_s)

    def _run(self, request: web.BaseRequest, asked: Asked, do: Do) -> Coroutine[Any, Any, Any]:
        """`do` with a lease of the profile; where that one is down or full, with one of its fallbacks."""
        request["id"] = ident = identify(request.headers)
        if not self._access.open:
            self._check_key(request, asked.profile)
        if self._for_pages and "told" in request:
            asked = asked._replace(told=(*asked.told, *request["told"]))
        if not asked.head.stream and not asked.profile.fallback:
            return self._attempt(request, asked, ident, None, do)
        return self._stream(request, asked, ident, do)

    async def _stream(self, request: web.BaseRequest, asked: Asked, ident: str, do: Do) -> Any:
        """The same with signs of life while it is waited for, where it is a stream."""
        patience = self._patience(request, asked) if asked.head.stream else None
        one = self._first_of if asked.profile.fallback else self._attempt
        try:
            return await one(request, asked, ident, patience, do)
        except GarraError as error:
            if patience is None or not patience.begun:
                raise
            patience.fail(error)
            return relayed_response(200, keep_alive=False)
        finally:
            if patience is not None:
                patience.stop()

    async def _first_of(
        self, request: web.BaseRequest, asked: Asked, ident: str, patience: Patience | None, do: Do
    ) -> Any:
        """The first answer that the profile, or else one of its fallbacks, begins. Raises the profile's own error."""
        own = asked.profile
        key, failures = self._key_of(request), {}
        others = (self._config.profile(name) for name in own.fallback)
        able = (own, *(one for one in others if may_use(key, one.name) and one.kind == own.kind))
        for profile in sorted(able, key=self._waits_out_a_crash):
            told = (*asked.told, ("X-Garra-Profile", profile.name.encode()))
            try:
                return await self._attempt(request, asked._replace(profile=profile, told=told), ident, patience, do)
            except _ELSEWHERE as error:
                log.info("%s: %s; asking elsewhere", profile.name, error.what)
                failures[profile.name] = error
        raise failures[own.name]

    def _waits_out_a_crash(self, profile: Profile) -> bool:
        """Whether its engine is down until a delay is over: others are asked first."""
        return self._fleet.status(profile.name).phase is Phase.BACKOFF

    async def _attempt(
        self, request: web.BaseRequest, asked: Asked, ident: str, patience: Patience | None, do: Do
    ) -> Any:
        """`do` with a lease, and once more with another if the engine died before it said anything.

        Raises what keeps it from an answer, none of which its client has seen.
        """
        route, body, profile = asked.route, asked.body, asked.profile
        if route.kind is not None and profile.kind != route.kind:
            raise _wrong_kind(profile, route)
        wish = self._wish(request, profile, len(body))
        if self._fleet.suspicious:
            wish = wish._replace(fingerprint=fingerprint(route.path, body))
        if asked.keep_s is not None:
            wish = wish._replace(keep_s=asked.keep_s)
        if len(body) >= PIECE_BYTES and profile.persist_prompts != "off":
            wish = wish._replace(chain=chain_of(body))
        session = None
        if route.answers and profile.mends.sessions:
            session = session_of(request.headers, asked.head, wish.client)
        hold = self._fleet.lease(wish)
        if patience is not None:
            patience.watch(hold)
        call = Call(
            request, route, profile, body, self._write_stall_s, ident.encode(), session, asked.translation, asked.told,
            patience,
        )  # fmt: skip
        lease: Lease | None = None
        failure: GarraError | None = None
        noted = self._recorder.active or request_log.isEnabledFor(logging.INFO)
        began = self._pool.loop.time() if noted else 0.0
        try:
            try:
                async with hold as lease:
                    return await do(call, lease, self._pool)
            except EngineDied as died:
                if not died.untouched or profile.fallback:
                    raise
            hold.again(call.print())  # the engine died before it said anything: that costs one more try
            async with hold as lease:
                return await do(call, lease, self._pool)
        except GarraError as error:
            failure = error
            raise
        finally:
            if noted:
                seconds = self._pool.loop.time() - began
                take_down(ident, route.path, wish, lease, seconds, failure)
                self._recorder.take(route.path, body, wish, lease, began, seconds)

    def _check_key(self, request: web.BaseRequest, profile: Profile) -> None:
        """Raises Forbidden, TooMany."""
        self._access.check(self._key_of(request), profile.name, self._pool.loop.time())

    def _key_of(self, request: web.BaseRequest) -> ClientKey | None:
        """Whose key it carries; not even looked for while nobody has one."""
        return None if self._access.open else request.get("key")

    def _wish(self, request: web.BaseRequest, profile: Profile, n_bytes: int) -> Wish:
        """Raises BadRequest."""
        key = None if self._access.open else request.get("key")
        return wish_of(profile.name, request.headers, request.remote or "unknown", n_bytes, key, self._keyless)

    def _patience(self, request: web.BaseRequest, asked: Asked) -> Patience:
        settings = self._config.settings
        voice = asked.route.api if asked.translation is None else Api.OLLAMA
        return Patience(
            request,
            voice,
            asked.profile.name,
            as_headers(dict(asked.told)) if asked.told else b"",
            grace_s=settings.first_byte_grace_s,
            heartbeat_s=settings.heartbeat_s,
        )

    def _address(self, profile: Profile) -> Path:
        socket = self._fleet.address(profile.name)
        if socket is None:
            raise EngineDown(f"{profile.name} is not loaded", fix=f"garra load {profile.name}", retry_after_s=5)
        return socket

    def _only_one_up(self) -> Profile:
        """Whose engine is meant where nobody is named. Raises BadRequest."""
        up = [one for one in self._fleet.profiles() if self._fleet.status(one.name).phase is Phase.READY]
        if len(up) == 1:
            return up[0]
        names = ", ".join(one.name for one in up) or "none"
        raise BadRequest("which model's engine is meant?", fix=f"add ?model=NAME; loaded now: {names}")


def _wrong_kind(profile: Profile, route: Route) -> BadRequest:
    """For work that profiles of this kind cannot do."""
    return BadRequest(
        f'{profile.name} is a profile of kind "{profile.kind}": it gives no {route.work.value}',
        fix=f'name a profile with kind = "{route.kind}"; GET /v1/models tells the kinds',
    )
