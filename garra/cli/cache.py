"""`garra cache`: prompts kept while their engine is away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import completion
from garra.cli.serve import say
from garra.cli.status import JsonOption, print_json, print_wide
from garra.errors import BadRequest, UnknownModel

if TYPE_CHECKING:
    from garra.prompts.store import PromptStore
    from garra.prompts.words import Kept

app = typer.Typer(help="Prompts that survive a swap: what slots held, kept on disk.", no_args_is_help=True)

ProfileArgument = Annotated[str | None, completion.profile("Only this profile.")]


@app.command("list")
def list_(profile: ProfileArgument = None, as_json: JsonOption = False) -> None:
    """List what is kept."""
    from rich.table import Table

    kept = _store().kept(profile)
    if as_json:
        print_json([_told(one) for one in kept])
        return
    if not kept:
        say("nothing is kept")
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for heading in ("PROFILE", "NAME", "TOKENS", "MB", "SAVES", "USED", "LABEL"):
        table.add_column(heading, justify="right" if heading in ("TOKENS", "MB", "SAVES") else "left")
    for one in kept:
        figures = (str(one.n_tokens), f"{one.n_bytes / 1e6:.1f}", f"{one.worth_s:.1f} s")
        table.add_row(one.profile, one.name, *figures, one.used_at[:19], one.label)
    print_wide(table)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A name or label of garra cache list.")], as_json: JsonOption = False
) -> None:
    """Show one, and whether its bytes are what was written (exit code 4: they are not)."""
    store = _store()
    one = next((kept for kept in store.kept() if name in (kept.name, kept.label)), None)
    if one is None:
        raise UnknownModel(f'nothing is kept as "{name}"', fix="garra cache list")
    told = _told(one) | {"whole": store.holds(one), "folder": str(store.root / one.profile)}
    if as_json:
        print_json(told)
    else:
        for key, value in told.items():
            print(f"{key:<12} {value}")
    if not told["whole"]:
        raise typer.Exit(UnknownModel.exit_code)


@app.command()
def clear(profile: ProfileArgument = None) -> None:
    """Remove what is kept, of one profile or of all; what was warmed, too."""
    n_bytes = _store().wipe([profile] if profile is not None else None)
    say(f"{n_bytes / 1e6:.1f} MB given back")


@app.command()
def warm(
    profile: Annotated[str, completion.profile("The profile whose engine computes it; it is loaded if need be.")],
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A system prompt as text, or JSON.")],
    label: Annotated[str, typer.Option(help="What to call it; again: it is replaced. [default: the file's name]")] = "",
    as_json: JsonOption = False,
) -> None:
    """Compute a beginning that many conversations share, and keep it: every new engine starts with it.

    JSON holds what a request would: {"messages": [...], "tools": [...]}.
    """
    from garra.cli.control import Control

    messages, tools = _read(file)
    told = Control().warm(profile, label or file.stem, messages, tools)
    if as_json:
        print_json(told)
    else:
        say(f"{told['n_tokens']} tokens are kept as {told['label']}: {told['worth_s']:.1f} s of prefill")


def _read(file: Path) -> tuple[list[Any], list[Any]]:
    """Messages and tools. Raises BadRequest."""
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadRequest(f"{file} is no text", fix="UTF-8, or JSON with messages and tools") from None
    if file.suffix != ".json":
        return [{"role": "system", "content": text}], []
    try:
        told = json.loads(text)
        messages, tools = told["messages"], told.get("tools", [])
    except (ValueError, KeyError, TypeError, AttributeError):
        example = '{"messages": [{"role": "system", "content": "..."}]}'
        raise BadRequest(f"{file} holds no request", fix=example) from None
    return messages, tools


def _told(one: Kept) -> dict[str, Any]:
    return {
        "profile": one.profile,
        "name": one.name,
        "label": one.label,
        "tokens": one.n_tokens,
        "bytes": one.n_bytes,
        "worth_s": one.worth_s,
        "kept_at": one.kept_at,
        "used_at": one.used_at,
        "fingerprint": one.fingerprint,
    }


def _store() -> PromptStore:
    from garra import config, paths
    from garra.prompts.store import PromptStore

    return PromptStore(config.load().settings.prompt_dir or paths.cache_dir() / "prompts")
