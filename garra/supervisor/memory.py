"""The memory models share. A driver gives VRAM back some time after its process is gone: that is measured."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection
from pathlib import Path

import psutil

from garra import gpus
from garra.bill import HOST, spot
from garra.host import HostSpec
from garra.spec import MIB

_STEP_BYTES = 16 * MIB
_KEEP_FREE_MIB = 1024
_SHARE = 0.8  # of what a process held: others allocate and free meanwhile


class HostMemory:
    """The `Memory` port over the real machine."""

    def asked_back(self, pid: int) -> Callable[[], bool]:
        held = gpus.held_mib(pid)
        if held:
            enough = gpus.free_mib() + int(held * _SHARE)
            return lambda: gpus.free_mib() >= enough
        return lambda: not psutil.pid_exists(pid)  # RAM is free before the process can be waited for

    def holders(self) -> str:
        """The largest holders of VRAM; empty without a GPU whose driver tells."""
        held = sorted(gpus.holders().items(), key=lambda one: -one[1])[:3]
        return ", ".join(f"{_name(pid)} (pid {pid}) holds {mib} MiB" for pid, mib in held)

    async def read_ahead(self, path: Path) -> None:
        reading = _Reading()
        try:
            await asyncio.to_thread(reading.run, path)
        finally:
            reading.stopped = True


def budget(
    host: HostSpec, ours: Collection[int], vram_margin_mib: int, ram_margin_mib: int, *, computes_on_gpu: bool
) -> dict[str, int]:
    """MiB all engines may take now, by device: what there is, less what others hold and the margins.

    GPUs count only where the engine can compute on them.
    """
    mine = sum(_rss_mib(pid) for pid in ours)
    others = max(0, host.ram_total_mib - host.ram_free_mib - mine)
    room = {HOST: max(0, host.ram_total_mib - others - ram_margin_mib)}
    if computes_on_gpu:
        for gpu in host.gpus:
            room[spot(gpu.index)] = max(0, gpu.total_mib - (gpu.others_mib or 0) - vram_margin_mib)
    return room


def _name(pid: int) -> str:
    try:
        return psutil.Process(pid).name()
    except psutil.Error:
        return "a process"


def _rss_mib(pid: int) -> int:
    """What it holds of the RAM that nobody else could have: pages of its file are anybody's."""
    try:
        seen = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return int(max(0, seen.rss - getattr(seen, "shared", 0))) // MIB


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
