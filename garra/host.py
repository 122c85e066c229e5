"""What a machine has: GPUs and host, as they are at the time of asking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Vendor = Literal["nvidia", "amd", "intel", "other"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as the driver reports it."""

    index: int
    name: str
    total_mib: int
    free_mib: int
    vendor: Vendor = "nvidia"
    architecture: str = ""
    """`86` (compute capability 8.6), `gfx1100`; empty where nobody says."""
    others_mib: int | None = None
    """VRAM that processes other than garra's hold; None where the driver does not tell."""
    driver: str = ""
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    throttled: tuple[str, ...] = ()
    """Why its clock is held down now: `thermal`, `power`, ...; empty when it is not."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """What this machine has, at the time of asking."""

    cores: int
    """Physical cores this process may use."""
    ram_total_mib: int
    ram_free_mib: int
    """Of the machine, or of this process's cgroup where that allows less."""
    gpus: tuple[Gpu, ...] = ()
    cpu: str = ""
    performance_cores: int | None = None
    """Of `cores`, where the CPU has two kinds; None where they are all alike."""
    swap_free_mib: int = 0
    cgroup_limit_mib: int | None = None
    disk_free_mib: int = 0
    """Where models and engines are kept."""
    cuda: int = 0
    """The newest CUDA the driver runs, as NVML counts: 13000 for 13.0; 0 without a driver."""
    unified: bool = False
    """GPU and CPU share one memory."""

    @property
    def free_vram_mib(self) -> int:
        """Free MiB of the emptiest GPU, 0 without one."""
        return max((gpu.free_mib for gpu in self.gpus), default=0)
