"""A request from its body to the end of its answer: whose it is, which engine's, the wait, and one more try."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from garra.apis.passages import Passage
from garra.apis.routes import Route, Work, kind_for
from garra.config import Config
from garra.errors import BadRequest, EngineDied, EngineDown, GarraError, TooLarge
from garra.ports import Fleet, Hold, Lease
from garra.proxy.access import Access
from garra.proxy.call import Call, Told
from garra.proxy.forward import collect, forward, glance, relayed_response
from garra.proxy.journal import identify, take_down
from garra.proxy.journal import log as request_log
from garra.proxy.patience import Patience
from garra.proxy.recorder import Recorder
from garra.proxy.route import CallHead, fingerprint, read_call, session_of, wish_of
from garra.proxy.upstream import UpstreamPool
from garra.spec import Phase, Profile
from garra.traffic import Outcome, Priority, Wish


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

    async def body_of(self, request: web.BaseRequest) -> bytes:
        """The whole body. Raises TooLarge."""
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            return await request.read()
        except web.HTTPRequestEntityTooLarge:
            limit = self._config.settings.body_limit_mib
            raise TooLarge(f"the request is larger than {limit} MiB", fix="raise body_limit_mib") from None

    async def answer(self, request: web.BaseRequest, route: Route) -> web.StreamResponse:
        """The engine's answer to a request in an API the engine speaks."""
        body = await self.body_of(request)
        if not route.work.leases:
            return await self._past_the_queue(request, route, body)
        head = read_call(body)
        return await self.serve(request, Asked(route, body, head, self._config.profile(head.model or "")))

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
        wish = self._wish(request, profile, 0)
        async with self._fleet.lease(wish) as lease:
            lease.ended(Outcome.COMPLETE)

    async def glance(self, profile: Profile, route: Route, asked: dict[str, Any]) -> bytes:
        """What the profile's engine answers to a small question past the queue. Raises EngineDown."""
        return await glance(self._pool, self._address(profile), route, msgspec.json.encode(asked), self._write_stall_s)

    def _wish(self, request: web.BaseRequest, profile: Profile, n_bytes: int) -> Wish:
        """Raises Forbidden, TooMany, BadRequest."""
        key = request.get("key")
        self._access.check(key, profile.name, self._pool.loop.time())
        address = request.remote or "unknown"
        return wish_of(profile.name, request.headers, address, n_bytes, key, self._keyless)

    async def _run(
        self, request: web.BaseRequest, asked: Asked, do: Callable[[Call, Lease, UpstreamPool], Awaitable[Any]]
    ) -> Any:
        """`do` with a lease, and once more with another if the engine died before it said anything."""
        route, body, head, profile = asked.route, asked.body, asked.head, asked.profile
        _check_kind(profile, route.work)
        wish = self._wish(request, profile, len(body))
        if self._fleet.suspicious:
            wish = wish._replace(fingerprint=fingerprint(route.path, body))
        if asked.keep_s is not None:
            wish = wish._replace(keep_s=asked.keep_s)
        ident = request["id"] = identify(request.headers)
        session = session_of(request.headers, head, wish.client) if route.work is Work.ANSWER else None
        hold = self._fleet.lease(wish)
        call = Call(
            request, route, profile, body, self._write_stall_s, ident.encode(), session, asked.translation, asked.told
        )
        if head.stream:
            call.patience = self._patience(call, hold)
        lease: Lease | None = None
        failure: GarraError | None = None
        noted = self._recorder.active or request_log.isEnabledFor(logging.INFO)
        began = self._pool.loop.time() if noted else 0.0
        try:
            try:
                async with hold as lease:
                    return await do(call, lease, self._pool)
            except EngineDied as died:
                if not died.untouched:
                    raise
            hold.again(call.print())  # the engine died before it said anything: that costs one more try
            async with hold as lease:
                return await do(call, lease, self._pool)
        except GarraError as error:
            failure = error
            if call.patience is None or not call.begun:
                raise
            call.patience.fail(error)
            return relayed_response(200, keep_alive=False)
        finally:
            if call.patience is not None:
                call.patience.stop()
            if noted:
                seconds = self._pool.loop.time() - began
                take_down(ident, route.path, wish, lease, seconds, failure)
                self._recorder.take(route.path, body, wish, lease, began, seconds)

    def _patience(self, call: Call, hold: Hold) -> Patience:
        settings = self._config.settings
        grace_s, heartbeat_s = settings.first_byte_grace_s, settings.heartbeat_s
        return Patience(call.request, call.voice, call.profile.name, hold, grace_s=grace_s, heartbeat_s=heartbeat_s)

    async def _past_the_queue(self, request: web.BaseRequest, route: Route, body: bytes) -> web.StreamResponse:
        """A look at an engine, or a word to one of its answers: no slot, no load, only where it is up."""
        named = request.query.get("model") or (read_call(body).model if body else None)
        profile = self._config.profile(named) if named else self._only_one_up()
        told = await glance(self._pool, self._address(profile), route, body, self._write_stall_s)
        return web.Response(body=told, content_type="application/json")

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


def _check_kind(profile: Profile, work: Work) -> None:
    """Raises BadRequest for work that profiles of this kind cannot do."""
    wanted = kind_for(work)
    if wanted is not None and profile.kind != wanted:
        raise BadRequest(
            f'{profile.name} is a profile of kind "{profile.kind}": it gives no {work.value}',
            fix=f'name a profile with kind = "{wanted}"; GET /v1/models tells the kinds',
        )
