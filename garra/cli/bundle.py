"""`garra bundle create | install`: garra on a machine that has no network at all."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from garra.cli import completion
from garra.cli.status import JsonOption, print_json

app = typer.Typer(no_args_is_help=True, help="Bundles: all in one file, for machines without a network.")


class EngineName(enum.StrEnum):
    """Which engine goes with it."""

    sources = "sources"
    portable = "portable"
    installed = "installed"


@app.command()
def create(
    profiles: Annotated[
        list[str],
        completion.profile("Profiles whose models go with it.", "PROFILE..."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The bundle file.", dir_okay=False)],
    engine: Annotated[
        EngineName,
        typer.Option(
            help="sources: compiled there (needs a compiler there); portable: built here for any CPU of this kind; "
            "installed: the one in use, for a machine like this one."
        ),
    ] = EngineName.sources,
    as_json: JsonOption = False,
) -> None:
    """Gather engine, wheels, models and profiles in one file.

    On the other machine: tar -xOf FILE install.sh | sh -s FILE
    """
    from garra import config as layers
    from garra.bundling import pack
    from garra.cli.engine import build_with_bar
    from garra.cli.progress import DownloadBar
    from garra.cli.serve import say
    from garra.engine import store as engines

    config = layers.load()
    chosen = list({config.profile(name).name: config.profile(name) for name in profiles}.values())
    build = engines.current() if engine is EngineName.installed else None
    if engine is EngineName.portable:
        build = pack.portable_engine(build_with_bar)
    with DownloadBar("packing") as bar:

        def show(name: str, done: int) -> None:
            bar.show({"state": "packing", "file": name, "done_bytes": done})

        made = pack.create(chosen, output, build, say=say, on_bytes=show)
    if as_json:
        print_json({"file": str(output), "bytes": made.n_bytes, "platform": made.platform, "python": made.python,
                    "engine": made.engine, "profiles": [model.profile for model in made.models]})  # fmt: skip
        return
    print(output)
    say(f"{made.n_bytes / 1e9:.2f} GB for {made.platform}, Python {made.python}, engine {made.engine}")
    say(f"there, without a network:  tar -xOf {output.name} install.sh | sh -s {output.name}")


@app.command()
def install(
    bundle: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False)], as_json: JsonOption = False
) -> None:
    """Install what a bundle holds; every file is verified first, and no network is asked."""
    from garra.bundling import unpack
    from garra.cli.progress import DownloadBar
    from garra.cli.serve import say

    with DownloadBar("installing", bundle.stat().st_size) as bar:
        made, notes = unpack.install(
            bundle, lambda name, done: bar.show({"state": "installing", "file": name, "done_bytes": done})
        )
    if as_json:
        print_json({"profiles": [model.profile for model in made.models], "engine": made.engine, "notes": notes})
        return
    for note in notes:
        say(note)
    if made.engine == "sources":
        say("the engine's sources are here: garra up compiles them, or garra engine build")
    if made.models:
        print(f"garra up {made.models[0].profile}")
