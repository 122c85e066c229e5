"""The memory models share. A driver gives VRAM back some time after its process is gone: that is measured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from garra import hardware
from garra.spec import MIB

_STEP_BYTES = 16 * MIB
_KEEP_FREE_MIB = 1024
_SHARE = 0.8  # of what a process held: others allocate and free meanwhile


class HostMemory:
    """The `Memory` port over the real machine."""

    def asked_back(self, pid: int) -> Callable[[], bool]:
        held = hardware.held_vram_mib(pid)
        if held:
            enough = hardware.free_vram_mib() + int(held * _SHARE)
            return lambda: hardware.free_vram_mib() >= enough
        return lambda: not psutil.pid_exists(pid)  # RAM is free before the process can be waited for

    async def read_ahead(self, path: Path) -> None:
        reading = _Reading()
        try:
            await asyncio.to_thread(reading.run, path)
        finally:
            reading.stopped = True


class _Reading:
    """Asks the kernel for a file piece by piece, in a thread: the call may wait for the disk."""

    stopped = False

    def run(self, path: Path) -> None:
        if not hasattr(os, "posix_fadvise"):
            return
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                for offset in range(0, size, _STEP_BYTES):
                    if self.stopped or psutil.virtual_memory().available < _KEEP_FREE_MIB * MIB:
                        return
                    os.posix_fadvise(file.fileno(), offset, _STEP_BYTES, os.POSIX_FADV_WILLNEED)
        except OSError:
            return  # the load itself will say what is wrong with the file
