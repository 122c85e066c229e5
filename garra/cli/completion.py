"""What the shell may complete. Nothing here may fail: a wrong settings file is told by the command itself."""

from __future__ import annotations

from typing import Any

import typer

from garra.errors import GarraError


def profile(help: str, metavar: str | None = None) -> Any:
    """An argument that is a profile."""
    return typer.Argument(help=help, metavar=metavar, autocompletion=profiles)


def engine(help: str) -> Any:
    """An argument that is an engine build's stamp."""
    return typer.Argument(help=help, autocompletion=engines)


def profiles(incomplete: str) -> list[str]:
    """Profiles and their aliases."""
    from garra import config

    try:
        known = config.load().profiles.values()
    except GarraError:
        return []
    names = sorted({name for profile in known for name in (profile.name, *profile.aliases)})
    return [name for name in names if name.startswith(incomplete)]


def engines(incomplete: str) -> list[str]:
    """Stamps of the builds that are here."""
    from garra.engine import store

    return [build.stamp for build in store.all_builds() if build.stamp.startswith(incomplete)]
