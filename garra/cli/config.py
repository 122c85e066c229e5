"""`garra config show`, `garra config check`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import completion
from garra.cli.status import JsonOption, print_json

if TYPE_CHECKING:
    from garra.config import Config

app = typer.Typer(help="Show and check the settings.", no_args_is_help=True)


@app.command()
def show(
    profile: Annotated[str | None, completion.profile("Only this profile.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print every value and the layer it comes from."""
    from garra import config as layers

    config = layers.load()
    rows = _rows(config, profile)
    if as_json:
        print_json({key: {"value": value, "origin": origin} for key, value, origin in rows})
        return
    width = max(len(key) for key, _, _ in rows)
    values = [_toml(value) for _, value, _ in rows]
    value_width = min(40, max(len(value) for value in values))
    for (key, _, origin), value in zip(rows, values, strict=True):
        print(f"{key:<{width}} = {value:<{value_width}}  # {origin}")


@app.command()
def check() -> None:
    """Validate all layers; exit code 3 and the wrong key's name if one is wrong."""
    from garra import config as layers
    from garra import paths

    config = layers.load()
    for stray in layers.stray_environment():
        print(f"warning: {stray} sets nothing", file=sys.stderr)
    mine = paths.user_profiles()
    print(f"{len(config.profiles)} profiles are fine ({mine if mine.exists() else f'no {mine}'})")


def _rows(config: Config, only: str | None) -> list[tuple[str, Any, str]]:
    dumped = config.settings.model_dump()
    profiles = dumped.pop("profiles")
    rows = [] if only else [(key, value, config.origin(key)) for key, value in dumped.items()]
    names = [config.profile(only).name] if only else list(profiles)
    for name in names:
        for key, value in profiles[name].items():
            if isinstance(value, dict):
                rows += [_row(config, f"profiles.{name}.{key}.{leaf}", inner) for leaf, inner in value.items()]
            else:
                rows.append(_row(config, f"profiles.{name}.{key}", value))
    return rows


def _row(config: Config, key: str, value: Any) -> tuple[str, Any, str]:
    return key, value, config.origin(key)


def _toml(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case None:
            return "(unset)"
        case str():
            return f'"{value}"'
        case _:
            return str(value)
