"""`garra connect CLIENT`: the configuration of an editor or agent for this garra."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli.serve import say
from garra.cli.status import JsonOption, print_json
from garra.errors import BadRequest, NotRunning

if TYPE_CHECKING:
    from garra.connect.files import Edit
    from garra.connect.words import FileChange, Served, Setup

_KEY_ENV = "GARRA_API_KEY"


def _clients(incomplete: str) -> list[str]:
    from garra.connect.clients import CLIENTS

    return [name for name in CLIENTS if name.startswith(incomplete)]


def connect(
    client: Annotated[
        str | None, typer.Argument(help="One of them; without it all are listed.", autocompletion=_clients)
    ] = None,
    model: Annotated[str | None, typer.Option(help="A profile or variant; without it the one that is up.")] = None,
    url: Annotated[
        str | None, typer.Option(help="Where the client reaches garra; without it, where it listens.")
    ] = None,
    key_env: Annotated[
        str | None, typer.Option(help=f"The variable that holds the key; {_KEY_ENV} where there are keys.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="Write it, after showing the difference.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="With --write: do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Print what a client needs to use this garra, or write it into the client's own files."""
    from garra.connect.clients import CLIENTS

    if client is None:
        print_json(list(CLIENTS)) if as_json else print("\n".join(CLIENTS))
        return
    if client not in CLIENTS:
        raise BadRequest(f'"{client}" is not known', fix=f"one of: {', '.join(CLIENTS)}")
    served = _served(model, url, key_env)
    setup = CLIENTS[client](served)
    if as_json:
        print_json(_as_json(served, setup))
        return
    if write:
        _write(setup, ask=not yes)
    else:
        for change in setup.files:
            print(f"# {change.path}\n{_shown(change)}")
    _tell(setup)
    if setup.files and not write:
        say(f"garra connect {client} --write puts it there")


def _served(model: str | None, url: str | None, key_env: str | None) -> Served:
    """What runs, else what the settings say would."""
    from garra import config as layers
    from garra.cli.control import Control
    from garra.connect.words import Served
    from garra.registry.cards import facts_of_model

    config = layers.load()
    settings = config.settings
    there: dict[str, Any] | None = None
    try:
        there = Control().status()
    except NotRunning:
        say("garra does not run: this is for where it would listen")
    up = [row["engine"] for row in (there or {}).get("profiles", ()) if row["engine"]["phase"] == "ready"]
    name = model or (up[0]["profile"] if up else next(iter(config.profiles)))
    profile = config.profile(name)
    n_ctx = next((one["slot_context"] for one in up if one["profile"] == profile.name), profile.context)
    facts = facts_of_model(profile.model)
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::", "") else settings.host
    where = url or (there["url"] if there else f"http://{host}:{settings.port}")
    if config.keys and not settings.keyless and key_env is None:
        key_env = _KEY_ENV
    return Served(
        url=where.rstrip("/").removesuffix("/v1"),
        model=name,
        n_ctx=n_ctx,
        key="garra",
        key_env=key_env,
        tools=facts.traits.tools if facts is not None else True,
        vision=not profile.text_only,
    )


def _shown(change: FileChange) -> str:
    """The settings alone, as the file would have them."""
    from garra.connect.merge import merged

    return merged("", change)


def _write(setup: Setup, *, ask: bool) -> None:
    from garra.connect.files import edit, write

    edits: list[Edit] = [one for change in setup.files if (one := edit(change)).needed]
    if setup.files and not edits:
        say("all of it is there already")
        return
    for one in edits:
        print(one.difference(), end="")
    if ask and edits:
        typer.confirm("write this?", abort=True)
    for one in edits:
        kept = write(one)
        say(f"wrote {one.path}" + (f" (as it was: {kept})" if kept is not None else ""))


def _tell(setup: Setup) -> None:
    for step in setup.steps:
        print(f"- {step}")
    for name, value in (setup.environment or {}).items():
        print(f'export {name}="{value}"')
    if setup.command:
        print(f"$ {setup.command}")
    for note in setup.notes:
        say(f"note: {note}")


def _as_json(served: Served, setup: Setup) -> dict[str, Any]:
    import dataclasses

    told: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(setup)))
    return {"url": served.url, "model": served.model, "context": served.n_ctx, **told}
