"""The nouns that cross rooms. Frozen, slotted, stdlib types only; units stand in the names."""

from __future__ import annotations

import enum
import signal as _signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from garra import dialogue
from garra.bill import Bill, Claim
from garra.dialogue import OnOffAuto, Sampling
from garra.prompts.words import Persist

MIB = 1024 * 1024

KvType = Literal["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"]
Speculation = Literal["none", "mtp", "ngram", "draft"]
Ngram = Literal["mod", "map-k", "map-k4v", "simple", "cache"]
Overflow = Literal["error", "truncate_middle"]
Mode = Literal["low_latency", "high_throughput"]

Backend = Literal["cpu", "cuda", "vulkan", "hip", "metal"]
BuildMode = Literal["native", "portable", "dev"]


class Phase(enum.StrEnum):
    """Where one engine is in its life."""

    COLD = enum.auto()
    LOADING = enum.auto()
    READY = enum.auto()
    DRAINING = enum.auto()
    STOPPING = enum.auto()
    BACKOFF = enum.auto()
    FAILED = enum.auto()


class Cause(enum.StrEnum):
    """Why an engine left, or never reached, READY."""

    REQUESTED = enum.auto()
    """A person or a shutdown asked for it."""
    EVICTED = enum.auto()
    """Another model needed its place."""
    IDLE = enum.auto()
    """Nobody used it for `idle_ttl_s`."""
    CRASH = enum.auto()
    """It died while READY or DRAINING."""
    START_FAILED = enum.auto()
    """It exited, or answered something unexpected, while LOADING."""
    LOAD_TIMEOUT = enum.auto()
    """No progress for `load_timeout_s`."""
    STALLED = enum.auto()
    """It was asked for tokens and gave none, though it answered nothing is wrong."""
    OOM = enum.auto()
    """It, or the kernel, said that memory ran out."""
    BAD_FLAG = enum.auto()
    """It refused its command line: trying again cannot help."""
    BAD_MODEL = enum.auto()
    """It refused the file: trying again cannot help."""


ORDERLY = frozenset({Cause.REQUESTED, Cause.EVICTED, Cause.IDLE})
HOPELESS = frozenset({Cause.BAD_FLAG, Cause.BAD_MODEL})


@dataclass(frozen=True, slots=True)
class Profile:
    """One model with the way it is to be served, all layers of settings applied."""

    name: str
    model: str
    """A model reference: `file:`, `pypi:`, `hf:` or `ollama:`."""
    context: int
    """Tokens per slot."""
    mode: Mode
    slots: int
    batch: int
    ubatch: int
    threads: int | None
    """None: the physical cores."""
    gpu_layers: int | None
    """None: all of them."""
    flash_attention: OnOffAuto
    cache_type_k: KvType
    cache_type_v: KvType
    cache_ram_mib: int
    unified_kv: bool
    speculation: Speculation
    draft_depth: int
    """Tokens a model drafts at a time."""
    draft_model: str | None
    """Reference of the model that drafts."""
    ngram: Ngram
    ngram_match: int | None
    """Tokens that must have been seen before; None leaves the engine's own."""
    ngram_draft: int | None
    overflow: Overflow
    """What becomes of a conversation that outgrows its slot."""
    reasoning: OnOffAuto
    text_only: bool
    idle_ttl_s: float
    """0: never unloaded for being idle."""
    max_queue: int
    """How many requests may wait."""
    queue_timeout_s: float
    max_wait_s: float
    """When its oldest request has waited so long, the model that is in the way takes no newer ones."""
    min_resident_s: float
    """Once loaded, it stays at least so long, unless somebody has waited for `max_wait_s`."""
    swap_batch: int
    """How many requests it may still take while another model waits for its place."""
    stall_s: float
    memory_mib: int | None
    """What one engine takes of the memory budget; None: all of it."""
    force: bool
    """Started as it asks even where the plan says that memory is short."""
    pin: bool
    """Never unloaded for another model's sake, nor for being idle."""
    load_timeout_s: float
    stop_grace_s: float
    description: str = ""
    kind: dialogue.Kind = "chat"
    pooling: dialogue.Pooling | None = None
    """Of embeddings; None: the model's own."""
    edits: dialogue.Edits = dialogue.NO_EDITS
    mends: dialogue.Mends = dialogue.ALL_MENDS
    variant: str = ""
    """Which of its variants was asked for: other edits, the same engine."""
    max_tokens: int | None = None
    """Longest answer where a request sets no limit; None: as long as the context."""
    sampling: Sampling = dialogue.NO_SAMPLING
    server: dialogue.Server | None = None
    """Who answers, where it is not an engine of ours."""
    persist_prompts: Persist = "swap"
    """What becomes of the slots' contents when the engine leaves."""
    fallback: tuple[str, ...] = ()
    """Profiles that answer while this one is down or its queue full."""
    aliases: tuple[str, ...] = ()
    extra_args: tuple[str, ...] = ()
    sha256: str | None = None
    download_bytes: int | None = None

    def launches_like(self, other: Profile) -> bool:
        """Whether both start the same engine: what differs concerns garra alone."""
        return self.engine_part() == other.engine_part()

    def engine_part(self) -> Profile:
        """This profile with everything that only garra's own decisions depend on made equal."""
        return replace(self, **_ONLY_GARRAS)


_ONLY_GARRAS: dict[str, Any] = {
    "mode": "low_latency",
    "aliases": (),
    "fallback": (),
    "description": "",
    "idle_ttl_s": 0.0,
    "load_timeout_s": 1.0,
    "stop_grace_s": 1.0,
    "max_queue": 0,
    "queue_timeout_s": 0.0,
    "max_wait_s": 0.0,
    "min_resident_s": 0.0,
    "swap_batch": 0,
    "stall_s": 0.0,
    "memory_mib": None,
    "overflow": "error",
    "edits": dialogue.NO_EDITS,
    "mends": dialogue.ALL_MENDS,
    "variant": "",
    "pin": False,
    "download_bytes": None,
}


@dataclass(frozen=True, slots=True)
class Policy:
    """What holds for all models together."""

    budget: Claim
    """Memory all engines may take, by device."""
    drain_s: float = 10.0
    """How long running answers may go on when their engine is to stop."""
    fifo: bool = False
    """Models follow each other strictly in the order of arrival, however many swaps that takes."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything one engine start needs except the socket, which is fresh at every spawn."""

    profile: Profile
    """As it is started: where memory is short, with less than was asked for."""
    model_path: Path
    threads: int
    gpu_layers: int
    """999 stands for all: more layers than any model has."""
    notes: tuple[str, ...] = ()
    """Decisions a person may want to know."""
    gpu: int | None = None
    """Number of the GPU as the driver counts; None: none is used."""
    experts_on_host: int = 0
    """How many layers, from the first, keep a mixture's experts in host memory."""
    checkpoints: int = 32
    """Snapshots per slot a model that cannot rewind may keep in host memory."""
    projector: Path | None = None
    """The file that lets the model see, loaded beside it."""
    draft: Path | None = None
    """The model that drafts."""
    bill: Bill | None = None
    """What it takes of each memory."""
    rung: int = 0
    """How far down the ladder it stands: 0 is what the profile asks for."""
    engine: str = ""
    """Stamp of the engine it was made for."""

    @property
    def total_context(self) -> int:
        """Tokens in the whole KV cache: the engine splits `-c` over its slots."""
        return self.profile.context * self.profile.slots


@dataclass(frozen=True, slots=True)
class EngineBuild:
    """An engine on disk."""

    stamp: str
    build_number: int
    folder: Path
    backend: str
    patches: tuple[str, ...]
    mode: str = "native"
    origin: str = "built"
    """`built` from the pinned sources, from the user's `own sources`, `prebuilt` on the package index, or `given`."""
    provenance: str = ""
    """Where a prebuilt or given one comes from, with its hash."""
    library_path: tuple[str, ...] = ()
    """Folders its libraries are looked up in, where its own rpath does not name them."""
    toolkit: str = ""
    """The CUDA release it was compiled with."""

    def environment(self) -> dict[str, str]:
        """What its programs need in their environment besides ours."""
        return {"LD_LIBRARY_PATH": ":".join(self.library_path)} if self.library_path else {}

    def tool(self, name: str) -> Path:
        """The path of one of its programs."""
        return self.folder / "bin" / name


@dataclass(frozen=True, slots=True)
class EngineProps:
    """What a running engine says about itself (`/props`)."""

    slots: int
    slot_context: int
    model_path: str
    build: str
    traits: dialogue.Traits = dialogue.UNKNOWN_TRAITS


@dataclass(frozen=True, slots=True)
class EngineExit:
    """How a process ended."""

    code: int | None
    """Exit status, or None when a signal ended it."""
    signal: int | None
    cause: Cause
    detail: str
    """The line that names the cause, or the best there is."""
    log_tail: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.signal is not None:
            how = f"ended by {_signal.Signals(self.signal).name}"
        elif self.code is not None:
            how = f"exit status {self.code}"
        else:
            return self.detail
        return f"{self.detail} ({how})" if self.detail else how
