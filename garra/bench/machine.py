"""What the machine does while it is measured: the engine's memory, GPUs, heat, clocks that are held down."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Sequence
from typing import Any

from garra import gpus, hardware
from garra.host import Gpu, HostSpec
from garra.sensors import cpu_celsius, throttle_count
from garra.spec import MIB

_EVERY_S = 1.0


def identity(host: HostSpec) -> dict[str, Any]:
    """What makes two hosts comparable."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": host.cpu,
        "cores": host.cores,
        "ram_gib": round(host.ram_total_mib / 1024),
        "gpus": ", ".join(f"{gpu.name} ({gpu.total_mib} MiB)" for gpu in host.gpus),
        "driver": next((gpu.driver for gpu in host.gpus), ""),
    }


class Watch:
    """Looks once a second, in a thread; used with `with`. `pids`: the engines, where they run on this machine."""

    def __init__(self, pids: Callable[[], Sequence[int]]) -> None:
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._rss_bytes = 0
        self._gpus: list[Gpu] = []
        self._celsius: float | None = None
        self._throttles = throttle_count()

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while True:
            self._look()
            if self._over.wait(_EVERY_S):
                return

    def _look(self) -> None:
        pids = self._pids()
        self._rss_bytes = max(self._rss_bytes, sum(hardware.rss_bytes(pid) for pid in pids))
        self._gpus += gpus.visible(pids)
        celsius = cpu_celsius()
        if celsius is not None:
            self._celsius = max(celsius, self._celsius or 0.0)

    def seen(self) -> dict[str, Any]:
        """The worst of what was seen; what no sensor tells is left out."""
        reasons = {reason for gpu in self._gpus for reason in gpu.throttled}
        held = throttle_count() - self._throttles
        told: dict[str, Any] = {
            "ram_mib": self._rss_bytes // MIB or None,
            "vram_mib": max((gpu.total_mib - gpu.free_mib for gpu in self._gpus), default=None),
            "power_w": max((gpu.power_w for gpu in self._gpus if gpu.power_w is not None), default=None),
            "gpu_celsius": max(
                (gpu.temperature_c for gpu in self._gpus if gpu.temperature_c is not None), default=None
            ),
            "cpu_celsius": self._celsius,
            "throttled": ", ".join(sorted(reasons)) or (f"CPU, {held} times" if held > 0 else None),
        }
        return {key: value for key, value in told.items() if value is not None}
