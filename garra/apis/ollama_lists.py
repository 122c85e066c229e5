"""What Ollama's clients are told of models. Pure. Strict ones fail at the first field that is missing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

VERSION = "0.13.5"
"""Of the API that is spoken: clients compare it as whole numbers, and some want at least 0.6.4."""
_FOR_EVER_S = 100 * 365 * 86400.0
_GAP_TEMPLATE = "{{ .Prompt }}{{ .Suffix }}"
"""Editors offer to fill in the middle where they read of a suffix."""
_TEMPLATE = "{{ if .System }}{{ .System }} {{ end }}{{ .Prompt }}"


@dataclass(frozen=True, slots=True)
class Described:
    """One model as it is served here."""

    name: str
    """With its tag: `demo:latest`, `turbo_4b:nothink`."""
    family: str
    """The architecture; empty where no file is there to tell."""
    n_bytes: int
    modified: datetime
    quantisation: str
    n_parameters: int
    n_ctx: int
    """Of one slot: what a request really has."""
    n_embd: int
    capabilities: tuple[str, ...]
    parameters: tuple[tuple[str, Any], ...] = ()
    """Sampling defaults."""

    @property
    def digest(self) -> str:
        """64 hexadecimal digits that change when the model does."""
        told = f"{self.name} {self.n_bytes} {self.modified.isoformat()}"
        return hashlib.sha256(told.encode()).hexdigest()


def details(one: Described) -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "gguf",
        "family": one.family or "unknown",
        "families": [one.family or "unknown"],
        "parameter_size": _size(one.n_parameters),
        "quantization_level": one.quantisation or "unknown",
        "context_length": one.n_ctx,
        "embedding_length": one.n_embd,
    }


def tag(one: Described) -> dict[str, Any]:
    """A row of `/api/tags`."""
    return {
        "name": one.name,
        "model": one.name,
        "modified_at": _text(one.modified),
        "size": one.n_bytes,
        "digest": one.digest,
        "details": details(one),
        "capabilities": list(one.capabilities),
    }


def running(one: Described, *, vram_bytes: int, stays_s: float | None, now: datetime) -> dict[str, Any]:
    """A row of `/api/ps`; `stays_s` None: as long as nobody wants its place."""
    until = now + timedelta(seconds=_FOR_EVER_S if stays_s is None else stays_s)
    row = tag(one)
    return {**row, "expires_at": _text(until), "size_vram": vram_bytes, "context_length": one.n_ctx}


def show(one: Described) -> dict[str, Any]:
    """The answer of `/api/show`."""
    parameters = [("num_ctx", one.n_ctx), *one.parameters]
    arch = one.family or "unknown"
    template = _GAP_TEMPLATE if "insert" in one.capabilities else _TEMPLATE
    info = {
        "general.architecture": arch,
        "general.parameter_count": one.n_parameters,
        f"{arch}.context_length": one.n_ctx,
        f"{arch}.embedding_length": one.n_embd,
    }
    return {
        "modelfile": f"# served by garra\nFROM {one.name}\n",
        "parameters": "\n".join(f"{key:<30} {value}" for key, value in parameters),
        "template": template,
        "details": details(one),
        "model_info": info,
        "capabilities": list(one.capabilities),
        "modified_at": _text(one.modified),
    }


def _size(n_parameters: int) -> str:
    """As people write it: 4.0B, 134.5M."""
    if n_parameters >= 1e9:
        return f"{n_parameters / 1e9:.1f}B"
    return f"{n_parameters / 1e6:.1f}M" if n_parameters else "unknown"


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
