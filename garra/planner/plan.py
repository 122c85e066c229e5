"""Profile + host + file -> the one command line to run."""

from __future__ import annotations

from pathlib import Path

from garra.engine.argv import ALL_LAYERS
from garra.spec import HostSpec, LaunchPlan, Profile

MIN_VRAM_TURBO_MIB = 6 * 1024
"""turbo_4b: 2.7 GB of weights, 1.1 GiB of cache, MTP states, compute buffers and a desktop beside it."""
MIN_RAM_CPU_MIB = 6 * 1024
"""cpu_fallback: 1.3 GB of weights, their repacked copy, 32k of f16 cache, and room for the person's own programs."""


def plan_launch(profile: Profile, host: HostSpec, backend: str, model_path: Path) -> LaunchPlan:
    """The plan for this machine and an engine of this backend; what differs from the profile's wish is noted."""
    notes: list[str] = []
    gpu_layers = ALL_LAYERS if profile.gpu_layers is None else profile.gpu_layers
    if gpu_layers and not host.gpus:
        notes.append(f"no GPU found: {profile.name} runs on the CPU")
    elif gpu_layers and backend == "cpu":
        notes.append(f"this engine was built for the CPU: {profile.name} runs there, not on {host.gpus[0].name}")
    return LaunchPlan(
        profile=profile,
        model_path=model_path,
        threads=profile.threads or host.cores,
        gpu_layers=gpu_layers,
        notes=tuple(notes),
    )


def candidates(host: HostSpec) -> list[tuple[str, str]]:
    """Profiles worth trying on this machine, best first, each with its reason."""
    choice: list[tuple[str, str]] = []
    if host.free_vram_mib >= MIN_VRAM_TURBO_MIB:
        choice.append(("turbo_4b", f"{host.free_vram_mib} MiB of free VRAM"))
    if host.ram_free_mib >= MIN_RAM_CPU_MIB:
        choice.append(("cpu_fallback", f"{host.ram_free_mib} MiB of free RAM"))
    choice.append(("demo", "it runs anywhere"))
    return choice
