"""Hashes of large files, taken in slices so that whoever moves tokens on the same core need not wait."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from garra.registry.names import RemoteFile
from garra.spec import MIB

CHUNK = 4 * MIB
_SLICE = 8 * 1024
"""Hashed at once before others may have the core. Measured on two, at 400 Mbit/s: the proxy's latency per chunk at p95
was 1.8x of a quiet machine's without this, 1.2x with it, and 1.1x where the same bytes were only received."""


class Digest(Protocol):
    """One of hashlib's."""

    def update(self, data: memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


def of_blob(file: RemoteFile) -> Digest:
    """An empty digest of the kind the hub names this file's content by."""
    return hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.n_bytes)


def feed(digest: Digest, chunk: bytes) -> None:
    """The chunk, slice by slice."""
    view = memoryview(chunk)
    for at in range(0, len(chunk), _SLICE):
        digest.update(view[at : at + _SLICE])
        if hasattr(os, "sched_yield"):
            os.sched_yield()


def of_file(path: Path, digest: Digest, moved: Callable[[int], None]) -> str:
    """The file's hash; `moved` is told of every chunk's bytes, and may raise. Raises OSError."""
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            feed(digest, chunk)
            moved(len(chunk))
    return digest.hexdigest()
