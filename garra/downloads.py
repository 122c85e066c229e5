"""Words about downloads. Frozen, stdlib types only; units stand in the names."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class DownloadState(enum.StrEnum):
    """Where a download stands."""

    RUNNING = enum.auto()
    DONE = enum.auto()
    FAILED = enum.auto()
    PAUSED = enum.auto()
    """What has come is kept; asking for it again goes on."""
    CANCELLED = enum.auto()


@dataclass(frozen=True, slots=True)
class DownloadStatus:
    """One download, as it is told."""

    id: str
    ref: str
    state: DownloadState
    detail: str = ""
    """What it does now, or why it ended."""
    done_bytes: int = 0
    total_bytes: int = 0
    """0: not known yet."""
    bytes_per_s: float = 0.0
    eta_s: float | None = None
    path: str = ""
    """Of the model file, once it is there."""
    code: str = ""
    """The error's, where it failed."""
    warnings: tuple[str, ...] = ()
