"""`garra engine build`, `garra engine info`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli.status import JsonOption, print_json

if TYPE_CHECKING:
    from garra.engine.build import BuildPlan

app = typer.Typer(help="Build and inspect the engine (llama-server).", no_args_is_help=True)


@app.command()
def build(
    source: Annotated[
        Path | None,
        typer.Option(help="A folder with llama.cpp's sources (no network needed).", exists=True, file_okay=False),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Parallel compilers; default: what RAM allows.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Forget an interrupted or earlier build first.")] = False,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Only without an engine of the pinned build.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile the pinned llama.cpp, test it, and make it the current engine. An interrupted build goes on."""
    from garra.engine.build import plan_build

    if if_missing and _have_pinned():
        return
    plan = plan_build(source.resolve() if source else None, jobs)
    if dry_run:
        _show_plan(plan, as_json)
        return
    if clean:
        shutil.rmtree(plan.work, ignore_errors=True)
        shutil.rmtree(plan.target, ignore_errors=True)
    _build_with_bar(plan)
    info(as_json)


@app.command()
def info(as_json: JsonOption = False) -> None:
    """Show the engine in use."""
    from garra.engine import store

    build = store.current()
    server = build.tool("llama-server")
    told = subprocess.run([str(server), "--version"], capture_output=True, text=True, check=False)
    facts: dict[str, Any] = {
        "stamp": build.stamp,
        "build": build.build_number,
        "backend": build.backend,
        "patches": list(build.patches),
        "folder": str(build.folder),
        "version": (told.stdout + told.stderr).strip().splitlines(),
    }
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        for line in value if isinstance(value, list) else [value]:
            print(f"{key:<8} {line}")


def build_if_missing(say: Callable[[str], None]) -> None:
    """For `garra up`: an engine of the pinned build, compiled now if there is none."""
    from garra.engine.build import plan_build

    if not _have_pinned():
        say("there is no engine of the pinned build yet: it is compiled now, once, in about 5 minutes")
        _build_with_bar(plan_build())


def _have_pinned() -> bool:
    from garra.engine import store
    from garra.engine.source import load_pin

    build = store.find_current()
    return build is not None and build.build_number == load_pin().build


def _build_with_bar(plan: BuildPlan) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from garra.engine.build import build

    columns = (
        TextColumn("building the engine"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True, soft_wrap=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        tenths = 0

        def on_step(done: int, total: int, what: str) -> None:
            nonlocal tenths
            progress.update(task, completed=done, total=total, description=what[:40])
            if not console.is_terminal and done * 10 // total > tenths:  # a log gets a line now and then
                tenths = done * 10 // total
                console.print(f"compiled {done} of {total}", markup=False, highlight=False)

        build(plan, on_step=on_step, say=lambda line: progress.console.print(line, markup=False, highlight=False))


def _show_plan(plan: BuildPlan, as_json: bool) -> None:
    facts = {
        "stamp": plan.stamp,
        "sources": str(plan.given or f"{plan.pin.package}=={plan.pin.version}"),
        "sha256": None if plan.given else plan.pin.sha256,
        "patches": [patch.stem for patch in plan.pin.patches],
        "target": str(plan.target),
        "configure": plan.configure,
        "compile": plan.compile,
    }
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        print(f"{key:<10} {' '.join(value) if isinstance(value, list) else value}")
