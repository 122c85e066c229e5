"""Engines on disk: one folder per build under `engines/`, and `current`, a link to the one in use."""

from __future__ import annotations

import json
import os
from pathlib import Path

from garra import paths
from garra.errors import EngineMissing
from garra.spec import EngineBuild

_MANIFEST = "garra-engine.json"


def write_manifest(folder: Path, build: EngineBuild) -> None:
    """Beside the programs, what they are."""
    facts = {
        "stamp": build.stamp,
        "build_number": build.build_number,
        "backend": build.backend,
        "patches": list(build.patches),
    }
    (folder / _MANIFEST).write_text(json.dumps(facts, indent=2) + "\n")


def read(folder: Path) -> EngineBuild | None:
    """The build in this folder, or None when there is none or its manifest is unreadable."""
    try:
        facts = json.loads((folder / _MANIFEST).read_text())
        return EngineBuild(
            stamp=facts["stamp"],
            build_number=facts["build_number"],
            folder=folder,
            backend=facts["backend"],
            patches=tuple(facts["patches"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_current() -> EngineBuild | None:
    """The engine in use, or None."""
    link = paths.engines_dir() / "current"
    build = read(link.resolve()) if link.exists() else None
    return build if build is not None and build.tool("llama-server").exists() else None


def current() -> EngineBuild:
    """The engine in use. Raises EngineMissing."""
    build = find_current()
    if build is None:
        raise EngineMissing(f"there is no engine in {paths.engines_dir()}", fix="garra engine build")
    return build


def switch_to(build: EngineBuild) -> None:
    """Make `build` the current one, in one step: a reader sees the old or the new."""
    engines = paths.engines_dir()
    fresh = engines / f".current-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(build.folder.name)
    fresh.replace(engines / "current")
