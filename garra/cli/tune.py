"""`garra tune`: the settings of a profile that are fastest on this machine, found by measuring."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli import completion
from garra.cli.status import JsonOption
from garra.errors import BadRequest

if TYPE_CHECKING:
    from garra.spec import EngineBuild, Profile
    from garra.store import Store
    from garra.tuner.lab import Dose, Lab
    from garra.tuner.materials import Workbench
    from garra.tuner.search import Stage
    from garra.tuner.tune import Result

_OBJECTIVES = ("tps", "ttft", "throughput", "balanced")
TEXT = Path(__file__).parent.parent / "data" / "quality.txt"
_CONFIRM_PART = 0.2
"""Of the budget, kept for the comparison with llama-server's own defaults."""


def tune(
    profile: Annotated[str, completion.profile("The profile to tune.")],
    budget: Annotated[str, typer.Option(help="Time it may take: 20m, 90s, 1h.")] = "20m",
    objective: Annotated[str, typer.Option(help="tps, ttft, throughput or balanced.")] = "balanced",
    quality_floor: Annotated[float, typer.Option(min=0, help="Mean KLD a change may cost, nats per token.")] = 0.02,
    streams: Annotated[int, typer.Option(min=1, help="Clients at once, for throughput.")] = 4,
    workload: Annotated[str, typer.Option("--workload", "-w", help="What trials ask: chat, code_edit, ...")] = "chat",
    prompt_tokens: Annotated[int, typer.Option(min=16, help="Length of each prompt.")] = 200,
    output_tokens: Annotated[int, typer.Option(min=8, help="Length of each answer.")] = 48,
    only: Annotated[str | None, typer.Option(help="Only these knobs, such as speculation,slots.")] = None,
    weights: Annotated[str | None, typer.Option(help="Weight types to try, such as Q8_0,Q6_K; none for none.")] = None,
    text: Annotated[Path | None, typer.Option(help="A text of your own to judge quality on.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Write the winner into your profiles.toml.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say what would be tried, and what the last one found.")
    ] = False,
    pairs: Annotated[int, typer.Option(min=0, help="Comparisons with llama-server's defaults at the end.")] = 6,
    trial_limit: Annotated[str, typer.Option(help="A trial that takes longer hangs.")] = "90s",
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with one that was interrupted.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Find the fastest settings by measuring, within a quality floor. Interrupted, it goes on where it stood."""
    from garra import config as layers
    from garra import paths
    from garra.cli import tune_report as report
    from garra.cli.engine import build_if_missing
    from garra.cli.plan import planner
    from garra.cli.serve import bring, say
    from garra.engine import store as engines
    from garra.registry.catalog import Catalog
    from garra.store import Store
    from garra.tuner import journal, knobs
    from garra.tuner.lab import Dose
    from garra.tuner.materials import Workbench

    if objective not in _OBJECTIVES:
        raise BadRequest(f'there is no objective "{objective}"', fix=f"one of: {', '.join(_OBJECTIVES)}")
    config = layers.load()
    wished = config.profile(profile)
    named = tuple(only.split(",")) if only else ()
    if unknown := [name for name in named if name not in knobs.STAGES]:
        raise BadRequest(f"there is no knob {unknown[0]}", fix=f"one of: {', '.join(knobs.STAGES)}")
    build_if_missing(say)
    bring(wished)
    build = engines.current()
    store = Store(paths.state_db())
    try:
        with planner() as plans:
            bench = Workbench(wished, build, plans, Catalog(store), text or TEXT)
            kinds = None if weights is None else tuple(kind for kind in weights.split(",") if kind not in ("", "none"))
            facts = bench.facts(streams, bench.kinds(kinds), alone=objective in ("tps", "ttft"))
            stages = knobs.stages(wished, facts, named)
            if explain:
                report.explain(wished, stages, journal.last_result(store, wished.name), as_json=as_json)
                return
            wish = {"objective": objective, "floor": quality_floor, "streams": streams, "workload": workload,
                    "prompt": prompt_tokens, "output": output_tokens, "only": named, "kinds": kinds}  # fmt: skip
            dose = Dose(workload, prompt_tokens, output_tokens, streams, seconds(trial_limit))
            with exclusive(say):
                result = asyncio.run(
                    _tune(wished, build, stages, wish, dose, seconds(budget), bench, store, fresh, pairs)
                )
    finally:
        store.close()
    document = report.document(result, build)
    if apply:
        report.apply(result, build, config)
    report.show(result, document, as_json=as_json, applied=apply)


async def _tune(
    wished: Profile,
    build: EngineBuild,
    stages: list[Stage],
    wish: dict[str, Any],
    dose: Dose,
    budget_s: float,
    bench: Workbench,
    store: Store,
    fresh: bool,
    pairs: int,
) -> Result:
    from garra.cli.tune_report import Bar
    from garra.tuner import journal
    from garra.tuner.search import Rules
    from garra.tuner.tune import Tune

    written = journal.begin(store, wished.name, _key(wished, build, wish, stages), fresh=fresh)
    seed = int(hashlib.sha256(written.tune.encode()).hexdigest()[:8], 16)
    lab = laboratory(build, dose, seed)
    rules = Rules(floor=wish["floor"], budget_s=budget_s * (1 - _CONFIRM_PART))
    with Bar(budget_s, resumed=len(written.entries)) as bar:
        tune = Tune(
            wished, stages, rules, wish["objective"], wish["streams"], lab, bench, written, pairs, tell=bar.show
        )
        return await tune.run()


def laboratory(build: EngineBuild, dose: Dose, seed: int) -> Lab:
    """Where launches of this engine are measured."""
    from garra import paths, planning
    from garra.engine.argv import bare_argv, server_argv
    from garra.engine.client import HttpEngine
    from garra.supervisor.process import ProcessSpawner
    from garra.tuner.heat import hot
    from garra.tuner.lab import Lab

    folder = paths.runtime_dir() / "engines"
    program = build.tool("llama-server")

    def environment(plan: Any) -> dict[str, str]:
        return planning.environment(build, plan.gpu)

    ours = ProcessSpawner(folder, lambda plan, socket: server_argv(program, plan, socket), environment)
    bare = ProcessSpawner(folder, lambda plan, socket: bare_argv(program, plan.model_path, socket), environment)
    return Lab(ours, bare, HttpEngine(), dose, seed, hot=hot)


def _key(wished: Profile, build: EngineBuild, wish: dict[str, Any], stages: list[Stage]) -> str:
    """The same tune: of this profile, engine and machine, with these wishes."""
    from garra import hardware
    from garra.bench import machine

    told = (repr(wished.engine_part()), build.stamp, machine.identity(hardware.detect()), wish, repr(stages))
    return hashlib.sha256(json.dumps(told, default=str).encode()).hexdigest()[:32]


@contextlib.contextmanager
def exclusive(say: Any) -> Iterator[None]:
    """The machine for us alone: a garra that runs lets its engines go and keeps its clients waiting meanwhile."""
    from garra.cli.control import running

    there = running()
    if there is None:
        from garra import paths
        from garra.supervisor import runfile

        with runfile.runtime_lock(paths.runtime_dir()):  # a garra that starts now would take our engines for leftovers
            yield
        return
    with there.exclusive(lambda: say("garra lets its engines go; its clients wait until the tune is over")):
        yield


def seconds(text: str) -> float:
    """`20m`, `90s`, `1h30m` or plain seconds. Raises BadRequest."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text.strip())
    if not found or not any(found.groups()):
        raise BadRequest(f'cannot read "{text}" as a time', fix="write it like 20m, 90s or 1h30m")
    hours, minutes, rest = (int(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + rest
