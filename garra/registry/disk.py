"""Disks that are full or refuse: found out before a download where possible, and told with what to do."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from garra.errors import DownloadFailed
from garra.spec import MIB

_SPARE_BYTES = 64 * MIB


def check_space(folder: Path, n_bytes: int, *, fix: str, doing: str = "download") -> None:
    """Raises DownloadFailed unless `folder`, which exists, has room for so much more."""
    free = shutil.disk_usage(folder).free
    if n_bytes and n_bytes + _SPARE_BYTES > free:
        lacking = (n_bytes + _SPARE_BYTES - free) / 1e9
        raise DownloadFailed(
            f"cannot {doing} {n_bytes / 1e9:.2f} GB: {free / 1e9:.2f} GB are free in {folder}",
            fix=f"free {lacking:.2f} GB there, or {fix}",
        )


def refused(error: OSError, path: Path, n_bytes: int) -> DownloadFailed:
    """What to say when the disk does not take a file of which `n_bytes` are missing."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return DownloadFailed(
        f"cannot write {path}: {error.strerror or error}; what has come is kept",
        fix=f"free {n_bytes / 1e9:.2f} GB there, then the same command again" if full else f"check {path.parent}",
    )
