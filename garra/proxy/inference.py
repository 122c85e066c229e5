"""A request from its body to the end of its answer: whose it is, which engine's, the wait, and one more try."""

from __future__ import annotations

import logging
from typing import NamedTuple

from aiohttp import web

from garra.apis.passages import Passage
from garra.apis.routes import Route, Work, kind_for
from garra.config import Config
from garra.errors import BadRequest, EngineDied, EngineDown, GarraError, TooLarge
from garra.ports import Fleet, Hold, Lease
from garra.proxy.call import Call
from garra.proxy.forward import forward, glance, relayed_response
from garra.proxy.journal import identify, take_down
from garra.proxy.journal import log as request_log
from garra.proxy.patience import Patience
from garra.proxy.recorder import Recorder
from garra.proxy.route import CallHead, fingerprint, read_call, session_of, wish_of
from garra.proxy.upstream import UpstreamPool
from garra.spec import Phase, Profile
from garra.traffic import Priority


class Asked(NamedTuple):
    """What a request wants, in the words of an engine."""

    route: Route
    body: bytes
    head: CallHead
    profile: Profile
    translation: Passage | None = None


class Inference:
    """All that needs an engine. Holds no state but its parts."""

    def __init__(self, config: Config, fleet: Fleet, pool: UpstreamPool, recorder: Recorder) -> None:
        self._fleet = fleet
        self._pool = pool
        self._recorder = recorder
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Settings for requests from now on."""
        settings = config.settings
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
        """The engine's answer, once it is this request's turn."""
        route, body, head, profile, translation = asked
        _check_kind(profile, route.work)
        address = request.remote or "unknown"
        wish = wish_of(profile.name, request.headers, address, len(body), self._config.keys, self._keyless)
        if self._fleet.suspicious:
            wish = wish._replace(fingerprint=fingerprint(route.path, body))
        ident = request["id"] = identify(request.headers)
        session = session_of(request.headers, head, wish.client) if route.work is Work.ANSWER else None
        hold = self._fleet.lease(wish)
        call = Call(request, route, profile, body, None, self._write_stall_s, ident.encode(), session, translation)
        patience = self._patience(call, hold) if head.stream else None
        call = call._replace(patience=patience)
        lease: Lease | None = None
        failure: GarraError | None = None
        noted = self._recorder.active or request_log.isEnabledFor(logging.INFO)
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
            if patience is None or not patience.begun:
                raise
            patience.fail(error)
            return relayed_response(200, keep_alive=False)
        finally:
            if patience is not None:
                patience.stop()
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
        socket = self._fleet.address(profile.name)
        if socket is None:
            raise EngineDown(f"{profile.name} is not loaded", fix=f"garra load {profile.name}", retry_after_s=5)
        return await glance(self._pool, socket, route, body, self._write_stall_s)

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
