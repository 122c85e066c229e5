"""The memory a plan may use: what a machine has free, less a margin. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from garra.bill import Place
from garra.host import Gpu, HostSpec
from garra.spec import Backend

DESCRIBED_TAKEN = 0.05
"""Of a GPU that is only described: what driver and desktop are taken to hold."""
_DEVICE_NAMES: dict[str, str] = {"cuda": "CUDA0", "hip": "ROCm0", "vulkan": "Vulkan0", "metal": "MTL0"}
_CONTEXT_MIB: dict[str, int] = {"cuda": 320, "hip": 400, "vulkan": 150, "metal": 0}
"""VRAM a process takes for its context, kernels and work buffers, until a load has been measured."""
_UNIFIED_SHARE = (36 * 1024, 2 / 3, 3 / 4)  # up to so many MiB of memory, the smaller share of it for the GPU


@dataclass(frozen=True, slots=True)
class Margins:
    """What is left free on purpose, in MiB."""

    vram_mib: int = 384
    ram_mib: int = 1024


@dataclass(frozen=True, slots=True)
class Room:
    """One GPU, or none, and the host's memory."""

    device: str | None
    """The engine's name of the GPU: `CUDA0`; None: everything runs on the CPU."""
    gpu: Gpu | None
    vram_mib: int
    """Free for the engine, the margin taken off."""
    ram_mib: int
    margins: Margins = Margins()
    context_mib: int = 0
    """What the driver takes for one process."""
    unified: bool = False
    """VRAM and RAM are the same memory."""
    what: str = ""
    """The GPU, or the CPU, as a person calls it."""


def of_host(host: HostSpec, backend: Backend | str, margins: Margins, *, whole: bool = False) -> Room:
    """The room of this machine; on the GPU with most free memory. `whole`: as if no engine of garra's were running.

    `whole` counts what other processes hold, where the driver tells, and nothing else.
    """
    ram = (host.ram_total_mib if whole else host.ram_free_mib) - margins.ram_mib
    name = _DEVICE_NAMES.get(backend)
    if name is None or not host.gpus:
        return Room(None, None, 0, ram, margins, what=host.cpu or "the CPU")
    gpu = max(host.gpus, key=lambda one: one.free_mib)
    free = gpu.total_mib - (gpu.others_mib or 0) if whole else gpu.free_mib
    vram = max(0, free - margins.vram_mib)
    return Room(name, gpu, vram, ram, margins, _CONTEXT_MIB.get(backend, 0), host.unified, gpu.name)


def within(room: Room, place: Place) -> Room:
    """The room, but no more of it than the scheduler allows."""
    ram = min(room.ram_mib, place.ram_mib)
    return replace(room, ram_mib=ram, vram_mib=min(room.vram_mib, place.vram_mib) if room.device else 0)


def described(name: str, vram_mib: int, host: HostSpec, *, architecture: str = "") -> HostSpec:
    """This machine with another GPU: to plan for it elsewhere."""
    gpu = Gpu(0, name, vram_mib, int(vram_mib * (1 - DESCRIBED_TAKEN)), architecture=architecture)
    return _with(host, (gpu,), unified=False)


def unified(total_mib: int, host: HostSpec) -> HostSpec:
    """A machine whose GPU shares its memory, like Apple's: the driver lets the GPU have a part of it."""
    limit, small, large = _UNIFIED_SHARE
    vram = int(total_mib * (small if total_mib <= limit else large))
    gpu = Gpu(0, f"unified memory of {total_mib // 1024} GiB", vram, vram, vendor="other")
    shared = HostSpec(host.cores, total_mib, total_mib, cpu=host.cpu)
    return _with(shared, (gpu,), unified=True)


def _with(host: HostSpec, gpus: tuple[Gpu, ...], *, unified: bool) -> HostSpec:
    return HostSpec(
        cores=host.cores,
        ram_total_mib=host.ram_total_mib,
        ram_free_mib=host.ram_free_mib,
        gpus=gpus,
        cpu=host.cpu,
        unified=unified,
    )
