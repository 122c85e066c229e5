"""Engines on disk: one folder per build under `engines/`; `current` is a link to the one in use, `previous` to the one
before it, and `chosen` says that a person wanted it so."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from garra import paths
from garra.errors import EngineMissing
from garra.spec import EngineBuild

_MANIFEST = "garra-engine.json"
_CURRENT, _PREVIOUS, _CHOSEN = "current", "previous", "chosen"


def write_manifest(folder: Path, build: EngineBuild) -> None:
    """Beside the programs, what they are."""
    facts = {
        "stamp": build.stamp,
        "build_number": build.build_number,
        "backend": build.backend,
        "mode": build.mode,
        "patches": list(build.patches),
        "origin": build.origin,
        "provenance": build.provenance,
        "library_path": list(build.library_path),
        "toolkit": build.toolkit,
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
            mode=facts.get("mode", "native"),
            origin=facts.get("origin", "built"),
            provenance=facts.get("provenance", ""),
            library_path=tuple(facts.get("library_path", ())),
            toolkit=facts.get("toolkit", ""),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find_current() -> EngineBuild | None:
    """The engine in use, or None."""
    return _behind(paths.engines_dir() / _CURRENT)


def current() -> EngineBuild:
    """The engine in use. Raises EngineMissing."""
    build = find_current()
    if build is None:
        raise EngineMissing(f"there is no engine in {paths.engines_dir()}", fix="garra engine build")
    return build


def chosen() -> bool:
    """A person chose the current engine, over what would be built: it is left in place."""
    return (paths.engines_dir() / _CHOSEN).exists()


def all_builds() -> list[EngineBuild]:
    """Every engine on disk, oldest first."""
    folders = [folder for folder in paths.engines_dir().glob("*") if folder.is_dir() and not folder.is_symlink()]
    folders = [folder for folder in folders if not folder.name.startswith(".")]
    builds = [read(folder) for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime)]
    return [build for build in builds if build is not None]


def previous() -> EngineBuild | None:
    """The engine that was in use before the current one."""
    return _behind(paths.engines_dir() / _PREVIOUS)


def switch_to(build: EngineBuild, *, by_choice: bool = False) -> None:
    """Make `build` the current one, in one step: a reader sees the old or the new."""
    before = find_current()
    if before is not None and before.stamp != build.stamp:
        _point(_PREVIOUS, before)
    _point(_CURRENT, build)
    choice = paths.engines_dir() / _CHOSEN
    if by_choice:
        choice.touch()
    else:
        choice.unlink(missing_ok=True)


def roll_back() -> EngineBuild:
    """Make the previous engine the current one again; the two change places. Raises EngineMissing."""
    before = previous()
    if before is None:
        raise EngineMissing("there is no earlier engine to go back to", fix="garra engine list")
    switch_to(before, by_choice=True)
    return before


def remove(stamp: str) -> EngineBuild:
    """Delete an engine that is not in use. Raises EngineMissing."""
    build = next((build for build in all_builds() if build.stamp == stamp), None)
    if build is None:
        raise EngineMissing(f"there is no engine {stamp}", fix="garra engine list")
    in_use = find_current()
    if in_use is not None and in_use.stamp == stamp:
        raise EngineMissing(f"{stamp} is in use", fix="garra engine use ANOTHER, then this again")
    shutil.rmtree(build.folder)
    return build


def _behind(link: Path) -> EngineBuild | None:
    build = read(link.resolve()) if link.exists() else None
    return build if build is not None and build.tool("llama-server").exists() else None


def _point(name: str, build: EngineBuild) -> None:
    engines = paths.engines_dir()
    fresh = engines / f".{name}-{os.getpid()}"
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(build.folder.name)
    fresh.replace(engines / name)
