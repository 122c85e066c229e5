"""Words of connecting. Frozen, stdlib types only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Form = Literal["json", "yaml", "toml", "env"]


@dataclass(frozen=True, slots=True)
class Served:
    """What a client is to use."""

    url: str
    """Without `/v1`."""
    model: str
    n_ctx: int
    """Of one slot."""
    key: str
    """What to send as a key: any text while no key is needed."""
    key_env: str | None = None
    """The variable that holds the key, where there is a real one: it is never written into a file."""
    tools: bool = True
    vision: bool = False

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    @property
    def n_output(self) -> int:
        """Tokens a client should leave for an answer: a quarter of the context, 8192 at most."""
        return min(8192, self.n_ctx // 4)


@dataclass(frozen=True, slots=True)
class FileChange:
    """Settings to be merged into a file of the client's."""

    path: str
    """With `~` for the home folder."""
    form: Form
    settings: dict[str, Any]
    by: tuple[str, str] | None = None
    """A list in it whose entries are told apart by a field: (list, field)."""


@dataclass(frozen=True, slots=True)
class Setup:
    """All a client needs."""

    files: tuple[FileChange, ...] = ()
    environment: dict[str, str] | None = None
    """Variables to set, for clients that have no file for it."""
    command: str = ""
    """To run once, or to start it with."""
    steps: tuple[str, ...] = ()
    """By hand, where there is no other way."""
    notes: tuple[str, ...] = ()
