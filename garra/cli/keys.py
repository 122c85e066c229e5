"""`garra keys` and `garra alias`: who may use this garra, and under which names."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, Any

import typer

from garra.cli import completion
from garra.cli.serve import say
from garra.cli.status import JsonOption, print_json
from garra.errors import BadRequest, NotRunning

app = typer.Typer(help="API keys: who may use this garra, which profiles, how often.", no_args_is_help=True)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@app.command("create")
def create(
    name: Annotated[str, typer.Argument(help="Whose key it is; shown in logs and status.")],
    profiles: Annotated[
        str | None, typer.Option(help="Profiles it may use, separated by commas; all without it.")
    ] = None,
    priority: Annotated[
        str, typer.Option(help="The best class it may ask for: interactive, normal or batch.")
    ] = "normal",
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It may load, unload, bring and remove models.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a key. It is shown once; only its hash is kept. From the first key on, every request needs one."""
    from garra import config, managed

    if not _NAME.fullmatch(name):
        raise BadRequest(f'"{name}" is no name for a key', fix='letters, digits, "_", "." and "-", 64 at most')
    known = config.load()
    settings: dict[str, Any] = {}
    if profiles:
        settings["profiles"] = [known.profile(one.strip()).name for one in profiles.split(",")]
    if priority not in ("interactive", "normal", "batch"):
        raise BadRequest(f'priority "{priority}" is not known', fix="interactive, normal or batch")
    settings |= {"priority": priority} if priority != "normal" else {}
    settings |= {"rpm": rpm} if rpm is not None else {}
    settings |= {"admin": True} if admin else {}
    if any(one.name == name for one in known.keys):
        raise BadRequest(f'there is a key "{name}" already', fix=f"garra keys revoke {name}")
    first = not known.keys
    key = managed.create_key(name, settings)
    _tell_the_running_one()
    if as_json:
        print_json({"name": name, "key": key, **settings})
        return
    print(key)
    say("shown this once: only its hash is kept")
    if first:
        say("from now on every request needs a key (keyless = true in profiles.toml lets loopback go without)")


@app.command("list")
def show(as_json: JsonOption = False) -> None:
    """The keys there are; what they are is not kept."""
    from garra import config

    loaded = config.load()
    rows = [
        {
            "name": name, "profiles": table.profiles, "priority": table.priority, "rpm": table.rpm,
            "admin": table.admin, "created": table.created, "from": loaded.origin(f"keys.{name}.sha256"),
        }
        for name, table in loaded.settings.keys.items()
    ]  # fmt: skip
    if as_json:
        print_json(rows)
        return
    if not rows:
        say("no keys: whoever reaches loopback may use everything; garra keys create NAME")
        return
    print(f"{'name':<20} {'profiles':<28} {'priority':<12} {'rpm':>5}  {'admin':<5}  created")
    for row in rows:
        scope = ", ".join(row["profiles"]) or "all"  # type: ignore[arg-type]
        admin = "yes" if row["admin"] else ""
        print(
            f"{row['name']:<20} {scope:<28} {row['priority']:<12} {row['rpm'] or '':>5}  {admin:<5}  {row['created']}"
        )


@app.command("revoke")
def revoke(name: Annotated[str, typer.Argument(help="Of the key.")]) -> None:
    """Take a key back: from this moment on it opens nothing."""
    from garra import managed

    managed.revoke_key(name)
    _tell_the_running_one()
    say(f"revoked {name}")


def alias(
    name: Annotated[str, typer.Argument(help="The new name, for example of a model some program insists on.")],
    profile: Annotated[str | None, completion.profile("The profile, or variant, it stands for.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget the name.")] = False,
) -> None:
    """Give a profile one more name, or take it away."""
    from garra import config, managed

    if remove == (profile is not None):
        raise BadRequest("an alias needs a profile, or --remove", fix=f"garra alias {name} PROFILE")
    if profile is not None:
        known = config.load()
        known.profile(profile)
        if name in known.labels and name not in known.settings.aliases:
            raise BadRequest(f'"{name}" is the name of a profile already', fix="garra config show")
    managed.set_alias(name, profile)
    _tell_the_running_one()
    say(f"{name} is forgotten" if remove else f"{name} stands for {profile}")


def _tell_the_running_one() -> None:
    from garra.cli.control import Control

    with contextlib.suppress(NotRunning):
        Control().reload()
