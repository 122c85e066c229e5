"""The bundle file: a plain tar whose first member says what all others are, and what their hashes must be.

bundle.json     what is in it, for which platform, with the sha256 and size of every other member
install.sh      tar -xOf FILE install.sh | sh -s FILE
wheels/         garra and all it needs, for one version of Python on one platform
engine/         the pinned sources, or a built engine
models/N/       the files of the models
"""

from __future__ import annotations

import hashlib
import io
import os
import platform
import re
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from garra.errors import BadModel, DownloadFailed, Refused
from garra.registry import disk
from garra.registry.names import is_plain
from garra.spec import MIB

FORMAT = 1
MANIFEST = "bundle.json"
_MOST_MANIFEST_BYTES = 16 * MIB
_CHUNK = 4 * MIB
_PROFILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_KEY = re.compile(r"[a-z0-9_]{1,60}")

OnBytes = Callable[[str, int], None]
"""Called with a member's name and the bytes done of all members."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a bundle."""

    sha256: str
    n_bytes: int
    executable: bool = False


@dataclass(frozen=True, slots=True)
class PackedModel:
    """One profile's model."""

    profile: str
    ref: str
    members: tuple[str, ...]
    """Model first, shards in order, then the projector."""
    roles: tuple[str, ...]
    commit: str = ""
    paths: tuple[str, ...] = ()
    """Names within its repository, where it is from the hub."""
    table: dict[str, Any] = field(default_factory=dict)
    """What the person's own file says of the profile."""
    record: dict[str, Any] = field(default_factory=dict)
    """What the catalog knows of it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a bundle."""

    garra: str
    platform: str
    python: str
    engine: str
    """`sources`, or the stamp of a built one."""
    models: tuple[PackedModel, ...]
    files: dict[str, Member]
    format: int = FORMAT

    @property
    def n_bytes(self) -> int:
        return sum(member.n_bytes for member in self.files.values())


def platform_name() -> str:
    """Of this machine, as bundles name it."""
    return f"{platform.system()}-{platform.machine()}".lower()


def python_name() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def measure(path: Path, on_bytes: Callable[[int], None]) -> Member:
    """A file's entry in the manifest."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            on_bytes(len(chunk))
    return Member(digest.hexdigest(), path.stat().st_size, os.access(path, os.X_OK))


def write(out: Path, manifest: Manifest, sources: dict[str, Path], on_bytes: OnBytes) -> None:
    """The bundle, under its name only when it is whole. Raises DownloadFailed where the disk does not take it."""
    part = out.with_name(out.name + ".part")
    try:
        with tarfile.open(part, "w") as archive:
            _add(archive, MANIFEST, io.BytesIO(msgspec.json.format(msgspec.json.encode(manifest))), executable=False)
            done = 0
            for name, path in sources.items():
                on_bytes(name, done)
                with path.open("rb") as content:
                    _add(archive, name, content, executable=manifest.files[name].executable)
                done += manifest.files[name].n_bytes
        part.replace(out)
    except OSError as error:
        raise disk.refused(error, out, manifest.n_bytes) from None
    finally:
        part.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes], *, executable: bool) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, os.SEEK_END)
    content.seek(0)
    entry.mode = 0o755 if executable else 0o644
    archive.addfile(entry, content)


@contextmanager
def opened(bundle: Path) -> Iterator[tuple[Manifest, tarfile.TarFile]]:
    """A bundle's manifest, and the archive behind it. Raises BadModel, Refused."""
    try:
        with tarfile.open(bundle, "r:") as archive:
            yield _manifest(archive, bundle), archive
    except tarfile.TarError as error:
        raise BadModel(f"{bundle} is no bundle, or damaged: {error}", fix="copy it again") from None
    except OSError as error:
        raise DownloadFailed(f"cannot read {bundle}: {error.strerror or error}", fix="check the path") from None


def _manifest(archive: tarfile.TarFile, bundle: Path) -> Manifest:
    first = archive.next()
    content = archive.extractfile(first) if first is not None and first.isreg() else None
    if first is None or first.name != MANIFEST or first.size > _MOST_MANIFEST_BYTES or content is None:
        raise BadModel(f"{bundle} is no bundle: it does not begin with {MANIFEST}", fix="garra bundle create makes one")
    try:
        manifest = msgspec.json.decode(content.read(), type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadModel(f"{bundle} has an unusable {MANIFEST}: {error}", fix="copy it again") from None
    if manifest.format != FORMAT:
        raise Refused(f"{bundle} was made by another garra (format {manifest.format})", fix="update garra")
    if not _is_sound(manifest):
        raise Refused(f"{bundle} names files, commits or profiles that are none")
    return manifest


def _is_sound(manifest: Manifest) -> bool:
    """Whether nothing of what becomes a path or a line of TOML later on is a trick."""
    files = manifest.files
    return (
        all(is_plain(name) and member.n_bytes >= 0 for name, member in files.items())
        and is_plain(manifest.engine)
        and "/" not in manifest.engine
        and all(
            _PROFILE.fullmatch(model.profile)
            and re.fullmatch(r"[0-9a-f]{40}|", model.commit)
            and model.members
            and all(name in files for name in model.members)
            and len(model.roles) == len(model.members)
            and len(model.paths) == (len(model.members) if model.commit else 0)
            and all(is_plain(path) for path in model.paths)
            and all(_KEY.fullmatch(key) for key in model.table)
            for model in manifest.models
        )
    )


def unpack(archive: tarfile.TarFile, manifest: Manifest, into: Path, on_bytes: OnBytes, *, skip: str) -> None:
    """All members below `into`, each verified; those under `skip` are verified only. Raises BadModel, Refused."""
    missing, done = dict(manifest.files), 0
    while (entry := archive.next()) is not None:
        expected = missing.pop(entry.name, None)
        content = archive.extractfile(entry) if entry.isreg() else None
        if expected is None or content is None:
            raise Refused(f"the bundle holds {entry.name[:100]!r}, which its manifest does not name as a file")
        digest, n_bytes = hashlib.sha256(), 0
        target = None if entry.name.startswith(skip) else into / entry.name
        with _sink(target, executable=expected.executable) as file:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
                n_bytes += len(chunk)
                on_bytes(entry.name, done + n_bytes)
        if n_bytes != expected.n_bytes or digest.hexdigest() != expected.sha256:
            raise BadModel(f"{entry.name} in the bundle is damaged: nothing was installed", fix="copy the bundle again")
        done += n_bytes
    if missing:
        raise BadModel(f"the bundle is cut short: {len(missing)} files are missing", fix="copy the bundle again")


@contextmanager
def _sink(target: Path | None, *, executable: bool) -> Iterator[IO[bytes]]:
    if target is None:
        with open(os.devnull, "wb") as nowhere:
            yield nowhere
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        yield file
    target.chmod(0o755 if executable else 0o644)
