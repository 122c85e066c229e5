"""What this machine has. GPUs through NVML, which opens no device context; the rest through psutil."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import psutil
import pynvml

from garra.spec import MIB, Gpu, HostSpec

log = logging.getLogger(__name__)


def detect() -> HostSpec:
    """The host as it is now."""
    memory = psutil.virtual_memory()
    return HostSpec(
        cores=_usable_cores(),
        ram_total_mib=memory.total // MIB,
        ram_free_mib=memory.available // MIB,
        gpus=tuple(_nvidia_gpus()),
    )


def usable_cpus() -> int:
    """Logical CPUs this process may run on (containers and taskset may allow fewer than there are)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _usable_cores() -> int:
    """Physical cores, but no more than this process may run on."""
    allowed = usable_cpus()
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def free_vram_mib() -> int:
    """Free MiB of all GPUs together."""
    return sum(gpu.free_mib for gpu in _nvidia_gpus())


def held_vram_mib(pid: int) -> int:
    """MiB of VRAM a process holds, 0 where the driver does not tell."""
    held = 0
    with _driver() as handles:
        for _, handle in handles:
            try:
                processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            except pynvml.NVMLError:
                continue
            held += sum(process.usedGpuMemory or 0 for process in processes if process.pid == pid)
    return held // MIB


def _nvidia_gpus() -> list[Gpu]:
    gpus = []
    with _driver() as handles:
        for index, handle in handles:
            try:
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                name = str(pynvml.nvmlDeviceGetName(handle))
            except pynvml.NVMLError as error:
                log.warning("GPU %d does not answer: %s", index, error)
                continue
            gpus.append(Gpu(index, name, memory.total // MIB, memory.free // MIB))
    return gpus


@contextlib.contextmanager
def _driver() -> Iterator[list[tuple[int, Any]]]:
    """The GPUs with their handles while the driver library is open; none where there is no driver that answers."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield []
        return
    handles = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles.append((index, pynvml.nvmlDeviceGetHandleByIndex(index)))
            except pynvml.NVMLError as error:  # one that fell off the bus must not hide the others
                log.warning("GPU %d does not answer: %s", index, error)
        yield handles
    finally:
        pynvml.nvmlShutdown()
