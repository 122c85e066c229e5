"""Every path an engine answers, and by whose rules. Pure. docs/api.md shows the same table; a test compares the two."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from garra.dialogue import Kind


class Api(enum.Enum):
    """Whose words a client speaks: errors, and what garra itself says inside streams, come in the same."""

    CHAT = "OpenAI chat"
    TEXT = "OpenAI completions"
    RESPONSES = "OpenAI responses"
    OPENAI = "OpenAI, without streams"
    MESSAGES = "Anthropic"
    ENGINE = "llama-server"
    OLLAMA = "Ollama"


class Work(enum.Enum):
    """What a path asks of an engine."""

    ANSWER = "tokens"
    EMBED = "embeddings"
    RERANK = "scores"
    COUNT = "the tokenizer or the template"
    STEER = "a running answer"
    LOOK = "its state"

    @property
    def leases(self) -> bool:
        """Whether it waits for a slot and loads the model; else only an engine that is up is asked, past the queue."""
        return self not in (Work.STEER, Work.LOOK)


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One path, and what follows from it, worked out once: it is looked at for every request."""

    method: str
    path: str
    api: Api
    work: Work
    note: str = ""
    answers: bool = field(init=False)
    """It decodes tokens."""
    kind: Kind | None = field(init=False)
    """The kind of profile that does such work; None where any does."""
    form: Api | None = field(init=False)
    """How a conversation is written in its bodies; None where there is none."""
    edited: bool = field(init=False)
    """A profile's edits hold for its bodies."""
    reworded: bool = field(init=False)
    """Its answers may need other words than the engine's."""

    def __post_init__(self) -> None:
        form = _form_of(self)
        object.__setattr__(self, "answers", self.work is Work.ANSWER)
        object.__setattr__(self, "kind", _KINDS.get(self.work))
        object.__setattr__(self, "form", form)
        object.__setattr__(self, "reworded", self.answers and self.api in (Api.MESSAGES, Api.RESPONSES))
        object.__setattr__(self, "edited", form is not None or self.work in _KINDS)


_KINDS: Mapping[Work, Kind] = {Work.ANSWER: "chat", Work.EMBED: "embedding", Work.RERANK: "rerank"}
_FORMS = {"messages": Api.MESSAGES, "responses": Api.RESPONSES, "completions": Api.CHAT}


def _form_of(route: Route) -> Api | None:
    if route.api in (Api.CHAT, Api.RESPONSES, Api.MESSAGES):
        return route.api
    if route.path == "/apply-template":
        return Api.CHAT
    return _FORMS.get(route.path.split("/")[-2]) if route.work is Work.COUNT else None


ROUTES: tuple[Route, ...] = (
    Route("POST", "/v1/chat/completions", Api.CHAT, Work.ANSWER),
    Route("POST", "/chat/completions", Api.CHAT, Work.ANSWER),
    Route("POST", "/v1/chat/completions/input_tokens", Api.OPENAI, Work.COUNT),
    Route("POST", "/chat/completions/input_tokens", Api.OPENAI, Work.COUNT),
    Route("POST", "/v1/chat/completions/control", Api.OPENAI, Work.STEER, "ends the reasoning of a running answer"),
    Route("POST", "/v1/completions", Api.TEXT, Work.ANSWER),
    Route("POST", "/v1/responses", Api.RESPONSES, Work.ANSWER),
    Route("POST", "/responses", Api.RESPONSES, Work.ANSWER),
    Route("POST", "/v1/responses/input_tokens", Api.OPENAI, Work.COUNT),
    Route("POST", "/responses/input_tokens", Api.OPENAI, Work.COUNT),
    Route("POST", "/v1/embeddings", Api.OPENAI, Work.EMBED),
    Route("POST", "/v1/rerank", Api.OPENAI, Work.RERANK),
    Route("POST", "/v1/reranking", Api.OPENAI, Work.RERANK),
    Route("POST", "/rerank", Api.OPENAI, Work.RERANK),
    Route("POST", "/reranking", Api.OPENAI, Work.RERANK),
    Route("POST", "/v1/messages", Api.MESSAGES, Work.ANSWER),
    Route("POST", "/v1/messages/count_tokens", Api.MESSAGES, Work.COUNT),
    Route("POST", "/completion", Api.ENGINE, Work.ANSWER),
    Route("POST", "/completions", Api.ENGINE, Work.ANSWER),
    Route("POST", "/infill", Api.ENGINE, Work.ANSWER, "fills in the middle, where the model can"),
    Route("POST", "/embedding", Api.ENGINE, Work.EMBED),
    Route("POST", "/embeddings", Api.ENGINE, Work.EMBED),
    Route("POST", "/tokenize", Api.ENGINE, Work.COUNT),
    Route("POST", "/detokenize", Api.ENGINE, Work.COUNT),
    Route("POST", "/apply-template", Api.ENGINE, Work.COUNT),
    Route("GET", "/props", Api.ENGINE, Work.LOOK),
    Route("GET", "/slots", Api.ENGINE, Work.LOOK),
    Route("GET", "/lora-adapters", Api.ENGINE, Work.LOOK),
)
BY_PATH: Mapping[tuple[str, str], Route] = {(route.method, route.path): route for route in ROUTES}

_APIS_BY_PREFIX = (
    ("/api/", Api.OLLAMA),
    ("/v1/messages", Api.MESSAGES),
    ("/v1/responses", Api.RESPONSES),
    ("/v1/", Api.OPENAI),
)


def api_of(method: str, path: str) -> Api:
    """Whose words to use, also for paths and methods that do not exist."""
    route = BY_PATH.get((method, path))
    if route is not None:
        return route.api
    return next((api for prefix, api in _APIS_BY_PREFIX if path.startswith(prefix)), Api.OPENAI)
