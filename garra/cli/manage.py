"""`garra load`, `unload`, `pin`, `reload`, `events`: what a person may tell a running garra."""

from __future__ import annotations

from typing import Annotated

import typer

from garra.cli import completion
from garra.cli.serve import load_there, say
from garra.cli.status import JsonOption, print_json

NameArgument = Annotated[str, completion.profile("A profile or one of its aliases.")]


def load(
    profile: NameArgument,
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Do not wait until it is ready.")] = False,
) -> None:
    """Load a profile's model, also one whose engine failed; others leave if they must."""
    from garra.cli.control import Control

    if no_wait:
        say(f"loading {Control().load(profile)}")
    else:
        load_there(Control(), profile)


def unload(profile: NameArgument) -> None:
    """Unload a profile's model; running answers may end first (drain_s)."""
    from garra.cli.control import Control

    say(f"unloading {Control().unload(profile)}")


def pin(
    profile: NameArgument,
    off: Annotated[bool, typer.Option("--off", help="Let it go again.")] = False,
) -> None:
    """Keep a model in memory, whoever else wants its place; until garra stops, or --off."""
    from garra.cli.control import Control

    name = Control().pin(profile, not off)
    say(f"{name} is {'no longer ' if off else ''}pinned")


def reload(as_json: JsonOption = False) -> None:
    """Read profiles.toml again: engines whose profile did not change are not touched."""
    from garra.cli.control import Control

    changes = Control().reload()
    if as_json:
        print_json(changes)
        return
    told = {what.replace("_", " "): names for what, names in changes.items() if names and what != "untouched"}
    for what, names in told.items():
        print(f"{what}: {', '.join(names)}")
    if not told:
        print("nothing changed")


def events(as_json: JsonOption = False) -> None:
    """Follow what happens: loads, swaps, failures, reloads. The last hundred come first; Ctrl-C ends it."""
    import json

    from garra.cli.control import Control

    for fact in Control().events():
        if as_json:
            print(json.dumps(fact), flush=True)
        else:
            print(f"{fact['at'][11:23]}  {fact['profile']:<14} {fact['kind']:<10} {fact['detail']}", flush=True)
