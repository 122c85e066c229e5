"""The Hugging Face cache on disk, shared with every other program that uses it.

<cache>/models--OWNER--REPO/blobs/<hash>                  contents, called after their hash
                           /blobs/<hash>.garra-part       what has come so far of one
                           /snapshots/<commit>/<path>     links into blobs
                           /refs/main                     the commit that was newest when it was asked for
<cache>/.locks/models--OWNER--REPO/<hash>.lock            one download of a blob at a time, whoever does it

A blob gets its name once its hash held, a snapshot its links once all files of the model are there. The serving
process reads this layout itself: importing the hub's client would cost it more memory than all else it does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from garra.errors import NotOffered
from garra.registry import names
from garra.registry.names import RemoteFile
from garra.registry.source import HubSource


def cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Where the hub's client keeps its cache, by the same variables in the same order."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if environment.get(name):
            return Path(os.path.expandvars(environment[name])).expanduser() / below
    base = environment.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "huggingface" / "hub"


class RepoCache:
    """One repository's part of the cache."""

    def __init__(self, repo: str, cache: Path | None = None) -> None:
        self.repo = repo
        self._cache = cache or cache_dir()
        self._name = "models--" + repo.replace("/", "--")
        self.root = self._cache / self._name
        self.blobs = self.root / "blobs"

    def blob(self, file: RemoteFile) -> Path:
        return self.blobs / file.blob

    def partial(self, file: RemoteFile) -> Path:
        return self.blobs / f"{file.blob}.garra-part"

    def place(self, commit: str, file: RemoteFile) -> Path:
        """Where people and programs see the file."""
        return self.root / "snapshots" / commit / file.path

    def has(self, file: RemoteFile) -> bool:
        """Whether the file's content is here, whole."""
        path = self.blob(file)
        return path.is_file() and path.stat().st_size == file.n_bytes

    def missing_bytes(self, files: Iterable[RemoteFile]) -> int:
        """What is still to come of these files."""
        return sum(file.n_bytes - self._so_far(file) for file in {file.blob: file for file in files}.values())

    def _so_far(self, file: RemoteFile) -> int:
        if self.has(file):
            return file.n_bytes
        partial = self.partial(file)
        return min(file.n_bytes, partial.stat().st_size) if partial.is_file() else 0

    @contextlib.contextmanager
    def lock(self, file: RemoteFile, wait: Callable[[], None]) -> Iterator[None]:
        """This file's download is ours alone; `wait` is called again and again until it is, and may raise."""
        path = self._cache / ".locks" / self._name / f"{file.blob}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as held:
            while True:
                try:
                    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    wait()
            yield

    def keep(self, file: RemoteFile) -> None:
        """The partial file is whole and its hash held: give it its name, for good."""
        partial, blob = self.partial(file), self.blob(file)
        descriptor = os.open(partial, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        partial.replace(blob)
        _sync_folder(self.blobs)

    def publish(self, commit: str, files: Iterable[RemoteFile]) -> list[Path]:
        """Make the files visible under this commit, the model's first one last; their paths in the order given."""
        paths = []
        for file in reversed(list(files)):
            path = self.place(commit, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._link(self.blob(file), path)
            paths.append(path)
        ref = self.root / "refs" / "main"
        ref.parent.mkdir(parents=True, exist_ok=True)
        fresh = ref.with_name(f"main.{os.getpid()}")
        fresh.write_text(commit)
        fresh.replace(ref)
        return paths[::-1]

    def _link(self, blob: Path, path: Path) -> None:
        fresh = path.with_name(f".{path.name[:100]}.{os.getpid()}")
        fresh.unlink(missing_ok=True)
        try:
            fresh.symlink_to(os.path.relpath(blob, path.parent))
        except OSError:  # a file system without links
            shutil.copyfile(blob, fresh)
        fresh.replace(path)

    def snapshots(self) -> list[Path]:
        """Snapshot folders: the newest known commit first, then the others, latest first."""
        newest, since = "", dict[Path, float]()
        with contextlib.suppress(OSError):
            for path in (self.root / "snapshots").iterdir():
                with contextlib.suppress(OSError):  # gone since
                    if path.is_dir():
                        since[path] = path.stat().st_mtime
        with contextlib.suppress(OSError):
            newest = (self.root / "refs" / "main").read_text().strip()
        return sorted(since, key=lambda path: (path.name != newest, -since[path]))

    def discard(self, files: Iterable[tuple[Path, str | None]]) -> int:
        """Remove these snapshot entries (with their hash) and the blobs no other entry needs; bytes given back."""
        freed = 0
        for path, sha256 in files:
            blob = path.resolve() if path.exists() or sha256 is None else (self.blobs / sha256).resolve()
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()
            used = any(entry.resolve() == blob for entry in files_below(self.root / "snapshots"))
            if blob.parent == self.blobs.resolve() and blob.is_file() and not used:
                freed += blob.stat().st_size
                blob.unlink()
        return freed


def files_below(folder: Path, ending: str = "") -> list[Path]:
    """Files in it and in its folders, sorted. Other programs change them meanwhile: what is gone is passed over."""
    found = [Path(where, file) for where, _, files in os.walk(folder) for file in files if file.endswith(ending)]
    return sorted(path for path in found if path.is_file())


def as_listed(home: Path, files: Iterable[Path]) -> list[RemoteFile]:
    """These files as the hub would list them, in their order, without those that are gone."""
    listed = []
    for path in files:
        with contextlib.suppress(OSError):
            listed.append(RemoteFile(str(path.relative_to(home)), path.stat().st_size))
    return listed


def find(source: HubSource) -> list[Path]:
    """All files of the model this reference means, its first shard first; empty where it is not here whole."""
    for snapshot in RepoCache(source.repo).snapshots():
        here = as_listed(snapshot, files_below(snapshot, ".gguf"))
        with contextlib.suppress(NotOffered):
            return [snapshot / file.path for file in names.pick(source, here).files]
    return []


def snapshot_of(path: Path) -> Path:
    """The folder of the commit a file in the cache belongs to."""
    return next(folder for folder in path.parents if folder.parent.name == "snapshots")


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
