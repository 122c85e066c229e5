"""`garra bundle create`: gathers what a machine without a network needs."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from garra import __version__, package_index, paths
from garra.bundling import format as bundles
from garra.bundling.format import Manifest, OnBytes, PackedModel
from garra.engine import build as builds
from garra.engine import source
from garra.engine import store as engines
from garra.errors import ConfigError, DownloadFailed, ModelNotPresent
from garra.registry import catalog, disk, gguf, hubcache, store
from garra.registry.source import HubSource, parse_source
from garra.spec import EngineBuild, Profile

INSTALL = """#!/bin/sh
# Installs garra and what came with it, without a network:  tar -xOf BUNDLE install.sh | sh -s BUNDLE [FOLDER]
set -eu
bundle=$1
venv=${{2:-$HOME/.local/share/garra/venv}}
python=${{PYTHON:-python3}}
"$python" -c 'import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{python}")' || {{
  echo "error: this bundle is for Python {python}; $python is another" >&2
  echo "  fix: PYTHON=python{python}, before sh" >&2
  exit 2
}}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -xf "$bundle" -C "$work" wheels
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-index --find-links "$work/wheels" \\
  'garra[build]'
"$venv/bin/garra" bundle install "$bundle"
echo "garra is $venv/bin/garra"
"""


def create(
    profiles: Iterable[Profile], out: Path, engine: EngineBuild | None, *, say: source.Say, on_bytes: OnBytes
) -> Manifest:
    """The bundle at `out`; without an engine the pinned sources go with it.

    Raises ModelNotPresent, DownloadFailed, ConfigError.
    """
    models: list[PackedModel] = []
    members: dict[str, Path] = {}
    for number, profile in enumerate(profiles):
        models.append(_model(profile, number, members))
    with tempfile.TemporaryDirectory(prefix="garra-bundle-") as name:
        folder = Path(name)
        stamp = _engine(engine, members, say)
        say("gathering the wheels of garra and what it needs from the package index")
        for wheel in _wheels(folder / "wheels"):
            members[f"wheels/{wheel.name}"] = wheel
        script = folder / "install.sh"
        script.write_text(INSTALL.format(python=bundles.python_name()))
        members = {"install.sh": script, **members}
        total = sum(path.stat().st_size for path in members.values())
        out.parent.mkdir(parents=True, exist_ok=True)
        disk.check_space(out.parent, total, fix="write it elsewhere: -o")
        done, files = 0, {}
        for member, path in members.items():

            def hashed(n_bytes: int, member: str = member) -> None:
                nonlocal done
                done += n_bytes
                on_bytes(member, done // 2)

            files[member] = bundles.measure(path, hashed)
        manifest = Manifest(__version__, bundles.platform_name(), bundles.python_name(), stamp, tuple(models), files)
        bundles.write(out, manifest, members, lambda member, n_bytes: on_bytes(member, (total + n_bytes) // 2))
    return manifest


def _model(profile: Profile, number: int, members: dict[str, Path]) -> PackedModel:
    found = store.locate(profile.model)
    if found is None:
        raise ModelNotPresent(f"the model of {profile.name} is not on this machine", fix=f"garra pull {profile.name}")
    where = parse_source(profile.model)
    files = hubcache.find(where) if isinstance(where, HubSource) else list(gguf.shards(found))
    roles = ["model"] * len(files)
    seen = store.projector(profile.model) if not profile.text_only else None
    if seen is not None:
        files, roles = [*files, seen], [*roles, "projector"]
    commit, inside = "", []
    if isinstance(where, HubSource):
        snapshot = hubcache.snapshot_of(found)
        commit, inside = snapshot.name, [str(path.relative_to(snapshot)) for path in files]
    packed = []
    for path in files:
        name = path.name if path.suffix == ".gguf" else f"{path.name[-16:]}.gguf"
        packed.append(f"models/{number}/{name}")
        members[packed[-1]] = path.resolve()
    return PackedModel(
        profile.name, profile.model, tuple(packed), tuple(roles), commit, tuple(inside), _own_table(profile.name),
        _record(profile, found),
    )  # fmt: skip


def _own_table(profile: str) -> dict[str, Any]:
    """What the person's own file says of this profile."""
    with suppress(OSError, ValueError):
        told = tomllib.loads(paths.user_profiles().read_text(encoding="utf-8"))
        table = told.get("profiles", {}).get(profile, {})
        return table if isinstance(table, dict) else {}
    return {}


def _record(profile: Profile, path: Path) -> dict[str, Any]:
    """Publisher, licence and facts, where the catalog has them."""
    with catalog.opened() as all_known:
        known = all_known.get(str(path))
    kept = ("ref", "revision", "publisher", "licence", "base_model", "facts", "warnings")
    return {key: value for key, value in dataclasses.asdict(known).items() if key in kept} if known else {}


def _engine(build: EngineBuild | None, members: dict[str, Path], say: source.Say) -> str:
    """Adds the engine's files; what the manifest says of it."""
    if build is None:
        archive = source.fetch_sdist(source.load_pin(), say=say)
        members[f"engine/{archive.name}"] = archive
        return "sources"
    if build.toolkit or build.library_path:
        raise ConfigError(
            f"{build.stamp} needs libraries outside its own folder", fix="--engine sources, or --engine portable"
        )
    for path in sorted(build.folder.rglob("*")):
        if path.is_file():
            members[f"engine/{build.stamp}/{path.relative_to(build.folder)}"] = path.resolve()
    return build.stamp


def portable_engine(compile_: Callable[[builds.BuildPlan], object]) -> EngineBuild:
    """An engine for any CPU of this kind, compiled if need be; the one in use stays in use. Raises BuildFailed."""
    earlier, before, by_choice = engines.previous(), engines.find_current(), engines.chosen()
    plan = builds.plan_build(backend="cpu", mode="portable")
    compile_(plan)
    if before is not None:
        if earlier is not None:
            engines.switch_to(earlier)  # so that a rollback leads where it led
        engines.switch_to(before, by_choice=by_choice)
    made = engines.read(plan.target)
    assert made is not None
    return made


def _wheels(folder: Path) -> list[Path]:
    folder.mkdir()
    root = Path(__file__).resolve().parent.parent.parent
    pinned = [f"{name}=={version}" for name, version in sorted(_needed("garra", {"build"}).items())]
    if (root / "pyproject.toml").is_file():
        if (reason := package_index.build_wheel(root, folder)) is not None:
            raise DownloadFailed(f"cannot make garra's own wheel: {reason}", fix="pip install hatchling")
    else:
        pinned.append(f"garra=={__version__}")
    reason = package_index.download(["--only-binary=:all:", *pinned], folder, show=False)
    if reason is not None:
        raise DownloadFailed(f"cannot gather the wheels: {reason}", fix="check the network or pip's index settings")
    return sorted(folder.glob("*.whl"))


def _needed(name: str, extras: set[str]) -> dict[str, str]:
    """Name and version of all a distribution needs here, by what is installed; itself left out."""
    found: dict[str, str] = {}
    asked: set[tuple[str, str]] = set()
    todo = [(name, extra) for extra in ("", *extras)]
    while todo:
        one, extra = todo.pop()
        if (one, extra) in asked:
            continue
        asked.add((one, extra))
        try:
            distribution = importlib.metadata.distribution(one)
        except importlib.metadata.PackageNotFoundError:
            raise ConfigError(
                f"cannot bundle garra: {one} is not installed here", fix="pip install 'garra[build]'"
            ) from None
        if one != name:
            found[distribution.metadata["Name"]] = distribution.version
        for line in distribution.requires or ():
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                todo += [(needed.name, more) for more in ("", *needed.extras)]
    return found
