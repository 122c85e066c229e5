"""Files of slots, each with a description beside it that holds its sizes and hashes: without that it is nothing.

<root>/<profile>/NAME                  what the engine wrote
                /NAME.checkpoints      the same, where the model's memory cannot be cut back without
                /NAME.json             written last, under another name and renamed: from then on it counts
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec

from garra.prompts.words import Chain, Kept

log = logging.getLogger(__name__)

_CHECKPOINTS = ".checkpoints"
_ABOUT = ".json"
_LARGEST_ABOUT = 1 << 20
_LEFT_FREE = 512 * 1024 * 1024
"""Of the disk."""


class PromptStore:
    """Raises OSError where the disk does."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, profile: str) -> Path:
        """Where this profile's engine reads and writes; made if need be, for this user alone."""
        folder = self.root / profile
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def fresh_name(self) -> str:
        return f"{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}.slot"

    def kept(self, profile: str | None = None) -> list[Kept]:
        """What is there, of one profile or of all; what is damaged is removed on the way."""
        folders = [self.root / profile] if profile is not None else sorted(self.root.glob("*"))
        found = []
        for folder in folders:
            for about in sorted(folder.glob(f"*{_ABOUT}")):
                one = _read(about)
                if one is None or any(_size(folder / name) != size for name, size in one.sizes.items()):
                    log.warning("%s: %s is damaged: removed", folder.name, about.stem)
                    self._remove(folder, about.name.removesuffix(_ABOUT))
                else:
                    found.append(one)
        return found

    def add(
        self,
        profile: str,
        name: str,
        fingerprint: str,
        n_tokens: int,
        chain: Chain,
        worth_s: float,
        label: str = "",
    ) -> Kept:
        """Describe what an engine has written: it counts from now on."""
        folder, now = self.folder(profile), _now()
        files = [path for path in _files(folder, name) if path.exists()]
        if not files:
            raise FileNotFoundError(f"{folder / name} is gone")
        for path in files:
            path.chmod(0o600)
        one = Kept(
            name,
            profile,
            fingerprint,
            n_tokens,
            chain,
            sizes={path.name: path.stat().st_size for path in files},
            digests={path.name: _digest(path) for path in files},
            worth_s=worth_s,
            kept_at=now,
            used_at=now,
            label=label,
        )
        self._describe(one)
        return one

    def holds(self, one: Kept) -> bool:
        """Whether every byte is what was written. A file that is not never reaches an engine: one that is cut short
        makes it abort, a flipped bit it takes without a word."""
        folder = self.root / one.profile
        try:
            return all(_digest(folder / name) == digest for name, digest in one.digests.items())
        except OSError:
            return False

    def written_bytes(self, profile: str, name: str) -> int:
        """What an engine has written under this name."""
        return sum(_size(path) for path in _files(self.root / profile, name))

    def used(self, one: Kept) -> None:
        with contextlib.suppress(OSError):
            self._describe(replace(one, used_at=_now()))

    def remove(self, one: Kept) -> None:
        self._remove(self.root / one.profile, one.name)

    def discard(self, profile: str, name: str) -> None:
        """What an engine has begun to write and that is not to count."""
        self._remove(self.root / profile, name)

    def wipe(self, profiles: Iterable[str] | None = None) -> int:
        """Bytes given back, of these profiles or of all."""
        folders = [self.root / name for name in profiles] if profiles is not None else list(self.root.glob("*"))
        n_bytes = sum(_size(path) for folder in folders for path in folder.glob("*"))
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        return n_bytes

    def sweep(self, profile: str) -> None:
        """Remove what no description speaks of: an engine was killed while it wrote."""
        folder = self.root / profile
        named = {name for one in self.kept(profile) for name in (*one.sizes, one.name + _ABOUT)}
        for path in folder.glob("*"):
            if path.name not in named:
                path.unlink(missing_ok=True)

    def room(self) -> int:
        """Bytes the disk has to spare."""
        there = next(folder for folder in (self.root, *self.root.parents) if folder.exists())
        return max(0, shutil.disk_usage(there).free - _LEFT_FREE)

    def _describe(self, one: Kept) -> None:
        about = self.root / one.profile / (one.name + _ABOUT)
        beside = about.with_name(f"{about.name}.{secrets.token_hex(4)}.part")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.encode(one))
            file.flush()
            os.fsync(file.fileno())
        beside.rename(about)

    def _remove(self, folder: Path, name: str) -> None:
        for ending in (_ABOUT, "", _CHECKPOINTS):  # the description first: what it speaks of is never half there
            (folder / (name + ending)).unlink(missing_ok=True)


def _files(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / name, folder / (name + _CHECKPOINTS)


def _read(about: Path) -> Kept | None:
    try:
        if about.stat().st_size > _LARGEST_ABOUT:
            return None
        one = msgspec.json.decode(about.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return None
    named = {one.name, one.name + _CHECKPOINTS}
    honest = one.profile == about.parent.name and about.name == one.name + _ABOUT and one.sizes.keys() <= named
    return one if honest and one.name in one.sizes and one.sizes.keys() == one.digests.keys() else None


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
