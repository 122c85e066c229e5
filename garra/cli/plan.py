"""`garra plan`: where every MiB goes, what would fit at most, and the command line; here or on a described machine."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import completion
from garra.cli.status import JsonOption, print_json
from garra.errors import ConfigError, DoesNotFit

if TYPE_CHECKING:
    from garra.host import HostSpec
    from garra.planner.room import Room
    from garra.planning import Planner
    from garra.spec import KvType, LaunchPlan, Profile

_GPUS = Path(__file__).parent.parent / "data" / "gpus.json"
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[GM]i?B)?", re.IGNORECASE)
_KV_TYPES: tuple[KvType, ...] = ("f16", "q8_0", "q4_0")
_SOURCES = {"formula": "by formula", "engine": "by the engine's own accounting", "measured": "as measured"}
_SLOTS = (1, 2, 4)
_BAR = 48
_SHADES = "█▓▒░#=+*"


def plan(
    profile: Annotated[str, completion.profile("The profile to plan.")],
    gpu: Annotated[str | None, typer.Option(help='Plan for this GPU instead, for example "RTX 3070".')] = None,
    vram: Annotated[str | None, typer.Option(help="Plan for a GPU with so much memory: 8GiB.")] = None,
    unified: Annotated[str | None, typer.Option(help="Plan for a machine whose GPU shares its memory: 36GiB.")] = None,
    ctx: Annotated[int | None, typer.Option(min=256, help="Plan with so many tokens per slot.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Plan what was asked for even where it does not fit.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="Let the profile begin as it asks, though it ran out of memory before.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a profile would take of each memory, before it is loaded. Loads and downloads nothing."""
    from garra import config as layers
    from garra.parts import card_of, shipped_card

    config = layers.load()
    wished = config.profile(profile)
    if ctx is not None:
        wished = replace(wished, context=ctx)
    here = _described(gpu, vram, unified)
    with planner(here) as made:
        if forget:
            made.forget(wished.name)
        card, path = card_of(wished)
        room = made.room_now()
        obstacle: DoesNotFit | None = None
        try:
            launch = made.plan(wished, force=force, present=False)
        except DoesNotFit as error:
            obstacle, launch = error, made.plan(wished, force=True, present=False)
        shipped = shipped_card(wished.model) if path is not None else None
        report = _report(wished, launch, room, obstacle)
        report["source"] |= {"model": "from file" if path is not None else f"from card: {card.origin}"}
        report["source"]["differences"] = _differences(card, shipped)
        report["last_loads"] = [dataclasses.asdict(load) for load in made.last_loads(wished.name)]
        report["max_ctx"] = made.largest_contexts(wished, card, room, _KV_TYPES, _SLOTS)
    if as_json:
        print_json(report)
    else:
        _show(report)
    if obstacle is not None and not force:
        raise obstacle


@contextmanager
def planner(described: HostSpec | None = None) -> Iterator[Planner]:
    """A planner for this machine, or for a described one: then the engine is not asked, and nothing was learned."""
    from garra import config as layers
    from garra import paths
    from garra.engine import store as engines
    from garra.ledger import Ledger
    from garra.planning import Planner, detect
    from garra.store import Store
    from garra.workshop import margins

    build = engines.find_current()
    margin = margins(layers.load())
    if described is not None:
        backend = "metal" if described.unified else "cuda"
        yield Planner(lambda: None, margin, None, detect=lambda: described, backend=backend)
        return
    store = Store(paths.state_db())
    try:
        yield Planner(lambda: build, margin, Ledger(store), detect=lambda: detect(build), alone=_nothing_runs)
    finally:
        store.close()


def _nothing_runs() -> bool:
    from garra.cli.control import running

    return running() is None


def _described(gpu: str | None, vram: str | None, unified: str | None) -> HostSpec | None:
    from garra import hardware
    from garra.planner import room

    given = [option for option in (gpu, vram, unified) if option is not None]
    if len(given) > 1:
        raise ConfigError("cannot plan for several machines at once", fix="give one of --gpu, --vram and --unified")
    if gpu is not None:
        name, facts = _known_gpu(gpu)
        return room.described(name, facts["vram_mib"], hardware.detect(), architecture=facts["architecture"])
    if vram is not None:
        return room.described(f"a GPU with {vram}", _mib(vram), hardware.detect())
    if unified is not None:
        return room.unified(_mib(unified), hardware.detect())
    return None


def _known_gpu(wanted: str) -> tuple[str, dict[str, Any]]:
    known: dict[str, dict[str, Any]] = json.loads(_GPUS.read_text(encoding="utf-8"))
    words = wanted.lower().replace("nvidia", "").replace("geforce", "").split()
    for name, facts in known.items():
        if name.lower().split() == words:
            return name, facts
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}? else: " if near else ""
    raise ConfigError(f'garra knows no GPU called "{wanted}"', fix=f"{hint}--vram 8GiB")


def _mib(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ConfigError(f'cannot read "{text}" as a size', fix="write it like 8GiB or 7400MiB")
    factor = 1 if (match["unit"] or "GiB").lower().startswith("m") else 1024
    return int(float(match["number"]) * factor)


def _report(wished: Profile, launch: LaunchPlan, room: Room, obstacle: DoesNotFit | None) -> dict[str, Any]:
    from garra.engine.argv import server_argv

    bill = launch.bill
    assert bill is not None
    room_mib = {"host": room.ram_mib} | ({room.device: room.vram_mib} if room.device else {})
    devices = {
        device: {
            "name": room.what if device == room.device else "host memory",
            "parts_bytes": dict(parts),
            "total_bytes": bill.total(device),
            "grows_bytes": dict(bill.grows) if device == "host" else {},
            "room_mib": room_mib.get(device, 0),
        }
        for device, parts in bill.parts.items()
    }
    return {
        "profile": wished.name,
        "fits": obstacle is None,
        "obstacle": {"what": obstacle.what, "fix": obstacle.fix} if obstacle is not None else None,
        "devices": devices,
        "margin_mib": {"vram": room.margins.vram_mib, "ram": room.margins.ram_mib},
        "slots": launch.profile.slots,
        "context": launch.profile.context,
        "gpu_layers": launch.gpu_layers,
        "notes": list(launch.notes),
        "source": {"numbers": bill.source},
        "argv": server_argv(Path("llama-server"), launch, Path("engine.sock")),
    }


def _differences(card: Any, shipped: Any) -> list[str]:
    """What the file says otherwise than the shipped card."""
    if shipped is None:
        return []
    pairs = {
        "architecture": (card.arch, shipped.arch),
        "layers": (card.n_layer, shipped.n_layer),
        "embedding": (card.n_embd, shipped.n_embd),
        "trained context": (card.n_ctx, shipped.n_ctx),
        "vocabulary": (card.n_vocab, shipped.n_vocab),
        "drafting layer": (card.drafts, shipped.drafts),
    }
    told = [
        f"{name}: {mine} in the file, {theirs} on the card" for name, (mine, theirs) in pairs.items() if mine != theirs
    ]
    if abs(card.weight_bytes - shipped.weight_bytes) > 0.03 * shipped.weight_bytes:
        told.append(
            f"weights: {card.weight_bytes / 1e9:.2f} GB in the file, {shipped.weight_bytes / 1e9:.2f} GB on the card"
        )
    return told


def _show(report: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    source = report["source"]
    numbers = {"formula": "by formula", "engine": "by the engine's own accounting"}.get(
        source["numbers"], "as measured"
    )
    console.print(
        f"{report['profile']}: {'fits' if report['fits'] else 'does not fit'}; {numbers}; model {source['model']}"
    )
    for note in report["notes"]:
        console.print(f"  note: {note}", markup=False)
    for line in source["differences"]:
        console.print(f"  the file differs from what garra ships: {line}", markup=False)
    names = list(dict.fromkeys(part for device in report["devices"].values() for part in device["parts_bytes"]))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("MiB")
    for device in report["devices"]:
        table.add_column(device, justify="right")
    for name in names:
        table.add_row(name, *(_shown(device["parts_bytes"].get(name, 0)) for device in report["devices"].values()))
    table.add_row("[bold]total", *(f"[bold]{_shown(d['total_bytes'])}" for d in report["devices"].values()))
    for name in report["devices"].get("host", {}).get("grows_bytes", {}):
        table.add_row(f"{name} (grows)", *(_shown(d["grows_bytes"].get(name, 0)) for d in report["devices"].values()))
    margin = report["margin_mib"]
    table.add_row("room, less the margin", *(str(d["room_mib"]) for d in report["devices"].values()))
    console.print(table)
    console.print(f"margin left free: {margin['vram']} MiB of VRAM, {margin['ram']} MiB of RAM")
    for device in report["devices"].values():
        console.print(_bar(device), markup=False)
    for load in report["last_loads"]:
        took, planned = (f"{load[key] / (1 << 20):.0f} MiB" for key in ("measured_bytes", "planned_bytes"))
        console.print(f"last load ({load['at']}): planned {planned} on {load['device']}, had {took} when it was ready")
    contexts = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    contexts.add_column("largest context per slot")
    for slots in _SLOTS:
        contexts.add_column(f"{slots} slot{'s' * (slots > 1)}", justify="right")
    for kv_type, by_slots in report["max_ctx"].items():
        contexts.add_row(f"cache {kv_type}", *(str(by_slots[str(slots)] or "-") for slots in _SLOTS))
    console.print(contexts)
    console.print(" ".join(report["argv"]), markup=False)


def _bar(device: dict[str, Any]) -> str:
    """Parts of a device, drawn to scale with its room."""
    whole = max(device["room_mib"] << 20, device["total_bytes"], 1)
    drawn, key = "", []
    for shade, (name, n_bytes) in zip(_SHADES * 2, device["parts_bytes"].items(), strict=False):
        width = round(_BAR * n_bytes / whole)
        drawn += shade * width
        key.append(f"{shade} {name}")
    return f"{device['name']}\n|{drawn[:_BAR]:<{_BAR}}|  {', '.join(key)}"


def _shown(n_bytes: int) -> str:
    return f"{n_bytes / (1 << 20):.1f}" if n_bytes else ""
