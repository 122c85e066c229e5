"""Heat, power and memory of each device, as they are now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from garra import gpus
from garra.bill import HOST, Claim, spot
from garra.hardware import cgroup_limit_mib, rss_bytes
from garra.snapshot import Device
from garra.spec import MIB

_CPUS = Path("/sys/devices/system/cpu")
_FRESH_S = 1.0


class Sensors:
    """Looked at in a thread, and no more often than once a second, however many watch."""

    def __init__(self) -> None:
        self._seen: tuple[Device, ...] = ()
        self._at = float("-inf")
        self._throttles = throttle_count()
        self._looking = asyncio.Lock()

    async def look(self, pids: Sequence[int], planned: Claim) -> tuple[Device, ...]:
        """The host and every GPU. `pids`: the engines; `planned`: what they should take, in MiB by device."""
        async with self._looking:
            if time.monotonic() - self._at >= _FRESH_S:
                self._seen = await asyncio.to_thread(self._look, tuple(pids), dict(planned))
                self._at = time.monotonic()
        return self._seen

    def _look(self, pids: tuple[int, ...], planned: Claim) -> tuple[Device, ...]:
        cards = [
            Device(
                id=spot(gpu.index),
                name=gpu.name,
                total_mib=gpu.total_mib,
                free_mib=gpu.free_mib,
                planned_mib=planned.get(spot(gpu.index), 0),
                used_mib=_less(gpu.total_mib - gpu.free_mib, gpu.others_mib),
                others_mib=gpu.others_mib,
                temperature_c=gpu.temperature_c,
                power_w=gpu.power_w,
                power_limit_w=gpu.power_limit_w,
                throttled=gpu.throttled,
            )
            for gpu in gpus.visible(pids)
        ]
        return (self._host(pids, planned), *cards)

    def _host(self, pids: tuple[int, ...], planned: Claim) -> Device:
        memory = psutil.virtual_memory()
        total, free, limit = memory.total // MIB, memory.available // MIB, cgroup_limit_mib()
        if limit is not None:
            total, free = min(total, limit[0]), max(0, min(free, limit[0] - limit[1]))
        used = min(total - free, sum(rss_bytes(pid) for pid in pids) // MIB)
        throttles, before = throttle_count(), self._throttles
        self._throttles = throttles
        return Device(
            id=HOST,
            name="RAM",
            total_mib=total,
            free_mib=free,
            planned_mib=planned.get(HOST, 0),
            used_mib=used,
            others_mib=total - free - used,
            temperature_c=cpu_celsius(),
            throttled=("thermal",) if throttles > before else (),
        )


def throttle_count() -> int:
    """How often cores were slowed for heat since the machine started; 0 where nobody counts."""
    total = 0
    for path in _CPUS.glob("cpu[0-9]*/thermal_throttle/core_throttle_count"):
        try:
            total += int(path.read_text())
        except (OSError, ValueError):
            continue
    return total


def cpu_celsius() -> float | None:
    """The hottest sensor of the CPU."""
    if not hasattr(psutil, "sensors_temperatures"):
        return None
    sensors = psutil.sensors_temperatures()
    known = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
    return max((one.current for name in known for one in sensors.get(name, ())), default=None)


def _less(used_mib: int, others_mib: int | None) -> int | None:
    return None if others_mib is None else max(0, used_mib - others_mib)
