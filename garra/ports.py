"""What is slow, random or outside arrives through these; `app.py` alone picks the real ones."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

from garra.spec import EngineExit, EngineProps, EngineStatus, LaunchPlan, Profile


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """Monotonic time and calls in the future."""

    def now(self) -> float:
        """Seconds since some fixed point."""
        ...

    def call_later(self, delay_s: float, call: Callable[[], None]) -> Timer: ...


class EngineProcess(Protocol):
    """One spawned engine."""

    @property
    def pid(self) -> int: ...

    @property
    def socket(self) -> Path: ...

    def send_signal(self, signum: int) -> None:
        """Signal the whole group; a process that is gone already is no error."""
        ...

    async def wait(self) -> EngineExit:
        """How it ended, after its output was read to the end and its traces on disk are gone."""
        ...

    def progress(self) -> int:
        """A number that grows while the engine gets on with loading."""
        ...

    def rss_bytes(self) -> int | None: ...


class Spawner(Protocol):
    """Starts engines."""

    async def spawn(self, plan: LaunchPlan) -> EngineProcess:
        """Raises EngineDown when the program cannot be started at all."""
        ...


class EngineHttp(Protocol):
    """The engine's own HTTP surface, as the supervisor needs it."""

    async def healthy(self, socket: Path) -> bool:
        """True when loaded; False while it loads or does not listen yet."""
        ...

    async def props(self, socket: Path) -> EngineProps: ...

    async def warm_up(self, socket: Path) -> None:
        """One token, so that the first client does not pay for lazy allocations."""
        ...


class Connections(Protocol):
    """The proxy's open connections to one engine: the supervisor closes them before it stops the engine."""

    def close(self, socket: Path) -> None: ...


class Lease(Protocol):
    """One request's hold on a READY engine."""

    @property
    def socket(self) -> Path: ...

    def completed(self) -> None:
        """The engine gave a whole answer: its restart budget is full again."""
        ...

    async def death(self) -> str:
        """Why the engine behind a broken connection is gone, in one line."""
        ...


class Fleet(Protocol):
    """All engines, as the proxy and the control API see them."""

    def lease(self, profile: str) -> contextlib.AbstractAsyncContextManager[Lease]:
        """Loads the engine if it is cold. Raises ModelNotPresent, EngineDown, ShuttingDown."""
        ...

    def load(self, profile: str) -> Awaitable[None]:
        """Start loading, also out of FAILED; await it for the outcome, or not. Raises ModelNotPresent."""
        ...

    def unload(self, profile: str) -> None: ...

    def profiles(self) -> Sequence[Profile]: ...

    def status(self, profile: str) -> EngineStatus: ...

    def present(self, profile: str) -> bool:
        """Whether the model's file is on this machine."""
        ...
