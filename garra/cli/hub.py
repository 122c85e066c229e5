"""`garra models search` and `garra models pull`: what the hub has, whether it fits, and bringing it here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli.status import JsonOption, print_json, print_wide
from garra.errors import BadModel, DoesNotFit

if TYPE_CHECKING:
    from garra.planner.room import Room
    from garra.spec import LaunchPlan

_SHOWN_OF_A_REPO = 6


def search(
    query: Annotated[str, typer.Argument(help="Words to look for, for example: qwen3.5 4b")],
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50, help="How many repositories at most.")] = 8,
    everything: Annotated[bool, typer.Option("--all", help="Every quantisation, also those that do not fit.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Search the model hub for GGUF models, with their sizes and whether they would fit this machine."""
    from garra.cli.plan import planner
    from garra.planner.guess import fit
    from garra.registry.courier import Courier

    with Courier() as courier:
        found = courier.ask("search", query=query, limit=limit)
    with planner() as made:
        room = made.room_now()
    for repo in found:
        for model in repo["models"]:
            model["fit"] = fit(model["bytes"], room)
    if as_json:
        print_json(found)
        return
    _show(found, room, everything=everything)


def pull(
    ref: Annotated[str, typer.Argument(help="hf:owner/repo:QUANT, hf:owner/repo/file.gguf or hf:owner/repo")],
    force: Annotated[bool, typer.Option("--force", help="Download it even if it does not fit this machine.")] = False,
    no_projector: Annotated[bool, typer.Option("--no-projector", help="Leave out what lets the model see.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be downloaded and how it fits.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Download a model from the hub: shows how it fits first, resumes what was begun, verifies every byte.

    Nothing is visible before its checksum held. Ctrl-C pauses: the same command goes on.
    """
    from garra import config as layers
    from garra.cli.plan import planner
    from garra.cli.progress import DownloadBar
    from garra.cli.serve import say
    from garra.registry.courier import Courier

    trusted = layers.load().settings.trusted_publishers
    asked = {"ref": ref, "projector": not no_projector}
    with Courier() as courier:
        seen = courier.ask("look", None, None, **asked)
        _tell(seen, trusted)
        with planner() as made:
            _show_fit(made, seen, force=force)
        if dry_run:
            if as_json:
                print_json(seen)
            return
        with DownloadBar(seen["ref"], seen["bytes"]) as bar:
            done = courier.ask("pull", bar.show, None, **asked)
    for warning in done["warnings"]:
        say(f"warning: {warning}")
    if as_json:
        print_json(done)
    else:
        print(done["path"])
        say(f'serve it: model = "{done["ref"]}" in a profile, then garra up PROFILE')


def _tell(seen: dict[str, Any], trusted: list[str]) -> None:
    from garra.cli.serve import say

    say(f"{seen['ref']} at commit {seen['commit'][:12]}, licence {seen['licence'] or 'not stated'}")
    for file in seen["files"]:
        say(f"  {file['bytes'] / 1e9:8.2f} GB  {file['path']}  ({file['role']})")
    if trusted and seen["publisher"] not in trusted:
        say(f"warning: {seen['publisher']} is not among your trusted_publishers")


def _show_fit(made: Any, seen: dict[str, Any], *, force: bool) -> None:
    """Say where the model would run with the usual settings. Raises DoesNotFit unless `force`."""
    from garra.cli.serve import say
    from garra.config_tables import CONTEXT_PRESETS, ProfileTable
    from garra.registry import gguf

    n_usual = CONTEXT_PRESETS["medium"].n_ctx
    try:
        header = gguf.read_model(Path(seen["header"]))
        trained = header.number(f"{header.text('general.architecture')}.context_length") or n_usual
        table = {"model": f"file:{seen['header']}", "context": max(256, min(trained, n_usual))}
        usual = ProfileTable.model_validate(table).to_spec("it")  # as notes call it
        launch: LaunchPlan = made.plan(usual, whole=True)
    except DoesNotFit as error:
        if not force:
            raise DoesNotFit(
                f"{error.what}: nothing more was downloaded", fix=f"{error.fix}; or --force downloads it all the same"
            ) from None
        say(f"warning: {error.what}")
        return
    except BadModel as error:
        say(f"warning: how it fits cannot be told: {error.what}")
        return
    assert launch.bill is not None
    need, profile = launch.bill.need, launch.profile
    where = f"{need.vram_mib} MiB of VRAM and " * bool(need.vram_mib) + f"{need.ram_mib} MiB of RAM"
    settings = f"{profile.slots} slots x {profile.context} tokens, {profile.cache_type_k} cache"
    say(f"it fits: {where} with {settings}")
    for note in launch.notes:
        say(f"  note: {note}")


def _show(found: list[dict[str, Any]], room: Room, *, everything: bool) -> None:
    from rich.table import Table

    from garra.cli.serve import say

    if not found:
        say("nothing found")
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name, side in (
        ("model", "left"),
        ("GB", "right"),
        ("fit", "left"),
        ("licence", "left"),
        ("downloads", "right"),
    ):
        table.add_column(name, justify=side, overflow="fold")  # type: ignore[arg-type]
    for repo in found:
        models = repo["models"]
        if not everything:  # the largest that fit are the best; where none does, the smallest
            fitting = [model for model in models if model["fit"] != "no"]
            models = fitting[-_SHOWN_OF_A_REPO:] or models[:1]
        for model in models:
            name = model["ref"] + f" ({model['shards']} files)" * (model["shards"] > 1)
            licence = repo["licence"] + " (gated)" * repo["gated"]
            table.add_row(name, f"{model['bytes'] / 1e9:.2f}", model["fit"], licence, f"{repo['downloads']:,}")
    print_wide(table)
    memory = f"{room.vram_mib} MiB of VRAM and " * bool(room.device) + f"{room.ram_mib} MiB of RAM"
    say(f"fit: a guess from the size, for {memory}; garra models pull REF --dry-run plans it")
