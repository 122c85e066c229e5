"""What `garra tune` shows: how far it is, every trial with its end, the winner as a change of the profile."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from garra.cli.bench_report import number, plain_table
from garra.cli.status import print_json, print_wide

if TYPE_CHECKING:
    from garra.config import Config
    from garra.spec import EngineBuild, Profile
    from garra.tuner.search import Stage
    from garra.tuner.tune import Progress, Result


class Bar:
    """The budget as a bar, with what is measured; elsewhere than on terminals a line per trial."""

    def __init__(self, budget_s: float, *, resumed: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        self._terminal = console.is_terminal
        self._seen = 0
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not self._terminal)
        self._task = self._progress.add_task("starting", total=budget_s)
        if resumed:
            print(f"going on with a tune that was interrupted: {resumed} trials are known", file=sys.stderr, flush=True)

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, told: Progress) -> None:
        what = f"{told.stage}: {told.doing}" if told.stage else "starting"
        self._progress.update(self._task, description=what, completed=told.elapsed_s)
        if told.n_trials > self._seen:
            self._seen = told.n_trials
            print(f"{told.elapsed_s:5.0f} s  {told.stage:<15} {told.last}", file=sys.stderr, flush=True)


def document(result: Result, build: EngineBuild) -> dict[str, Any]:
    """Everything, with ratio, ratio_low, kld, rejected and winner at its end."""
    from garra import hardware
    from garra.bench import machine
    from garra.tuner.tune import as_json

    return {"engine": build.stamp, "host": machine.identity(hardware.detect()), **as_json(result)}


def show(result: Result, told: dict[str, Any], *, as_json: bool, applied: bool) -> None:
    """The table of all trials, then the winner."""
    if as_json:
        print_json(told)
        return
    table = plain_table()
    for heading in ("KNOB", "SETTING", "TOK/S", "TTFT MS", "TOGETHER", "RAM MIB", "VRAM", "KLD", "RATIO", "N", "END"):
        table.add_column(heading, justify="left" if heading in ("KNOB", "SETTING", "END") else "right", overflow="fold")
    from garra.tuner.search import ORIGINAL
    from garra.tuner.tune import name_of

    _row(table, "", name_of(ORIGINAL), result, None, "the profile as it was")
    for one in result.decisions:
        end = one.verdict + (f": {one.detail}" if one.detail else "")
        _row(table, one.stage, name_of(one.setting), result, one, end)
    print_wide(table)
    for note in result.notes:
        print(f"  {note}")
    print(f"{result.n_trials} trials in {result.elapsed_s:.0f} s ({result.resumed} from before)")
    _show_winner(result, applied=applied)


def _row(table: Any, stage: str, name: str, result: Result, one: Any, end: str) -> None:
    figures = result.figures.get(name)
    speeds = ["-"] * 5
    if figures is not None:
        speeds = [
            number(figures.decode_tok_s, 1), number(figures.ttft_ms, 0), number(figures.output_tok_s, 1),
            str(int(figures.ram_mib)), str(int(figures.vram_mib)) if figures.vram_mib else "",
        ]  # fmt: skip
    ratio = f"{one.ratio:.3f}" if one is not None and one.ratio is not None else ""
    kld = f"{one.kld:.4f}" if one is not None and one.kld is not None else ""
    table.add_row(stage, name, *speeds, kld, ratio, str(one.n) if one is not None else "", end)


def _show_winner(result: Result, *, applied: bool) -> None:
    for what, ratio in (
        (f"output tok/s of {result.streams} streams", result.ratio),
        ("decode tok/s of one", result.ratio_alone),
    ):
        if ratio is not None:
            print(
                f"against llama-server's own defaults, fresh prompts: {what} {ratio.value:.2f}x "
                f"(95 %: {ratio.low:.2f} to {ratio.high:.2f})"
            )
    if result.kld is not None:
        print(f"mean KLD of its answers: {result.kld:.4f} nats per token")
    if not result.changes:
        print(f"{result.profile} is as fast as anything that was tried: nothing to change")
        return
    print(f"\n[profiles.{result.profile}]")
    for key, (before, after) in result.changes.items():
        print(f"-{key} = {_toml(before)}\n+{key} = {_toml(after)}")
    if not applied:
        print(f"\nwrite it into your profiles.toml: garra tune {result.profile} --apply")


def apply(result: Result, build: EngineBuild, config: Config) -> None:
    """Write the winner, with where it is from; a garra that runs reads it at once."""
    from garra import hardware, paths
    from garra.cli.control import running
    from garra.cli.serve import say
    from garra.tuner import apply as writing

    changes = {key: after for key, (_, after) in result.changes.items()}
    if not changes:
        say("nothing to write: the profile is as fast as anything that was tried")
        return
    host = hardware.detect()
    now = datetime.datetime.now(datetime.UTC)
    where = ", ".join([host.cpu, *(gpu.name for gpu in host.gpus)])
    lines = [f"{now:%Y-%m-%d}, {result.objective}, on {where} ({host.cores} cores), engine {build.stamp}"]
    if result.ratio is not None:
        lines.append(f"{result.ratio.value:.2f}x of llama-server's defaults with {result.streams} streams "
                     f"(95 %: {result.ratio.low:.2f} to {result.ratio.high:.2f})")  # fmt: skip
    if result.kld is not None:
        lines.append(f"mean KLD {result.kld:.4f}")
    lines.append(f"before: {', '.join(f'{key} = {_toml(before)}' for key, (before, _) in result.changes.items())}")
    writing.apply(paths.user_profiles(), result.profile, changes, lines)
    say(f"written into {paths.user_profiles()}")
    there = running()
    if there is not None:
        there.reload()


def explain(wished: Profile, stages: Sequence[Stage], last: Mapping[str, Any] | None, *, as_json: bool) -> None:
    """What would be tried, and what the last tune decided and why."""
    from garra.tuner.tune import name_of

    if as_json:
        tried = [
            {"knob": stage.knob, "options": [dict(one) for one in stage.options], "why": stage.why} for stage in stages
        ]
        print_json({"profile": wished.name, "stages": tried, "last": last})
        return
    print(f"{wished.name}: each knob is turned on top of the best so far, in this order")
    for stage in stages:
        options = ", ".join(name_of(tuple(one.items())) for one in stage.options) or f"nothing: {stage.why}"
        kind = " (must keep the quality floor)" * (stage.changes_answers and bool(stage.options))
        kind += " (measured and told, not taken)" * (stage.advice and bool(stage.options))
        print(f"  {stage.knob:<16} {options}{kind}")
    if last is None:
        print("no tune of it has come to its end yet")
        return
    print(f"\nthe last one, {last['n_trials']} trials in {last['elapsed_s']:.0f} s, objective {last['objective']}:")
    for one in last["decisions"]:
        setting = name_of(tuple((str(key), value) for key, value in one["setting"]))
        ratio = f"{one['ratio']:.3f}x after {one['n']} rounds, at least {one['ratio_low']:.3f}x" if one["ratio"] else ""
        kld = f"mean KLD {one['kld']:.4f}" if one["kld"] is not None else ""
        reasons = "; ".join(part for part in (ratio, kld, one["detail"]) if part)
        print(f"  {one['stage']:<16} {setting}: {one['verdict']}" + (f" ({reasons})" if reasons else ""))
    for note in last["notes"]:
        print(f"  {note}")


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
