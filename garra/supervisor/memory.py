"""The memory models share, measured: VRAM where there is a GPU, else RAM."""

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
            vram = hardware.free_vram_mib() + int(held * _SHARE)
            return lambda: hardware.free_vram_mib() >= vram
        ram = _free_ram_mib() + int(_anonymous_mib(pid) * _SHARE)
        return lambda: _free_ram_mib() >= ram

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


def _free_ram_mib() -> int:
    return int(psutil.virtual_memory().available // MIB)


def _anonymous_mib(pid: int) -> int:
    """RAM that only the end of the process gives back; mapped files count as free already."""
    try:
        told = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(max(0, told.rss - getattr(told, "shared", 0)) // MIB)
