"""What this machine has. GPUs through NVML, which opens no device context; the rest through psutil."""

from __future__ import annotations

import logging
import os

import psutil

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


def _nvidia_gpus() -> list[Gpu]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or none that answers: the machine has no GPU for us
        return []
    gpus = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handle = pynvml.nvmlDeviceGetHandleByIndex(index)
                memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
                name = str(pynvml.nvmlDeviceGetName(handle))
            except pynvml.NVMLError as error:  # one that fell off the bus must not hide the others
                log.warning("GPU %d does not answer: %s", index, error)
                continue
            gpus.append(Gpu(index, name, memory.total // MIB, memory.free // MIB))
    finally:
        pynvml.nvmlShutdown()
    return gpus
