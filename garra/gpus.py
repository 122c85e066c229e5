"""GPUs, asked of their drivers without opening a device context: NVIDIA through NVML, AMD through sysfs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from garra.host import Gpu
from garra.spec import MIB

log = logging.getLogger(__name__)

_THROTTLE_BITS = {
    0x04: "power",  # software power cap
    0x08: "hardware slowdown",
    0x20: "thermal",
    0x40: "thermal",
    0x80: "power brake",
}
_SM_CLOCK = 1
_DRM = Path("/sys/class/drm")
_KFD = Path("/sys/class/kfd/kfd/topology/nodes")
_AMD = "0x1002"

T = TypeVar("T")


def visible(ours: Collection[int] = ()) -> tuple[Gpu, ...]:
    """All GPUs whose drivers tell of them. `ours`: processes whose memory is not others'."""
    return (*_nvidia(ours), *amd())


def cuda_version() -> int:
    """The newest CUDA the driver runs, 13000 for 13.0; 0 without a driver."""
    with _driver() as handles:
        return _or(pynvml.nvmlSystemGetCudaDriverVersion_v2, 0) if handles else 0


def free_mib() -> int:
    """Free MiB of all NVIDIA GPUs together."""
    return sum(gpu.free_mib for gpu in _nvidia(()))


def held_mib(pid: int) -> int:
    """MiB of VRAM a process holds, 0 where the driver does not tell."""
    with _driver() as handles:
        return sum(_held_by(handle).get(pid, 0) for _, handle in handles) // MIB


def holders() -> dict[int, int]:
    """MiB of VRAM by process, all NVIDIA GPUs together."""
    held: dict[int, int] = {}
    with _driver() as handles:
        for _, handle in handles:
            for pid, n_bytes in _held_by(handle).items():
                held[pid] = held.get(pid, 0) + n_bytes // MIB
    return held


def _nvidia(ours: Collection[int]) -> list[Gpu]:
    gpus = []
    with _driver() as handles:
        driver = _or(pynvml.nvmlSystemGetDriverVersion, "") if handles else ""
        for index, handle in handles:
            try:
                gpus.append(_one(index, handle, str(driver), ours))
            except pynvml.NVMLError as error:
                log.warning("GPU %d does not answer: %s", index, error)
    return gpus


def _one(index: int, handle: Any, driver: str, ours: Collection[int]) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    holders = _held_by(handle)
    major, minor = _or(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(handle), (0, 0))
    power = _or(lambda: pynvml.nvmlDeviceGetPowerUsage(handle), None)
    limit = _or(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle), None)
    return Gpu(
        index=index,
        name=str(pynvml.nvmlDeviceGetName(handle)),
        total_mib=memory.total // MIB,
        free_mib=memory.free // MIB,
        vendor="nvidia",
        architecture=f"{major}{minor}" if major else "",
        others_mib=max(0, memory.used - sum(held for pid, held in holders.items() if pid in ours)) // MIB,
        driver=driver,
        temperature_c=_or(lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU), None),
        power_w=power / 1000 if power is not None else None,
        power_limit_w=limit / 1000 if limit is not None else None,
        clock_mhz=_or(lambda: pynvml.nvmlDeviceGetClockInfo(handle, _SM_CLOCK), None),
        max_clock_mhz=_or(lambda: pynvml.nvmlDeviceGetMaxClockInfo(handle, _SM_CLOCK), None),
        throttled=_throttled(_or(lambda: pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle), 0)),
    )


def _held_by(handle: Any) -> dict[int, int]:
    """Bytes by process; those the driver does not tell are left out."""
    held: dict[int, int] = {}
    computing: list[Any] = _or(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(handle), [])
    drawing: list[Any] = _or(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle), [])
    for process in (*computing, *drawing):
        held[process.pid] = max(held.get(process.pid, 0), process.usedGpuMemory or 0)
    return held


def _throttled(bits: int) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for bit, name in _THROTTLE_BITS.items() if bits & bit))


def _or(ask: Callable[[], T], default: T) -> T:
    """An answer, or the default where this driver or GPU has none."""
    try:
        return ask()
    except pynvml.NVMLError:
        return default


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


def amd(drm: Path = _DRM, kfd: Path = _KFD) -> list[Gpu]:
    """AMD's GPUs as the kernel driver shows them; those that are part of a CPU have little memory of their own."""
    architectures = _gfx_names(kfd)
    gpus: list[Gpu] = []
    for card in sorted(drm.glob("card[0-9]*/device")):
        if _text(card / "vendor") != _AMD or not (card / "mem_info_vram_total").exists():
            continue
        total, used = _number(card / "mem_info_vram_total") // MIB, _number(card / "mem_info_vram_used") // MIB
        sensors = next(iter(sorted(card.glob("hwmon/hwmon*"))), card)
        name = _text(card / "product_name") or f"AMD GPU {_text(card / 'device')}"
        gpus.append(
            Gpu(
                index=len(gpus),
                name=name,
                total_mib=total,
                free_mib=max(0, total - used),
                vendor="amd",
                architecture=architectures[len(gpus)] if len(gpus) < len(architectures) else "",
                temperature_c=_number(sensors / "temp1_input") // 1000 or None,
                power_w=_number(sensors / "power1_average") / 1e6 or None,
            )
        )
    return gpus


def _gfx_names(kfd: Path) -> list[str]:
    """`gfx1100` for each GPU node; the kernel writes it as 110000 (major, minor, stepping; the last two in hex)."""
    names = []
    for node in sorted(kfd.glob("*/properties"), key=lambda path: int(path.parent.name)):
        words = dict(line.split(None, 1) for line in (_text(node) or "").splitlines() if " " in line)
        version = int(words.get("gfx_target_version", "0") or 0)
        if version:
            names.append(f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}")
    return names


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0
