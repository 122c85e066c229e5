"""Letting go of a model: what garra brought is deleted, what belongs to another program stays."""

from __future__ import annotations

from pathlib import Path

from garra import paths
from garra.registry.catalog import Artifact, Catalog
from garra.registry.hubcache import RepoCache
from garra.registry.source import HubSource, parse_source


def remove(one: Artifact, catalog: Catalog) -> int:
    """Bytes given back; 0 where the files are not garra's to delete."""
    files = [Path(file.path) for file in one.files]
    others = {file.path for other in catalog.all() if other.ref != one.ref for file in other.files}
    files = [path for path in files if str(path) not in others]  # a projector may serve two quantisations
    freed = 0
    source = parse_source(one.ref) if one.origin == "hub" else None
    if isinstance(source, HubSource):
        hashes = {file.path: file.sha256 for file in one.files}
        freed = RepoCache(source.repo).discard((path, hashes[str(path)]) for path in files)
    elif one.origin in ("index", "copy", "bundle"):
        for path in files:
            if path.is_file() and paths.models_dir() in path.parents:
                freed += path.stat().st_size
                path.unlink()
    catalog.forget(one.ref)
    return freed
