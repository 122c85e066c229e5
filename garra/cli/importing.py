"""`garra models import`: what other programs have on this machine, linked where it is or copied."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli.status import JsonOption, print_json
from garra.errors import BadModel, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from garra.registry.stores import Found, Looked

_CHUNK = 8 << 20


def import_models(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHERE]...",
            help="huggingface, ollama, llama.cpp, lm-studio, garraia, a folder or a .gguf file. Default: all programs.",
        ),
    ] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Copy the files, so that they stay when theirs go.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is there.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find models that other programs have, and use them where they are. Their stores are only read."""
    from garra.cli.models import opened_catalog
    from garra.registry import stores

    looked = [stores.look(found) for found in _finds(where)]
    usable = [one.artifact for one in looked if one.artifact is not None]
    if not dry_run:
        if copy:
            usable = [_copied(artifact) for artifact in usable]
        with opened_catalog() as catalog:
            for artifact in usable:
                known = catalog.get(artifact.ref) or catalog.get(artifact.path)
                if known is None or known.path != artifact.path:  # what is known of the same file is known better
                    catalog.keep(artifact)
    if as_json:
        print_json([_told(one) for one in looked])
    else:
        for one in looked:
            size = f"{one.artifact.n_bytes / 1e9:.2f} GB" if one.artifact is not None else "-"
            print(
                f"{one.found.origin:12} {size:>9}  {one.found.ref}"
                + f"   not usable: {one.problem}" * bool(one.problem)
            )
        _conclude(len(usable), len(looked), dry_run=dry_run, copy=copy)
    if looked and not usable:
        raise BadModel("none of these can be used", fix="garra models search NAME")


def _finds(where: list[str] | None) -> Iterable[Found]:
    from garra.registry import stores

    programs = stores.known()
    for word in where or programs:
        if word in programs:
            yield from programs[word]()
        elif Path(word).expanduser().exists():
            yield from stores.folder(Path(word).expanduser().resolve())
        else:
            raise ConfigError(
                f"there is no store, folder or file {word}", fix=f"write one of {', '.join(programs)}, or a path"
            )


def _copied(artifact: Any) -> Any:
    """The artifact with files of garra's own."""
    import dataclasses

    from garra import paths
    from garra.registry import disk

    home = paths.models_dir() / "copies" / artifact.ref.replace(":", "-").replace("/", "_")[-150:]
    home.mkdir(parents=True, exist_ok=True)
    disk.check_space(home, artifact.n_bytes, fix="import without --copy")
    files = []
    for file in artifact.files:
        source = Path(file.path)
        name = source.name if source.suffix == ".gguf" else f"{file.role}.gguf"
        target, part = home / name, home / f"{name}.part"
        try:
            _copy(source, part, file.n_bytes)
            part.replace(target)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise disk.refused(error, target, file.n_bytes) from None
        files.append(dataclasses.replace(file, path=str(target)))
    path = files[0].path
    return dataclasses.replace(artifact, ref=f"file:{path}", origin="copy", path=path, files=tuple(files))


def _copy(source: Path, target: Path, n_bytes: int) -> None:
    from garra.cli.progress import DownloadBar

    with source.open("rb") as theirs, target.open("wb") as ours, DownloadBar(source.name, n_bytes) as bar:
        while chunk := theirs.read(_CHUNK):
            ours.write(chunk)
            bar.show({"state": "copying", "done_bytes": ours.tell()})
        ours.flush()
        os.fsync(ours.fileno())


def _told(one: Looked) -> dict[str, Any]:
    from garra.cli.models import described

    return {
        "origin": one.found.origin,
        "ref": one.found.ref,
        "usable": one.artifact is not None,
        "problem": one.problem,
        "artifact": described(one.artifact) if one.artifact is not None else None,
    }


def _conclude(n_usable: int, n_found: int, *, dry_run: bool, copy: bool) -> None:
    from garra.cli.serve import say

    if not n_found:
        say("no models found")
        return
    verb = "can be imported" if dry_run else "copied" if copy else "imported where they are"
    say(f'{n_usable} of {n_found} {verb}; use one: model = "REF" in a profile')
