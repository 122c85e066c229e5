"""What is slow, random or outside arrives through these; `app.py` alone picks the real ones."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from garra.bill import Claim, Need, Place
from garra.dialogue import Kind, Traits
from garra.downloads import DownloadStatus
from garra.prompts.words import Moved
from garra.snapshot import EngineStatus, SlotState
from garra.spec import EngineExit, EngineProps, LaunchPlan, Profile
from garra.tally import PromptTally, Tally
from garra.traffic import Outcome, Usage, Waited, WaitNews, Wish


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


class Plans(Protocol):
    """What fits where on this machine. Answers may take a second; nobody waits for them on the event loop."""

    async def need(self, profile: Profile) -> Need:
        """What the profile takes while nothing else of garra's is loaded."""
        ...

    async def plan(self, profile: Profile, place: Place) -> LaunchPlan:
        """The launch for this moment, within its place. Raises ModelNotPresent, BadModel, DoesNotFit."""
        ...

    async def lower(self, plan: LaunchPlan, wished: Profile, why: str) -> bool:
        """The plan ran out of memory: the next one asks for less. False when there is no smaller one."""
        ...

    async def learn(self, plan: LaunchPlan, pid: int) -> None:
        """The plan's engine is READY: what it really took counts from now on."""
        ...

    def served(self, plan: LaunchPlan, decode_tok_s: float) -> None:
        """The plan's engine leaves; its answers came at this speed. Never blocks."""
        ...

    async def budget(self, pids: Sequence[int]) -> Claim:
        """What all engines may take now; `pids` are theirs, everybody else's memory is taken off."""
        ...


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

    async def warm_up(self, socket: Path, kind: Kind = "chat") -> float:
        """One token, or what else its kind gives, so that the first client does not pay for lazy allocations; seconds
        of prefill per token of it.

        Raises EngineDown when the token does not come.
        """
        ...

    async def save_slot(self, socket: Path, slot: int, name: str) -> Moved:
        """Write what a slot holds to a file of that name in the engine's folder. Raises EngineDown."""
        ...

    async def restore_slot(self, socket: Path, slot: int, name: str) -> Moved:
        """The other way round. Raises EngineDown."""
        ...

    async def slots(self, socket: Path) -> tuple[SlotState, ...] | None:
        """What every slot does; None when the engine does not say so in time."""
        ...


class Connections(Protocol):
    """The proxy's open connections to one engine: the supervisor closes them before it stops the engine."""

    def close(self, socket: Path) -> None: ...

    def activity(self, socket: Path) -> int:
        """A number that grows with every piece of an answer that came from this engine."""
        ...


class Prompts(Protocol):
    """What slots hold, over the absence of their engine. Nothing here raises: what fails costs a prefill."""

    async def keep(self, plan: LaunchPlan, socket: Path) -> None:
        """Save what is worth it, within the time there is for that: the engine is about to be stopped."""
        ...

    async def bring_back(self, plan: LaunchPlan, socket: Path, slots: int) -> None:
        """Restore what was kept: the engine is up, and nobody has asked it yet."""
        ...

    def note(self, profile: str, chain: tuple[int, ...], usage: Usage) -> None:
        """A whole answer: what a slot holds now, and whether what was restored was found."""
        ...

    def tally(self, profile: str) -> PromptTally: ...

    def said(self, profile: str) -> str:
        """Why nothing is kept for this profile, where that was not asked for; else empty."""
        ...


class Memory(Protocol):
    """The memory models share: VRAM where there is a GPU, else RAM."""

    def asked_back(self, pid: int) -> Callable[[], bool]:
        """For a process that is about to end: a question to ask afterwards, whether what it held is free again."""
        ...

    def holders(self) -> str:
        """Who holds memory that should be free by now, in a few words; empty when nobody can tell."""
        ...

    async def read_ahead(self, path: Path) -> None:
        """Bring a file into the page cache, as far as there is room."""
        ...


class Lease(Protocol):
    """One request's hold on a slot of a READY engine."""

    @property
    def socket(self) -> Path: ...

    @property
    def waited(self) -> Waited: ...

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, once it has."""
        ...

    @property
    def usage(self) -> Usage | None: ...

    @property
    def traits(self) -> Traits:
        """What the model's template can do."""
        ...

    @property
    def drafts(self) -> bool:
        """False: this request is to go without drafts, so that they can be compared."""
        ...

    def began(self) -> None:
        """The first byte of the answer came."""
        ...

    def shortened(self) -> None:
        """The conversation lost its middle to fit."""
        ...

    def mended(self, what: str) -> None:
        """Something of the request or its answer had to be mended; counted by name."""
        ...

    def ended(self, outcome: Outcome, usage: Usage | None = None) -> None:
        """How it went; without this call the client is taken to have left."""
        ...

    async def death(self, fingerprint: bytes) -> str:
        """Why the engine behind a broken connection is gone, in one line; what was asked of it is remembered."""
        ...


class Hold(Protocol):
    """`async with` over one lease. May be entered again after `again`."""

    async def __aenter__(self) -> Lease:
        """Waits for a slot; loads the engine if it is cold.

        Raises ModelNotPresent, QueueFull, QueueTimeout, Quarantined, EngineDown, ShuttingDown.
        """
        ...

    async def __aexit__(self, *exc: object) -> None: ...

    def again(self, fingerprint: bytes) -> None:
        """The engine died before it answered: the next entry stands where this one stood."""
        ...

    def news(self) -> WaitNews:
        """How the waiting goes."""
        ...


class Fleet(Protocol):
    """All engines, as the proxy and the control API see them."""

    def lease(self, wish: Wish) -> Hold: ...

    @property
    def suspicious(self) -> bool:
        """An engine died lately: wishes should carry their fingerprint."""
        ...

    def load(self, profile: str) -> Awaitable[None]:
        """Start loading, also out of FAILED; await it for the outcome, or not. Raises ModelNotPresent."""
        ...

    def unload(self, profile: str) -> None: ...

    def pin(self, profile: str, pinned: bool) -> None:
        """Keep the model in memory, whoever wants its place; or let it go."""
        ...

    def reserve(self, on: bool) -> None:
        """Let all engines go and load none, until it is called with False. Raises Taken when somebody did so before."""
        ...

    def tally(self, profile: str) -> Tally: ...

    def prompts(self, profile: str) -> PromptTally: ...

    def profiles(self) -> Sequence[Profile]: ...

    def status(self, profile: str) -> EngineStatus: ...

    def present(self, profile: str) -> bool:
        """Whether the model's file is on this machine."""
        ...

    def address(self, profile: str) -> Path | None:
        """The socket of its engine while that is READY, for questions that take no slot."""
        ...


class Registry(Protocol):
    """The model hub and what is on this machine, as the HTTP surface sees them."""

    async def search(self, query: str, limit: int) -> list[dict[str, Any]]:
        """Repositories with GGUF models, each with its size and where it would run here."""
        ...

    def download(self, ref: str, *, projector: bool = True) -> DownloadStatus:
        """Begin, go on with, or join the download of this model. Raises ConfigError, Refused."""
        ...

    def downloads(self) -> list[DownloadStatus]:
        """All since garra started, the newest last."""
        ...

    def status(self, job: str) -> DownloadStatus:
        """Raises NotFound."""
        ...

    def follow(self, job: str) -> AsyncGenerator[DownloadStatus, None]:
        """Its status now and at every change, until it ended. Raises NotFound."""
        ...

    def stop(self, job: str, *, discard: bool) -> DownloadStatus:
        """Pause it, or cancel it and `discard` what has come. Raises NotFound."""
        ...

    async def models(self) -> list[dict[str, Any]]:
        """What the catalog knows."""
        ...

    async def remove(self, ref: str) -> int:
        """Bytes given back. Raises UnknownModel, Taken."""
        ...
