"""`garra doctor`: what this machine has, what is missing, and which profile fits."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import typer

from garra.cli.status import JsonOption, print_json
from garra.errors import GarraError

if TYPE_CHECKING:
    from garra.host import Gpu, HostSpec


def doctor(as_json: JsonOption = False) -> None:
    """Look the machine over: hardware, drivers, engine, build tools, and which profiles fit (exit code 1: none)."""
    from garra.cli.control import running
    from garra.cli.plan import planner
    from garra.engine import store
    from garra.planning import detect

    build = store.find_current()
    host = detect(build)
    with planner() as made:
        profiles = _profiles(made)
    report: dict[str, Any] = {
        "host": dataclasses.asdict(host),
        "engine": {"stamp": build.stamp, "backend": build.backend, "origin": build.origin} if build else None,
        "findings": _findings(host, build.backend if build else None) + _port(),
        "profiles": profiles,
        "running": there.status()["url"] if (there := running()) is not None else None,
    }
    report["next"] = _next(report)
    if as_json:
        print_json(report)
    else:
        _show(host, report)
    if not any(row["fits"] for row in profiles):
        raise typer.Exit(1)


def _profiles(made: Any) -> list[dict[str, Any]]:
    """How each profile would run here, as things are now."""
    from garra import config as layers
    from garra.registry import store as models

    rows = []
    for profile in layers.load().profiles.values():
        here = models.locate(profile.model) is not None
        row: dict[str, Any] = {"profile": profile.name, "fits": False, "downloaded": here}
        row |= {"vram_mib": 0, "ram_mib": 0, "notes": []}
        try:
            launch = made.plan(profile, present=False)
        except GarraError as error:
            row["notes"] = [error.what] + ([f"fix: {error.fix}"] if error.fix else [])
        else:
            need = launch.bill.need
            row |= {"fits": True, "vram_mib": need.vram_mib, "ram_mib": need.ram_mib, "notes": list(launch.notes)}
        rows.append(row)
    return rows


def _findings(host: HostSpec, backend: str | None) -> list[str]:
    """What a person may want to change, each with how."""
    from garra.engine import needs, recipe

    kit = needs.kit(host)
    best, reason = recipe.choose(host, kit)
    found = []
    if backend is None:
        found.append(f"there is no engine: garra engine build (backend {best}: {reason})")
    elif host.gpus and backend == "cpu" and best != "cpu":
        found.append(f"the engine computes on the CPU though {reason}: garra engine build --backend {best}")
    elif host.gpus and best == "cpu":
        found.append(f"{reason}: install one of them, then: garra engine build")
    looked = needs.Needs()
    looked.tool("cmake", "pip install 'garra[build]'")
    looked.tool("ninja", "pip install 'garra[build]'")
    looked.compiler()
    found += [f"{what}: {fix}" for what, fix in looked.missing]
    for gpu in host.gpus:
        if gpu.throttled:
            found.append(f"{gpu.name} is held down now ({', '.join(gpu.throttled)}): check cooling and power")
        if (gpu.others_mib or 0) > gpu.total_mib // 4:
            found.append(f"other programs hold {gpu.others_mib} MiB of {gpu.name}: close them for more context")
    if host.cgroup_limit_mib is not None:
        found.append(f"this process may use {host.cgroup_limit_mib} MiB of RAM (a cgroup limits it)")
    if host.disk_free_mib < 10 * 1024:
        found.append(f"{host.disk_free_mib} MiB of disk are free where models are kept: a 9B model needs 6000")
    return found


def _port() -> list[str]:
    """Who would be in the way of a start."""
    from garra import config as layers
    from garra import hardware
    from garra.cli.control import running

    port = layers.load().settings.port
    holder = hardware.port_holder(port) if running() is None else None
    return [f"port {port}: {holder}: garra up --port {port + 1}, or stop that"] if holder else []


def _next(report: dict[str, Any]) -> list[str]:
    """The commands from here to an answer."""
    if report["running"]:
        return ["garra connect CLIENT --write", "garra chat"]
    fits = [row["profile"] for row in report["profiles"] if row["fits"]]
    ready = [row["profile"] for row in report["profiles"] if row["fits"] and row["downloaded"]]
    steps = [] if report["engine"] else ["garra engine build"]
    if not fits:
        return steps
    start = f"garra up {ready[0]}" if ready else "garra up"
    return [*steps, start, "garra chat   (in another terminal)"]


def _show(host: HostSpec, report: dict[str, Any]) -> None:
    cores = f"{host.cores} cores" + (f", {host.performance_cores} of them fast" if host.performance_cores else "")
    print(f"CPU     {host.cpu}, {cores}")
    print(f"RAM     {host.ram_free_mib} of {host.ram_total_mib} MiB free, swap {host.swap_free_mib} MiB free")
    print(f"disk    {host.disk_free_mib} MiB free")
    for gpu in host.gpus:
        print(f"GPU {gpu.index}   {_gpu(gpu)}")
    if not host.gpus:
        print("GPU     none that a driver tells of")
    if host.cuda:
        print(f"CUDA    the driver runs up to {host.cuda // 1000}.{host.cuda % 1000 // 10}")
    engine = report["engine"]
    print(f"engine  {engine['stamp']} ({engine['backend']}, {engine['origin']})" if engine else "engine  none")
    for line in report["findings"]:
        print(f"! {line}")
    print()
    for row in report["profiles"]:
        vram = f"{row['vram_mib']} MiB of VRAM, " if row["vram_mib"] else ""
        told = f"{vram}{row['ram_mib']} MiB of RAM" if row["fits"] else "does not fit"
        told += ", downloaded" if row["downloaded"] else ""
        print(f"{'fits' if row['fits'] else '----':<5} {row['profile']:<14} {told}")
        for note in row["notes"]:
            print(f"      {note}")
    if report["running"]:
        print(f"\ngarra serves at {report['running']}/v1")
    if report["next"]:
        print("\nnext:  " + "\n       ".join(report["next"]))


def _gpu(gpu: Gpu) -> str:
    facts = [gpu.name, f"{gpu.free_mib} of {gpu.total_mib} MiB free"]
    if gpu.others_mib is not None:
        facts.append(f"{gpu.others_mib} MiB held by others")
    if gpu.architecture:
        facts.append(f"architecture {gpu.architecture}")
    if gpu.driver:
        facts.append(f"driver {gpu.driver}")
    if gpu.temperature_c is not None:
        facts.append(f"{gpu.temperature_c} C")
    if gpu.power_w is not None:
        facts.append(f"{gpu.power_w:.0f} W" + (f" of {gpu.power_limit_w:.0f}" if gpu.power_limit_w else ""))
    if gpu.clock_mhz is not None:
        facts.append(f"{gpu.clock_mhz} MHz" + (f" of {gpu.max_clock_mhz}" if gpu.max_clock_mhz else ""))
    if gpu.throttled:
        facts.append(f"held down: {', '.join(gpu.throttled)}")
    return ", ".join(facts)
