"""`garra models list | show | verify | rm`: what is on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import hub, importing
from garra.cli.status import JsonOption, print_json, print_wide
from garra.errors import BadModel, Taken, UnknownModel

if TYPE_CHECKING:
    from garra.registry.catalog import Artifact, Catalog

app = typer.Typer(no_args_is_help=True, help="Models: search the hub, download, import, list, verify, remove.")
app.command()(hub.search)
app.command()(hub.pull)
app.command("import")(importing.import_models)

RefArgument = Annotated[str, typer.Argument(metavar="REF", help="A model as `garra models list` names it.")]


@contextmanager
def opened_catalog() -> Iterator[Catalog]:
    """The catalog of this machine."""
    from garra.registry import catalog

    with catalog.opened() as known:
        _take_down_profiles(known)
        yield known


def _take_down_profiles(catalog: Catalog) -> None:
    """What a profile names and is here belongs into the catalog, whoever brought it."""
    from garra import config as layers
    from garra.registry import store, stores

    for profile in layers.load().profiles.values():
        path = store.locate(profile.model)
        if path is not None and catalog.get(str(path)) is None:
            looked = stores.adopt(profile.model, path)
            if looked.artifact is not None:
                catalog.keep(looked.artifact)


@app.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """List the models garra knows on this machine, with the profiles that use them."""
    with opened_catalog() as catalog:
        known = catalog.all()
    used = _profiles_by_path()
    if as_json:
        print_json([described(one) | {"profiles": used.get(one.path, [])} for one in known])
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in ("model", "GB", "architecture", "origin", "profiles", "state"):
        table.add_column(name, justify="right" if name == "GB" else "left", overflow="fold")
    for one in known:
        state = "ok" if one.present else "file is gone"
        state += f", {len(one.warnings)} warnings" * bool(one.warnings)
        arch = str(one.facts.get("architecture", ""))
        table.add_row(one.ref, f"{one.n_bytes / 1e9:.2f}", arch, one.origin, ", ".join(used.get(one.path, [])), state)
    print_wide(table)


@app.command()
def show(
    ref: RefArgument,
    template: Annotated[bool, typer.Option("--template", help="Print its chat template only.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show all that is known of a model: files, hashes, licence, what is suspicious, what it took."""
    from garra import config as layers
    from garra.registry import gguf

    one = _known(ref)
    if template:
        print(gguf.read(Path(one.path)).text("tokenizer.chat_template"))
        return
    told = described(one) | {"profiles": _profiles_by_path().get(one.path, [])}
    trusted = layers.load().settings.trusted_publishers
    if trusted and one.origin == "hub":
        told["trusted_publisher"] = one.publisher in trusted
    if as_json:
        print_json(told)
        return
    for key in ("ref", "origin", "publisher", "licence", "base_model", "revision", "added", "used", "profiles"):
        if told[key]:
            print(f"{key:12} {', '.join(told[key]) if isinstance(told[key], list) else told[key]}")
    for key, value in one.facts.items():
        print(f"{key:12} {value}")
    for device, n_bytes in (("VRAM", one.vram_bytes), ("RAM", one.ram_bytes)):
        if n_bytes:
            print(f"{'took':12} {n_bytes / (1 << 20):.0f} MiB of {device} at its last load")
    if one.decode_tok_s is not None:
        print(f"{'decode':12} {one.decode_tok_s:.1f} tok/s per slot")
    for file in one.files:
        gone = "" if Path(file.path).is_file() else "   GONE"
        print(f"{file.role:12} {file.path}  {file.n_bytes} bytes{gone}")
        print(f"{'':12} sha256 {file.sha256 or 'not known yet'}, checked {file.checked or 'never'}")
    doubts = ["its publisher is not among your trusted_publishers"] * (told.get("trusted_publisher") is False)
    for warning in (*one.warnings, *doubts):
        print(f"{'warning':12} {warning}")


@app.command()
def verify(
    refs: Annotated[list[str] | None, typer.Argument(metavar="[REF]...", help="Default: every model.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Hash the files of models again and compare; a file without a known hash gets one."""
    from garra.cli.progress import DownloadBar
    from garra.registry.courier import Courier

    with opened_catalog() as catalog:
        known = [_known(ref) for ref in refs] if refs else catalog.all()
        files = [file.path for one in known for file in one.files]
        total = sum(file.n_bytes for one in known for file in one.files)
        with Courier() as courier, DownloadBar("hashing", total) as bar:
            hashes: dict[str, str | None] = courier.ask("hash", bar.show, paths=files) if files else {}
        verdicts = []
        for one in known:
            held = []
            for file in one.files:
                found = hashes[file.path]
                state = "gone" if found is None else "ok" if file.sha256 in (None, found) else "DAMAGED"
                verdicts.append({"ref": one.ref, "path": file.path, "state": state, "sha256": found})
                if found is not None and state == "ok":
                    held.append((file.path, found))
            catalog.checked(one.ref, held)
    if as_json:
        print_json(verdicts)
    else:
        for verdict in verdicts:
            print(f"{verdict['state']:8} {verdict['ref']}  {verdict['path']}")
    wrong = [verdict for verdict in verdicts if verdict["state"] != "ok"]
    if wrong:
        raise BadModel(
            f"{len(wrong)} of {len(verdicts)} files are gone or damaged",
            fix=f"garra models rm {wrong[0]['ref']}, then pull it again",
        )


@app.command("rm")
def remove(ref: RefArgument) -> None:
    """Remove a model: files that garra downloaded are deleted, imported ones only forgotten."""
    from garra.cli.control import running
    from garra.cli.serve import say
    from garra.registry import removal

    one = _known(ref)
    there = running()
    rows = there.status()["profiles"] if there is not None else []
    busy = [row["engine"]["profile"] for row in rows if row["engine"]["phase"] not in ("cold", "failed")]
    users = [name for name in _profiles_by_path().get(one.path, []) if name in busy]
    if users:
        raise Taken(f"{one.ref} is in use by {', '.join(users)}", fix=f"garra unload {users[0]}")
    with opened_catalog() as catalog:
        freed = removal.remove(one, catalog)
    kept = f"forgot {one.ref}: its files stay where they are"
    say(f"removed {one.ref}: {freed / 1e9:.2f} GB given back" if freed else kept)


def described(one: Artifact) -> dict[str, Any]:
    """An artifact as JSON."""
    return dataclasses.asdict(one) | {"present": one.present}


def _known(ref: str) -> Artifact:
    from garra import config as layers
    from garra.registry import store

    with opened_catalog() as catalog:
        found = catalog.get(ref)
        profile = layers.load().labels.get(ref)
        if found is None and profile is not None and (path := store.locate(profile.model)) is not None:
            found = catalog.get(str(path))
    if found is None:
        raise UnknownModel(f"garra knows no model {ref}", fix="garra models list, or garra models import")
    return found


def _profiles_by_path() -> dict[str, list[str]]:
    """Which profiles load which file."""
    from garra import config as layers
    from garra.registry import store

    found: dict[str, list[str]] = {}
    for name, profile in layers.load().profiles.items():
        if (path := store.locate(profile.model)) is not None:
            found.setdefault(str(path), []).append(name)
    return found
