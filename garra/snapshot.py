"""What is to be seen of a running garra at one moment: the words of `garra status`, the terminal view and the page."""

from __future__ import annotations

from dataclasses import dataclass, field

from garra.bill import Claim
from garra.downloads import DownloadStatus
from garra.spec import Cause, Phase
from garra.traffic import Outcome

RECENT_S = 300.0
"""What counts as recent."""
TREND_STEPS = 30
"""Into how many equal parts a trend divides that."""


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """One profile's engine, as `status` shows it."""

    profile: str
    phase: Phase
    cause: Cause | None = None
    detail: str = ""
    since_s: float = 0.0
    """Seconds in this phase."""
    load_fraction: float | None = None
    pid: int | None = None
    slots: int = 0
    slot_context: int = 0
    leases: int = 0
    lingering: int = 0
    """Slots whose client left and that the engine still works on."""
    stays_s: float | None = None
    """Seconds until it is unloaded for being idle, should nobody use it; None: it is not."""
    waiting: int = 0
    oldest_wait_s: float | None = None
    max_queue: int = 0
    pinned: bool = False
    restarts: int = 0
    rss_mib: int | None = None
    engine: str = ""
    """Stamp of the build it runs on."""
    planned_mib: Claim = field(default_factory=dict)
    """What it was planned to take, by device."""
    prompts: str = ""
    """Why prompts are not kept over a swap, where that was not asked for."""
    drafting: str = ""
    """Whether speculation pays, where the profile has any, in words."""
    warnings: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class SlotState:
    """One slot as the engine tells it (`/slots`)."""

    busy: bool
    task: int
    n_prompt_tokens: int
    """Prompt tokens processed so far."""
    n_decoded: int
    n_held: int = 0
    """Tokens of prompt and answer it holds, also while it is free."""


@dataclass(frozen=True, slots=True)
class Recent:
    """Whole answers of the last five minutes: figures that nobody measured are None."""

    answers: int = 0
    output_tok_s: float | None = None
    """All answers together, over the time from the first to the last."""
    p50_ttft_ms: float | None = None
    p95_ttft_ms: float | None = None
    p50_tpot_ms: float | None = None
    ttft_trend_ms: tuple[float | None, ...] = ()
    """The median of each ten seconds, the newest last; empty where there was none at all."""


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """One profile and its engine."""

    engine: EngineStatus
    model: str
    present: bool
    aliases: tuple[str, ...]
    requests: dict[Outcome, int]
    """How requests ended, since garra started."""
    swaps: int
    retries: int
    load_s: float | None
    """What its last load took."""
    decoded: int
    """Tokens of whole answers, and where its engine was asked, of those that run: what grows tells tok/s."""
    recent: Recent
    kind: str = "chat"
    slots: tuple[SlotState, ...] = ()
    """What each does; empty where its engine was not asked or did not say."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's memory, or the host's; MiB."""

    id: str
    """`gpu0`, `gpu1`, ..., `host`."""
    name: str
    total_mib: int
    free_mib: int
    planned_mib: int = 0
    """What garra's engines are planned to take."""
    used_mib: int | None = None
    """What they hold now; None where the driver does not tell."""
    others_mib: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttled: tuple[str, ...] = ()
    """Why its clock is held down now."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of it."""

    version: str
    pid: int
    url: str
    uptime_s: float
    engine: str
    """Stamp of the engine build in use."""
    tasks: int
    """Running asyncio tasks: a number that must not grow."""
    profiles: tuple[ProfileReport, ...]
    devices: tuple[Device, ...] = ()
    downloads: tuple[DownloadStatus, ...] = field(default=())
    """Those that run or ended since garra started."""
