"""The tables of `profiles.toml` as they are written, checked, and turned into the nouns everything else works with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from garra import spec
from garra.apis.edits import merged
from garra.dialogue import NO_EDITS, Edits, Kind, Mends, OnOffAuto, Pooling, Sampling, Server
from garra.engine import argv
from garra.errors import ConfigError
from garra.prompts.words import Persist
from garra.registry.source import SERVER_PREFIX, parse_source
from garra.traffic import ClientKey, Priority


@dataclass(frozen=True, slots=True)
class ContextPreset:
    """A context that has a name, with the type of cache that goes with its length."""

    n_ctx: int
    cache_type: spec.KvType


CONTEXT_PRESETS: Mapping[str, ContextPreset] = {
    "short": ContextPreset(4096, "f16"),
    "medium": ContextPreset(16384, "f16"),
    "long": ContextPreset(32768, "q8_0"),  # half the memory for a mean KLD of 0.004 (measured): docs/inference.md
}
MODE_SLOTS: Mapping[str, int] = {"low_latency": 2, "high_throughput": 8}
DRAFT_DEPTHS: Mapping[str, int] = {"mtp": 2, "draft": 4}
"""Tokens drafted at a time. Public reports on MTP: best at 2 for small models, a loss from 5 on."""
NGRAM_SIZES: Mapping[str, tuple[int, int]] = {"map-k": (6, 16)}
"""Match and draft where a kind's own sizes (12, 48) are not the best: 1.21x against 1.15x on code (measured, CPU)."""
PriorityName = Literal["interactive", "normal", "batch"]
_VARIANT_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_ROUTING = frozenset({"model", "stream"})


class SamplingTable(BaseModel, extra="forbid"):
    temperature: float | None = Field(None, ge=0)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0)
    min_p: float | None = Field(None, ge=0, le=1)
    presence_penalty: float | None = None
    repeat_penalty: float | None = Field(None, gt=0)


class EditsTable(BaseModel, extra="forbid"):
    """Changes to the bodies of requests; of a variant, or a part of its profile."""

    defaults: dict[str, Any] = {}
    force: dict[str, Any] = {}
    strip: list[str] = []

    @field_validator("defaults", "force", "strip")
    @classmethod
    def _routing_is_left_alone(cls, value: dict[str, Any] | list[str]) -> dict[str, Any] | list[str]:
        taken = sorted(_ROUTING.intersection(value))
        if taken:
            raise ValueError(f"{', '.join(taken)} belong to the client: garra answers by them")
        return value

    def to_edits(self) -> Edits:
        made = Edits(self.defaults, self.force, tuple(self.strip))
        return made if made else NO_EDITS


class MendTable(BaseModel, extra="forbid"):
    """Mendings, each with its switch. docs/api.md says what they do."""

    system: OnOffAuto = "auto"
    tools: Literal["refuse", "drop"] = "refuse"
    text_format: bool = True
    billing_block: bool = True
    responses_stream: bool = True
    template_errors: bool = True
    unfinished: bool = True
    sessions: bool = True


class ProfileTable(BaseModel, extra="forbid"):
    """One `[profiles.NAME]` table. The field docs are in docs/profiles.md."""

    model: str = ""
    backend: Literal["engine", "openai"] = "engine"
    url: str | None = Field(None, pattern=r"^https?://[^/?#\s]+(/[^?#\s]*)?$")
    remote_model: str | None = None
    key_env: str | None = Field(None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    persist_prompts: Persist = "swap"
    fallback: list[str] = []
    description: str = ""
    kind: Kind = "chat"
    pooling: Pooling | None = None
    sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    download_bytes: int | None = Field(None, gt=0)
    context: Literal["short", "medium", "long"] | Annotated[int, Field(ge=256, le=10_000_000)] = "medium"
    mode: spec.Mode = "low_latency"
    slots: int | None = Field(None, ge=1, le=256)
    batch: int = Field(512, ge=32, le=65536)
    ubatch: int = Field(512, ge=32, le=65536)
    threads: Literal["physical"] | Annotated[int, Field(ge=1, le=1024)] = "physical"
    gpu_layers: Literal["all"] | Annotated[int, Field(ge=0, le=10_000)] = "all"
    flash_attention: OnOffAuto = "on"
    cache_type_k: spec.KvType | None = None
    cache_type_v: spec.KvType | None = None
    cache_ram_mib: int = Field(512, ge=0)
    unified_kv: bool = False
    speculation: spec.Speculation = "none"
    draft_depth: int | None = Field(None, ge=1, le=64)
    draft_model: str | None = None
    ngram: spec.Ngram = "mod"
    ngram_match: int | None = Field(None, ge=1, le=1024)
    ngram_draft: int | None = Field(None, ge=1, le=1024)
    overflow: spec.Overflow = "error"
    reasoning: OnOffAuto = "auto"
    sampling: SamplingTable = SamplingTable.model_construct()
    max_tokens: int | None = Field(None, ge=1)
    text_only: bool = True
    idle_ttl_s: float = Field(0, ge=0)
    max_queue: int = Field(128, ge=1, le=100_000)
    queue_timeout_s: float = Field(300, gt=0)
    max_wait_s: float = Field(30, ge=0)
    min_resident_s: float = Field(3, ge=0)
    swap_batch: int = Field(32, ge=0)
    stall_s: float = Field(30, ge=1)
    memory_mib: int | None = Field(None, gt=0)
    pin: bool = False
    force: bool = False
    load_timeout_s: float = Field(120, gt=0)
    stop_grace_s: float = Field(10, gt=0)
    aliases: list[str] = []
    extra_args: list[str] = []
    body: EditsTable = EditsTable.model_construct()
    mend: MendTable = MendTable.model_construct()
    variants: dict[str, EditsTable] = {}

    @field_validator("model", "draft_model")
    @classmethod
    def _models_are_sources(cls, value: str | None) -> str | None:
        try:
            parse_source(value or "file:none")
        except ConfigError as error:
            raise ValueError(f"{error.what}; {error.fix}") from None
        return value

    @field_validator("variants")
    @classmethod
    def _variants_have_plain_names(cls, value: dict[str, EditsTable]) -> dict[str, EditsTable]:
        for name in value:
            if not _VARIANT_NAME.fullmatch(name):
                raise ValueError(f'variant name "{name}": use lower-case letters, digits, "_" and "-", 40 at most')
        return value

    @field_validator("extra_args")
    @classmethod
    def _extra_args_leave_garras_flags_alone(cls, value: list[str]) -> list[str]:
        owned = argv.owned_flags(value)
        if owned:
            raise ValueError(f"{', '.join(owned)} is set by garra itself; use the profile's own keys")
        return value

    @model_validator(mode="after")
    def _values_agree(self) -> ProfileTable:
        if self.backend == "openai" and (self.url is None or self.model):
            raise ValueError(
                'backend = "openai" needs a url, and has no model of ours: remote_model names the one there'
            )
        if self.backend == "engine" and (not self.model or self.url or self.key_env or self.remote_model):
            raise ValueError('a model is needed, for example "hf:owner/repo:QUANT"; url is for backend = "openai"')
        if self.ubatch > self.batch:
            raise ValueError(f"ubatch {self.ubatch} is larger than batch {self.batch}")
        _, cache_type_v = self.cache_types()
        if self.flash_attention == "off" and cache_type_v not in ("f16", "bf16", "f32"):
            raise ValueError(f'cache_type_v = "{cache_type_v}" needs flash_attention = "on"')
        if self.kind != "chat" and self.speculation != "none":
            raise ValueError(f'kind = "{self.kind}" decodes nothing: speculation does not go with it')
        if self.pooling is not None and self.kind == "chat":
            raise ValueError('pooling needs kind = "embedding" or "rerank"')
        if self.speculation == "draft" and self.draft_model is None:
            raise ValueError('speculation = "draft" needs a draft_model')
        return self

    def cache_types(self) -> tuple[spec.KvType, spec.KvType]:
        """Of keys and values: as written, else the context preset's, which is f16 where there is none."""
        preset = CONTEXT_PRESETS[self.context].cache_type if isinstance(self.context, str) else "f16"
        if self.flash_attention == "off":
            preset = "f16"  # without it values cannot be quantised
        return self.cache_type_k or preset, self.cache_type_v or preset

    def to_spec(self, name: str) -> spec.Profile:
        """The profile with presets resolved to numbers."""
        resolved = "context slots threads gpu_layers sampling aliases extra_args cache_type_k cache_type_v draft_depth "
        resolved += "ngram_match ngram_draft body mend variants batch ubatch "
        resolved += "model backend url remote_model key_env fallback"
        plain = self.model_dump(exclude=set(resolved.split()))
        cache_type_k, cache_type_v = self.cache_types()
        server = Server(self.url, self.remote_model or name, self.key_env) if self.url is not None else None
        match, draft = NGRAM_SIZES.get(self.ngram, (None, None))
        n_ctx = CONTEXT_PRESETS[self.context].n_ctx if isinstance(self.context, str) else self.context
        return spec.Profile(
            name=name,
            model=self.model if server is None else f"{SERVER_PREFIX}{server.url}",
            server=server,
            fallback=tuple(self.fallback),
            context=n_ctx,
            slots=self.slots or MODE_SLOTS[self.mode],
            cache_type_k=cache_type_k,
            cache_type_v=cache_type_v,
            ngram_match=self.ngram_match or match,
            ngram_draft=self.ngram_draft or draft,
            draft_depth=self.draft_depth or DRAFT_DEPTHS.get(self.speculation, 0),
            threads=None if self.threads == "physical" else self.threads,
            gpu_layers=None if self.gpu_layers == "all" else self.gpu_layers,
            batch=self.batch if self.kind == "chat" else max(self.batch, n_ctx),
            ubatch=self.ubatch if self.kind == "chat" else max(self.ubatch, n_ctx),
            sampling=Sampling(**self.sampling.model_dump()),
            edits=self.body.to_edits(),
            mends=Mends(**self.mend.model_dump()),
            aliases=tuple(self.aliases),
            extra_args=tuple(self.extra_args),
            **plain,
        )

    def variants_of(self, base: spec.Profile) -> dict[str, spec.Profile]:
        """What each variant is, by its name: the same engine, other edits."""
        return {
            name: replace(base, edits=merged(base.edits, table.to_edits()), variant=name)
            for name, table in self.variants.items()
        }


class KeyTable(BaseModel, extra="forbid"):
    """One `[keys.NAME]` table: a client with an account of its own."""

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the key; the key itself stands nowhere."""
    priority: PriorityName = "normal"
    profiles: list[str] = []
    """What it may use; empty: everything."""
    rpm: int | None = Field(None, ge=1)
    admin: bool = False
    created: str = ""

    def to_key(self, name: str) -> ClientKey:
        priority = Priority[self.priority.upper()]
        return ClientKey(name, priority, frozenset(self.profiles), self.rpm, self.admin, bytes.fromhex(self.sha256))
