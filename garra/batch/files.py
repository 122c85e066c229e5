"""The files of a batch: what is asked, what was answered before, and where answers go. One writer, whole lines."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from garra.batch import lines
from garra.batch.lines import Asked
from garra.errors import BadRequest, DownloadFailed, Taken
from garra.registry import disk


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a first reading of the input found."""

    path: Path
    n: int
    """Requests in all."""

    def requests(self, done: set[str]) -> Iterator[Asked]:
        """Those that are not done yet, in order."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    asked = lines.read(line, number)
                    if asked.custom_id not in done:
                        yield asked


def look_through(path: Path) -> Wanted:
    """Read all of it once: a bad line, or an id that comes twice, is told before anything is asked.

    Raises BadRequest.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                asked = lines.read(line, number)
                if asked.custom_id in seen:
                    raise BadRequest(
                        f'custom_id "{asked.custom_id}" comes twice: line {number}', fix="make them unique"
                    )
                seen.add(asked.custom_id)
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}", fix="check the path") from None
    return Wanted(path, len(seen))


class Output:
    """An output file that is only ever longer. What a killed run left half written is cut off when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = -1

    def __enter__(self) -> Output:
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise BadRequest(f"cannot write {self.path}: {error.strerror}", fix="choose another -o") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise Taken(f"another garra batch writes {self.path}", fix="wait for it, or choose another -o") from None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        os.close(self._descriptor)

    def done(self) -> set[str]:
        """The ids it has a whole line for; a torn end is removed. Raises BadRequest where it is another file."""
        found: set[str] = set()
        end = 0
        with open(self._descriptor, "rb", closefd=False) as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break  # the end of a killed run
                ident = lines.custom_id(line)
                if ident is None:
                    raise BadRequest(f"{self.path}, line {number}, is no answer of a batch", fix="choose another -o")
                found.add(ident)
                end += len(line)
        os.ftruncate(self._descriptor, end)
        os.lseek(self._descriptor, end, os.SEEK_SET)
        return found

    def empty(self) -> None:
        """Forget all of it."""
        os.ftruncate(self._descriptor, 0)
        os.lseek(self._descriptor, 0, os.SEEK_SET)

    def write(self, line: bytes) -> None:
        """One whole line. Raises DownloadFailed where the disk does not take it: then nothing of it is left."""
        begin = os.lseek(self._descriptor, 0, os.SEEK_CUR)
        try:
            n = 0
            while n < len(line):
                n += os.write(self._descriptor, line[n:])
        except OSError as error:
            os.ftruncate(self._descriptor, begin)
            raise _refused(error, self.path) from None

    def sync(self) -> None:
        """Onto the disk."""
        os.fsync(self._descriptor)


def _refused(error: OSError, path: Path) -> DownloadFailed:
    told = disk.refused(error, path, 0)
    told.what = f"cannot write {path}: {error.strerror}; the answers so far are kept"
    told.fix = "make room, then the same command again"
    return told
