"""One request for an engine, with all that is decided about it before an engine is asked. Words of the proxy."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from garra.apis.passages import MessagesPassage, Passage, ResponsesPassage
from garra.apis.prepare import Prepared, prepare
from garra.apis.routes import Api, Route
from garra.ports import Lease
from garra.proxy.patience import Patience
from garra.proxy.route import fingerprint, spliced
from garra.spec import Profile

Told = tuple[tuple[str, bytes], ...]
"""Headers for the client."""


@dataclass(slots=True)
class Call:
    """What is asked, of whom, and what its client was told meanwhile."""

    request: web.BaseRequest
    route: Route
    profile: Profile
    body: bytes
    stall_s: float
    id: bytes = b""
    session: bytes | None = None
    translation: Passage | None = None
    """The answer goes to a client of an API the engine does not speak."""
    told: Told = ()
    patience: Patience | None = None
    """For streams."""

    @property
    def api(self) -> Api:
        return self.route.api

    @property
    def begun(self) -> bool:
        """The client has a response head already, of an event stream."""
        return self.patience is not None and self.patience.begun

    @property
    def voice(self) -> Api:
        """Whose words garra's own errors come in."""
        return Api.OLLAMA if self.translation is not None else self.route.api

    def print(self) -> bytes:
        """The request's fingerprint."""
        return fingerprint(self.route.path, self.body)

    def prepared(self, lease: Lease) -> Prepared:
        """The body as this engine is to get it. Raises BadRequest."""
        return prepare(self.body, self.route, self.profile, lease.traits)

    def with_hints(self, body: bytes, lease: Lease) -> bytes:
        """The body with what garra alone tells the engine."""
        drafts, session = lease.drafts, self.session
        if (drafts and session is None) or not self.route.answers:
            return body
        return spliced(body, drafts=drafts, session=session)

    def passage(self) -> Passage | None:
        """How the answer is passed on; None: as it is."""
        if self.translation is not None:
            return self.translation
        if not self.route.reworded:
            return None
        match self.route.api:
            case Api.MESSAGES:
                return MessagesPassage()
            case Api.RESPONSES if self.profile.mends.responses_stream:
                return ResponsesPassage(self.profile.name)
        return None
