"""`garra engine build | info | list | use | rollback | remove`."""

from __future__ import annotations

import enum
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import completion
from garra.cli.status import JsonOption, print_json, print_wide
from garra.errors import EngineMissing

if TYPE_CHECKING:
    from garra.engine.build import BuildPlan
    from garra.spec import EngineBuild

app = typer.Typer(help="Build and inspect the engine (llama-server).", no_args_is_help=True)


class BackendName(enum.StrEnum):
    """What the engine computes on."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    vulkan = "vulkan"
    hip = "hip"
    metal = "metal"


class ModeName(enum.StrEnum):
    """For whom it is compiled."""

    native = "native"
    portable = "portable"
    dev = "dev"


@app.command()
def build(
    source: Annotated[
        Path | None,
        typer.Option(help="A folder with llama.cpp's sources (no network needed).", exists=True, file_okay=False),
    ] = None,
    backend: Annotated[BackendName, typer.Option(help="auto: what fits the GPU this machine has.")] = BackendName.auto,
    mode: Annotated[
        ModeName,
        typer.Option(help="native: this CPU and GPU; portable: any of their kind; dev: native with debug symbols."),
    ] = ModeName.native,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="Parallel compilers; default: what RAM allows.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done.")] = False,
    clean: Annotated[bool, typer.Option("--clean", help="Forget an interrupted or earlier build first.")] = False,
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Only without an engine of the pinned build.")
    ] = False,
    remove_compiler: Annotated[
        bool, typer.Option("--remove-compiler", help="Afterwards remove a CUDA compiler that garra fetched.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Compile the pinned llama.cpp, test it, and make it the current engine. An interrupted build goes on."""
    from garra.engine import toolkit
    from garra.engine.build import plan_build

    if if_missing and _have_pinned():
        return
    plan = plan_build(source.resolve() if source else None, jobs, backend=backend.value, mode=mode.value)
    if dry_run:
        _show_plan(plan, as_json)
        return
    if clean:
        shutil.rmtree(plan.work, ignore_errors=True)
        shutil.rmtree(plan.target, ignore_errors=True)
    build_with_bar(plan)
    renew()
    if remove_compiler and plan.recipe.cuda is not None:
        say(f"removed {toolkit.strip(plan.recipe.cuda) / 1e6:.0f} MB of compiler; the libraries stay")
    info(as_json)


@app.command()
def info(as_json: JsonOption = False) -> None:
    """Show the engine in use."""
    from garra.engine import store

    build = store.current()
    server = build.tool("llama-server")
    told = subprocess.run(
        [str(server), "--version"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **build.environment()},
    )
    facts = _facts(build) | {"version": (told.stdout + told.stderr).strip().splitlines()}
    if as_json:
        print_json(facts)
        return
    for key, value in facts.items():
        for line in value if isinstance(value, list) else [value] if value else []:
            print(f"{key:<10} {line}")


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """Show every engine on this machine."""
    from rich.table import Table

    from garra.engine import store

    current, previous = store.find_current(), store.previous()
    marks = {build.stamp: mark for mark, build in (("previous", previous), ("current", current)) if build is not None}
    rows = [_facts(build) | {"use": marks.get(build.stamp, "")} for build in store.all_builds()]
    if as_json:
        print_json(rows)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading in ("STAMP", "USE", "BACKEND", "MODE", "BUILD", "ORIGIN", "FROM"):
        table.add_column(heading, no_wrap=heading != "FROM", overflow="fold")
    for row in rows:
        table.add_row(*(str(row[key]) for key in ("stamp", "use", "backend", "mode", "build", "origin", "provenance")))
    print_wide(table)


@app.command()
def use(
    engine: Annotated[
        str,
        completion.engine("A stamp of garra engine list, or the path of a llama-server you have."),
    ],
    as_json: JsonOption = False,
) -> None:
    """Use another engine from now on. One of your own is checked first: its flags, and that it produces a token."""
    from garra.engine import given, store

    known = next((build for build in store.all_builds() if build.stamp == engine), None)
    if known is not None:
        store.switch_to(known, by_choice=True)
    else:
        given.use(Path(engine))
    renew()
    info(as_json)


@app.command()
def rollback(as_json: JsonOption = False) -> None:
    """Go back to the engine that was in use before; once more goes forward again."""
    from garra.engine import store

    store.roll_back()
    renew()
    info(as_json)


@app.command()
def remove(
    stamp: Annotated[str, completion.engine("A stamp of garra engine list.")],
) -> None:
    """Delete an engine that is not in use."""
    from garra.engine import store

    print(f"removed {store.remove(stamp).folder}")


def renew() -> None:
    """Tell a running garra that there is another engine: what is loaded starts again with it, answers end first."""
    from garra.cli.control import running

    there = running()
    if there is not None:
        there.reload()
        say("the running garra changes over: loaded models start again once their answers have ended")


def _facts(build: EngineBuild) -> dict[str, Any]:
    return {
        "stamp": build.stamp,
        "build": build.build_number,
        "backend": build.backend,
        "mode": build.mode,
        "toolkit": build.toolkit,
        "patches": list(build.patches),
        "origin": build.origin,
        "provenance": build.provenance,
        "folder": str(build.folder),
    }


def build_if_missing(say: Callable[[str], None], *, prebuilt: bool = False) -> bool:
    """For `garra up`: an engine of the pinned build, compiled now if there is none; or a prebuilt one meanwhile.

    True when the engine in use is a prebuilt one and a build of the pin should follow.
    """
    from garra.engine import given, store
    from garra.engine.build import plan_build

    if _have_pinned():
        return False
    wheel = given.prebuilt(f"{platform.system()}-{platform.machine()}")
    plan = plan_build()
    if prebuilt:
        if wheel is None:
            raise EngineMissing(f"there is no prebuilt engine for {platform.machine()}", fix="garra engine build")
        given.fetch(wheel, say)
        return not plan.missing
    offer = f"; at once, with a prebuilt one ({wheel.provenance}): garra up --prebuilt" if wheel is not None else ""
    if plan.missing:
        what, fix = plan.missing[0]
        if (there := store.find_current()) is not None:
            say(f"the pinned engine cannot be built ({what}: {fix}); {there.stamp} serves on")
            return False
        raise EngineMissing(f"cannot build the engine: {what}", fix=fix + offer)
    minutes = "half an hour on two cores, minutes on many" if plan.recipe.backend == "cuda" else "about 5 minutes"
    say(f"there is no engine of the pinned build yet: it is compiled now, once, in {minutes}{offer}")
    say(f"backend {plan.recipe.backend}: {plan.reason}")
    build_with_bar(plan)
    return False


def say(line: str) -> None:
    """One line for the person at the terminal."""
    print(line, file=sys.stderr, flush=True)


def _have_pinned() -> bool:
    from garra.engine import store
    from garra.engine.source import load_pin

    build = store.find_current()
    if build is None:
        return False
    pin = load_pin()
    fresh = (build.build_number, build.patches) == (pin.build, pin.names_of_patches)
    return fresh or store.chosen() or build.origin == "own sources"


def build_with_bar(plan: BuildPlan) -> None:
    """Compile, with a progress bar; at once where this engine exists."""
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
        "backend": plan.recipe.backend,
        "reason": plan.reason,
        "mode": plan.recipe.mode,
        "toolkit": plan.recipe.cuda.release if plan.recipe.cuda is not None else None,
        "fetch": list(plan.toolkit.requirements) if plan.toolkit is not None else [],
        "missing": [f"{what}: {fix}" for what, fix in plan.missing],
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
        if value:
            print(f"{key:<10} {' '.join(value) if isinstance(value, list) else value}")
