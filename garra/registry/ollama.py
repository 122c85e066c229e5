"""Ollama's store, read only: manifests that name blobs. See docs/models.md for what becomes of them.

<models>/manifests/<registry>/<namespace>/<model>/<tag>     JSON: layers with media type, digest and size
<models>/blobs/sha256-<hex>
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from garra.registry import hubcache
from garra.registry.names import is_plain
from garra.registry.source import OllamaSource

_REGISTRY, _NAMESPACE = "registry.ollama.ai", "library"
_KIND = "application/vnd.ollama.image."
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_BYTES = 1 << 20
"""Of a manifest, or of a licence."""


@dataclass(frozen=True, slots=True)
class OllamaModel:
    """One tag: its blobs by what they are."""

    name: str
    model: Path
    projector: Path | None = None
    licence: str = ""
    adapters: int = 0

    @property
    def ref(self) -> str:
        return f"ollama:{self.name}"


def folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where Ollama keeps its models; a service's are in the home of its own user."""
    if environment.get("OLLAMA_MODELS"):
        return Path(environment["OLLAMA_MODELS"]).expanduser()
    own = Path("~/.ollama/models").expanduser()
    service = Path("/usr/share/ollama/.ollama/models")
    return own if own.is_dir() or not service.is_dir() else service


def locate(source: OllamaSource, root: Path | None = None) -> Path | None:
    """The model's blob, or None where Ollama has no such model any more."""
    found = _find(source, root or folder())
    return found.model if found is not None and found.model.is_file() else None


def projector(source: OllamaSource) -> Path | None:
    """The projector's blob, or None."""
    found = _find(source, folder())
    return found.projector if found is not None and found.projector and found.projector.is_file() else None


def _find(source: OllamaSource, root: Path) -> OllamaModel | None:
    parts = source.name.split("/")
    if not is_plain(source.name) or len(parts) > 3:
        return None
    parts = [_REGISTRY, _NAMESPACE][: 3 - len(parts)] + parts
    return _read(root, root / "manifests" / Path(*parts) / source.tag)


def models(root: Path) -> Iterator[OllamaModel]:
    """Every tag of a store that has a model."""
    for manifest in hubcache.files_below(root / "manifests"):
        if (found := _read(root, manifest)) is not None:
            yield found


def _read(root: Path, manifest: Path) -> OllamaModel | None:
    try:
        if manifest.stat().st_size > _MOST_BYTES:
            return None
        told = json.loads(manifest.read_text(encoding="utf-8"))
        layers = [(str(layer["mediaType"]), _blob(root, layer)) for layer in told["layers"]]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    blobs: dict[str, Path] = {}
    for kind, blob in layers:
        if blob is not None:
            blobs.setdefault(kind.removeprefix(_KIND), blob)
    if "model" not in blobs:
        return None
    adapters = sum(kind == _KIND + "adapter" for kind, _ in layers)
    return OllamaModel(
        _name(manifest.relative_to(root / "manifests").parts),
        blobs["model"],
        blobs.get("projector"),
        _first_line(blobs.get("license")),
        adapters,
    )


def _blob(root: Path, layer: Any) -> Path | None:
    digest = layer.get("digest")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        return None
    return root / "blobs" / digest.replace(":", "-")


def _name(parts: tuple[str, ...]) -> str:
    """As one types it: what is usual is left out."""
    *path, tag = parts
    usual = [_REGISTRY, _NAMESPACE]
    while path and usual and path[0] == usual[0]:
        path, usual = path[1:], usual[1:]
    return f"{'/'.join(path)}:{tag}"


def _first_line(path: Path | None) -> str:
    try:
        if path is None or path.stat().st_size > _MOST_BYTES:
            return ""
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:100] for line in lines if line.strip()), "")
