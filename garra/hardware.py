"""What this machine has, as the `HostSpec` planning works with; and the environment engines run in."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
from collections.abc import Collection
from pathlib import Path

import psutil

from garra import gpus, paths
from garra.host import Gpu, HostSpec
from garra.spec import MIB

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_METAL_SHARE = (36 * 1024, 2 / 3, 3 / 4)  # what macOS lets the GPU have of the memory: the smaller share up to 36 GiB


def detect(ours: Collection[int] = ()) -> HostSpec:
    """The host as it is now. `ours`: engines of garra, whose memory is not counted as other processes'."""
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    total, free, limit = memory.total // MIB, memory.available // MIB, cgroup_limit_mib()
    if limit is not None:
        total, free = min(total, limit[0]), min(free, limit[0] - limit[1])
    data = paths.data_dir()
    there = next(folder for folder in (data, *data.parents) if folder.exists())
    seen = gpus.visible(ours)
    unified = platform.system() == "Darwin" and platform.machine() == "arm64"
    if unified and not seen:
        seen = (_metal(total, free),)
    cores = usable_cores()
    return HostSpec(
        cores=cores,
        ram_total_mib=total,
        ram_free_mib=max(0, free),
        gpus=seen,
        cpu=_cpu_name(),
        performance_cores=performance_cores(cores),
        swap_free_mib=swap.free // MIB,
        cgroup_limit_mib=limit[0] if limit is not None else None,
        disk_free_mib=shutil.disk_usage(there).free // MIB,
        cuda=gpus.cuda_version(),
        unified=unified,
    )


def usable_cpus() -> int:
    """Logical CPUs this process may run on (containers and taskset may allow fewer than there are)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def usable_cores() -> int:
    """Physical cores, but no more than this process may run on, nor than its cgroup gives it time for."""
    allowed = min(usable_cpus(), cgroup_cpus() or usable_cpus())
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))


def port_holder(port: int) -> str | None:
    """Who listens on a TCP port of this machine, in words; None where nobody does or nobody tells."""
    try:
        connections = psutil.net_connections("tcp")
    except psutil.Error:  # macOS asks for root
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
            if connection.pid is None or connection.pid == os.getpid():
                return "another program holds the port"
            with contextlib.suppress(psutil.Error):
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid}) holds the port"
    return None


def rss_bytes(pid: int) -> int:
    """What a process has of the RAM now, pages of files included; 0 when it is gone."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def engine_environment() -> dict[str, str]:
    """The environment without anything that would set a flag behind garra's back."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("LLAMA_", "GGML_"))}
    kept |= {key: value for key, value in os.environ.items() if key.startswith("GGML_VK_")}
    return kept | {"GGML_NO_BACKTRACE": "1"}  # else an abort waits seconds for a debugger


def only_gpu(backend: str, gpu: int | None) -> dict[str, str]:
    """Environment that shows an engine one GPU: it would open a context, some 300 MiB, on every one it sees."""
    shown = "" if gpu is None else str(gpu)
    if backend == "cuda":
        return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": shown}  # the order NVML counts in
    if backend == "hip":
        return {"ROCR_VISIBLE_DEVICES": shown}
    return {}


def _metal(total_mib: int, free_mib: int) -> Gpu:
    limit, small, large = _METAL_SHARE
    share = int(total_mib * (small if total_mib <= limit else large))
    return Gpu(0, "Apple GPU", share, min(share, free_mib), vendor="other")


def _cpu_name() -> str:
    """As the vendor calls it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return platform.processor() or platform.machine()


def performance_cores(cores: int, cpus: Path = _CPUS) -> int | None:
    """Cores that reach the highest clock, where there are slower ones too."""
    fastest: dict[str, int] = {}
    for folder in cpus.glob("cpu[0-9]*"):
        try:
            core = (folder / "topology/core_cpus_list").read_text().strip()
            fastest[core] = int((folder / "cpufreq/cpuinfo_max_freq").read_text())
        except (OSError, ValueError):
            return None
    if not fastest or min(fastest.values()) > 0.8 * max(fastest.values()):
        return None  # one kind; small differences are favoured cores of the same kind
    return min(cores, sum(1 for clock in fastest.values() if clock > 0.8 * max(fastest.values())))


def cgroup_limit_mib(root: Path | None = None) -> tuple[int, int] | None:
    """(limit, in use) of this process's memory cgroup, in MiB; None without a limit."""
    limits = [limit for folder in _own_cgroups(root) if (limit := _memory_limit_mib(folder)) is not None]
    return min(limits, key=lambda one: one[0] - one[1], default=None)


def _own_cgroups(root: Path | None) -> list[Path]:
    """This process's group and those around it: any of them may set a limit."""
    if root is not None:
        return [root]
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return [_CGROUP]
    own = _CGROUP / line.removeprefix("0::").strip().lstrip("/")
    return [own, *(folder for folder in own.parents if folder.is_relative_to(_CGROUP))]


def _memory_limit_mib(root: Path) -> tuple[int, int] | None:
    for limit_file, used_file in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, used = limit_file.read_text().strip(), int(used_file.read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit() and int(limit) < 1 << 50:
            return int(limit) // MIB, used // MIB
    return None


def cgroup_cpus(root: Path | None = None) -> int | None:
    """Whole CPUs its quota is worth, None without one."""
    quotas = []
    for folder in _own_cgroups(root):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
        except (OSError, ValueError):
            continue
        if quota != "max":
            quotas.append(max(1, int(quota) // int(period)))
    return min(quotas, default=None)
