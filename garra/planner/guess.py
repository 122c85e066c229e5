"""Whether a model of so many bytes may fit, before anything else is known of it. Pure.

A guess for lists: the plan before a download reads the model's header and counts.
"""

from __future__ import annotations

from typing import Literal

from garra.planner.room import Room
from garra.spec import MIB

Fit = Literal["GPU", "GPU+CPU", "CPU", "no"]

_OVERHEAD = 1.06
"""Buffers that grow with the weights."""
_BESIDE_MIB = 700
"""A cache of some 8k tokens and a device context."""


def fit(n_bytes: int, room: Room) -> Fit:
    """Where a model of this size would run on this machine."""
    needed_mib = n_bytes * _OVERHEAD / MIB + _BESIDE_MIB
    if room.device is not None and needed_mib <= room.vram_mib:
        return "GPU"
    if needed_mib <= room.ram_mib:
        return "CPU" if room.device is None else "GPU+CPU"
    if room.device is not None and needed_mib <= room.vram_mib + room.ram_mib:
        return "GPU+CPU"
    return "no"
