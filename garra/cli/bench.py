"""`garra bench`: measure a profile or any server, keep every raw value, compare, replay."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from garra.cli import completion, quality, replay
from garra.cli.status import JsonOption
from garra.errors import BadRequest

if TYPE_CHECKING:
    from garra.bench.session import Wish
    from garra.bench.target import Target
    from garra.bench.words import Cell, Run, Slo
    from garra.cli.bench_report import Bar
    from garra.cli.serving import Asked


class _RunByDefault(TyperGroup):
    """`garra bench demo` is `garra bench run demo`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["run", *args]
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ("--help", "-h"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    help="Measure speed and quality: garra bench PROFILE|URL.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

app.command()(quality.quality)
app.command()(replay.record)
app.command()(replay.replay)

TargetArgument = Annotated[
    str,
    completion.profile("A profile, or any OpenAI server.", "PROFILE|URL"),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="The model to ask for, where a URL serves several.")]
KeyOption = Annotated[
    str | None,
    typer.Option("--api-key", envvar="OPENAI_API_KEY", help="For servers that want one.", show_default=False),
]
OutOption = Annotated[Path | None, typer.Option("--output", "-o", help="Write the run, raw values included, as JSON.")]
PlotOption = Annotated[
    Path | None, typer.Option("--plot", help="Draw TTFT, ITL and throughput into this .png or .svg (needs matplotlib).")
]
LabelOption = Annotated[str, typer.Option("--label", help="A name to find the run by.")]


@app.command()
def run(
    target: TargetArgument,
    model: ModelOption = None,
    api_key: KeyOption = None,
    workload: Annotated[
        list[str] | None,
        typer.Option("--workload", "-w", help="chat, code_edit, long_context, shared_prefix, agent, json or a .jsonl."),
    ] = None,
    concurrency: Annotated[str, typer.Option("--concurrency", "-c", help="Clients at once, each in turn.")] = "1,4",
    rate: Annotated[str | None, typer.Option(help="Open loop instead: requests per second, such as 0.5,1,2.")] = None,
    pattern: Annotated[str, typer.Option(help="Of the open loop: poisson, constant or burst.")] = "poisson",
    requests: Annotated[int | None, typer.Option("--requests", "-n", min=1, help="Per round.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Rounds of each load, interleaved.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Requests per client before, not counted.")] = 1,
    seed: Annotated[int, typer.Option(help="Of prompts and arrivals.")] = 1,
    prompt_tokens: Annotated[int | None, typer.Option(min=1, help="Exact length of each prompt.")] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Length of each answer.")] = None,
    slo: Annotated[str | None, typer.Option(help="For goodput, in ms: ttft=500,tpot=50,e2el=5000.")] = None,
    cancel: Annotated[float, typer.Option(min=0, max=1, help="Part of the clients who leave after 8 tokens.")] = 0.0,
    cold: Annotated[int, typer.Option(min=0, help="Time so many cold loads first.")] = 0,
    swap: Annotated[str | None, typer.Option(help="Time swaps with this other profile.")] = None,
    pid: Annotated[
        list[int] | None, typer.Option("--pid", help="At a URL: the server's process, to watch its memory.")
    ] = None,
    label: LabelOption = "",
    output: OutOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure TTFT, ITL, TPOT and throughput as a client sees them."""
    from garra.bench.session import Wish
    from garra.cli import bench_report as report

    if pattern not in ("poisson", "constant", "burst"):
        raise BadRequest(f'there is no pattern "{pattern}"', fix="one of: poisson, constant, burst")
    wish = Wish(
        workloads=tuple(workload or ["chat"]),
        concurrency=tuple(int(n) for n in _numbers(concurrency, "--concurrency")),
        rates=_numbers(rate, "--rate") if rate else (),
        pattern=pattern,  # type: ignore[arg-type]
        requests=requests,
        repeats=repeats,
        warmup=warmup,
        seed=seed,
        n_prompt=prompt_tokens,
        n_output=output_tokens,
        cancel=cancel,
    )
    wanted = read_slo(slo)
    done = _measure(target, model, api_key, wish, label=label, cold=cold, swap=swap, pids=tuple(pid or ()))
    report.finish(done, wanted, output=output, plot=plot, as_json=as_json)


def _measure(
    target: str,
    model: str | None,
    key: str | None,
    wish: Wish,
    *,
    label: str,
    cold: int,
    swap: str | None,
    pids: tuple[int, ...],
) -> Run:
    from garra.cli.serving import asked

    with asked(target, model) as one:
        if (cold or swap) and one.control is None:
            raise BadRequest("only a garra on this machine can be told to load and unload", fix="garra bench PROFILE")
        one.watched = pids
        one.load()
        for _ in range(cold):
            one.unload()
            one.load()
        return asyncio.run(_session(one, key, wish, label, swap))


async def _session(one: Asked, key: str | None, wish: Wish, label: str, swap: str | None) -> Run:
    from dataclasses import asdict, replace

    from garra.bench.session import measure

    swaps: list[float] = []

    async def cells(target: Target, bar: Bar) -> tuple[Cell, ...]:
        made = await measure(target, wish, pids=one.pids, stage=bar.stage, told=bar.told)
        if swap:
            swaps.extend(await _swaps(one, target, wish, swap))
        return made

    asked_for = {key: value for key, value in asdict(wish).items() if value is not None}
    run = await keep_run(one, key, label, asked_for, cells)
    return replace(run, swap_ms=tuple(swaps))


async def keep_run(
    one: Asked,
    key: str | None,
    label: str,
    settings: Mapping[str, Any],
    measure: Callable[[Target, Bar], Awaitable[tuple[Cell, ...]]],
) -> Run:
    """What `measure` gives, with all that tells where and how it was measured."""
    from garra import hardware
    from garra.bench import machine
    from garra.bench.target import Target
    from garra.bench.words import Run
    from garra.cli.bench_report import Bar

    if one.control is not None:
        key = one.control.key()
    async with Target(one.url, one.model, key=key) as target:
        served = await target.served()
        with Bar() as bar:
            cells = await measure(target, bar)
        local = one.control is not None or "127.0.0.1" in one.url or "localhost" in one.url
        host = machine.identity(hardware.detect()) if local else {"address": one.url}
    now = datetime.datetime.now(datetime.UTC)
    return Run(
        id=now.strftime("%y%m%d-%H%M%S-") + f"{now.microsecond // 1000:03d}",
        at=now.isoformat(timespec="seconds"),
        label=label,
        host=host,
        engine=served.engine,
        model=served.model,
        settings={"context": served.context, "slots": served.slots} | one.settings | dict(settings),
        cells=cells,
        load_ms=tuple(one.load_ms),
    )


async def _swaps(one: Asked, target: Target, wish: Wish, other: str) -> list[float]:
    """First token of the model after another one took its place, less what a warm first token takes."""
    question = ({"role": "user", "content": "Say yes."},)
    taken = []
    assert one.control is not None
    assert one.model is not None
    for _ in range(wish.repeats):
        warm = await target.ask(question, 1, {})
        await asyncio.to_thread(one.control.load_and_wait, other, lambda _: None)
        if one.control.profile(one.model)["engine"]["phase"] != "cold":
            raise BadRequest(f"{one.model} and {other} fit side by side: nothing is swapped", fix="memory_budget_mib")
        cold = await target.ask(question, 1, {})
        if cold.tap.stamps_s and warm.tap.stamps_s:
            taken.append((cold.tap.stamps_s[0] - warm.tap.stamps_s[0]) * 1e3)
    return taken


@app.command()
def compare(
    a: Annotated[str, typer.Argument(help="A run: its id, its label, a JSON file, or last-1.")],
    b: Annotated[str, typer.Argument(help="Another one, such as last.")],
    across: Annotated[list[str] | None, typer.Option(help="What may differ all the same: host, engine, model.")] = None,
    seed: Annotated[int, typer.Option(help="Of the resampling.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Say whether two runs differ, and by how much: noise is called noise."""
    from garra.bench import compare as comparison
    from garra.bench import history
    from garra.bench.session import dice
    from garra.cli import bench_report as report

    one, other = history.find(a), history.find(b)
    differences = comparison.compare(one, other, dice(seed)("compare"), tuple(across or ()))
    report.show_comparison(one, other, differences, as_json=as_json)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the runs that were kept."""
    from garra.bench import history
    from garra.cli import bench_report as report

    with history.opened() as kept:
        report.show_list(kept.all(), as_json=as_json)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="A run: its id, its label, a JSON file, or last.")] = "last",
    slo: Annotated[str | None, typer.Option(help="For goodput, in ms: ttft=500,tpot=50,e2el=5000.")] = None,
    output: OutOption = None,
    plot: PlotOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run again, or write it to a file."""
    from garra.bench import history
    from garra.cli import bench_report as report

    report.tell(history.find(name), read_slo(slo), output=output, plot=plot, as_json=as_json)


def read_slo(text: str | None) -> Slo | None:
    """`ttft=500,tpot=50` as limits. Raises BadRequest."""
    from garra.bench.words import Slo

    if text is None:
        return None
    limits: dict[str, float] = {}
    for pair in text.split(","):
        key, _, value = pair.replace(":", "=").partition("=")
        try:
            limits[{"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}[key.strip()]] = float(value)
        except (KeyError, ValueError):
            raise BadRequest(f'cannot read "{pair}" as a limit', fix="--slo ttft=500,tpot=50,e2el=5000") from None
    return Slo(**limits)


def _numbers(text: str, option: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise BadRequest(f'cannot read {option} "{text}"', fix=f"{option} 1,4") from None
    if min(numbers) <= 0:
        raise BadRequest(f'{option} "{text}" holds something that is not above 0', fix=f"{option} 1,4")
    return numbers
