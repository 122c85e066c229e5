"""How the conversations of a profile are treated on their way to its engine. Frozen, stdlib types only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

OnOffAuto = Literal["on", "off", "auto"]
Kind = Literal["chat", "embedding", "rerank"]
Pooling = Literal["mean", "cls", "last", "rank"]


@dataclass(frozen=True, slots=True)
class Sampling:
    """Defaults the engine applies where a request says nothing; None leaves the engine's own."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None


@dataclass(frozen=True, slots=True)
class Edits:
    """What garra changes in the bodies of requests before their engine sees them."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Set where the client is silent."""
    force: Mapping[str, Any] = field(default_factory=dict)
    strip: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.defaults or self.force or self.strip)


@dataclass(frozen=True, slots=True)
class Mends:
    """Which of the things that clients send and engines refuse are mended."""

    system: OnOffAuto = "auto"
    """Several or late system messages become one leading one; auto: where the template raises at some conversations."""
    tools: Literal["refuse", "drop"] = "refuse"
    """What becomes of tools where the template has no place for them."""
    text_format: bool = True
    billing_block: bool = True
    responses_stream: bool = True
    template_errors: bool = True
    unfinished: bool = True
    sessions: bool = True

    def merges_system(self, traits: Traits) -> bool:
        return traits.picky if self.system == "auto" else self.system == "on"


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model's chat template can do, as far as one can tell."""

    tools: bool = True
    picky: bool = True
    """It raises an error at conversations it does not like."""
    thinking: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """Somebody else's server that answers in the place of an engine of ours."""

    url: str
    """With the path its API begins at, as clients write it: `http://box:8000/v1`."""
    model: str
    """What the model is called there."""
    key_env: str | None = None
    """The variable of the environment that holds the key."""


NO_EDITS = Edits()
ALL_MENDS = Mends()
UNKNOWN_TRAITS = Traits()
NO_SAMPLING = Sampling()
