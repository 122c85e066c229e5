"""`garra batch`: a file of requests through one or several servers, each answered exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli.status import JsonOption, print_json
from garra.errors import EngineDown

if TYPE_CHECKING:
    from garra.batch.run import Progress

_LINE_EVERY_S = 10.0


def batch(
    requests: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests, as OpenAI's batch API takes them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Where answers go; a run that ended early goes on.")],
    url: Annotated[
        list[str] | None, typer.Option("--url", help="A server; several share the work. Default: garra here.")
    ] = None,
    errors: Annotated[Path | None, typer.Option(help="Where failures go; default: beside the output.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Ask for this model, whatever the lines say.")] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, help="In flight per server; default: its slots."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", envvar="OPENAI_API_KEY", show_default=False, help="Where one is wanted."),
    ] = None,
    patience: Annotated[str, typer.Option(help="How long all servers may be gone.")] = "10m",
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Ask again what failed before.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer every request of a file exactly once, however often this is interrupted and begun again."""
    from garra.batch import files
    from garra.batch.run import Batch, Progress
    from garra.cli.tune import seconds

    wanted = files.look_through(requests)
    failures = errors or output.with_name(f"{output.stem}.errors.jsonl")
    with files.Output(output) as answers, files.Output(failures) as broken:
        done, failed = answers.done(), broken.done()
        if retry_errors:
            broken.empty()
            failed = set()
        before = done | failed
        progress = Progress(wanted.n, len(before))
        urls = url
        if not urls:
            there, api_key = _here()
            urls = [there]

        async def work(bar: _Bar) -> Progress:
            made = Batch(
                wanted.requests(before), progress, answers, broken, model=model, key=api_key,
                patience_s=seconds(patience), concurrency=concurrency, told=bar.show,
            )  # fmt: skip
            return await made.run(urls)

        with _Bar(progress) as bar:
            asyncio.run(work(bar))
    _tell(progress, len(failed), bar.seconds, output, failures, as_json=as_json)
    if progress.n_failed or failed:
        raise EngineDown(
            f"{progress.n_failed + len(failed)} of {progress.n_total} requests failed: {failures} says why",
            fix=f"garra batch {requests} -o {output} --retry-errors",
        )


def _here() -> tuple[str, str]:
    """The garra on this machine, and a key for it."""
    from garra.cli.control import Control

    there = Control()
    return str(there.status()["url"]), there.key()


class _Bar:
    """Done, rate, time left, errors, and what each server holds; elsewhere than on terminals a line now and then."""

    def __init__(self, progress: Progress) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Rich

        console = Console(stderr=True)
        self._terminal = console.is_terminal
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        self._rich = Rich(*columns, console=console, disable=not self._terminal)
        self._task = self._rich.add_task("", total=progress.n_total, completed=progress.n_before)
        self._began = self._said = time.monotonic()
        self.seconds = 0.0

    def __enter__(self) -> _Bar:
        self._rich.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.seconds = time.monotonic() - self._began
        self._rich.stop()

    def show(self, progress: Progress) -> None:
        now = time.monotonic()
        spent_s = now - self._began
        rate = (progress.n_ok + progress.n_failed) / spent_s if spent_s else 0.0
        servers = ", ".join(f"{server.url} {server.in_flight}" for server in progress.servers)
        told = f"{rate:.1f}/s, {progress.n_tokens / spent_s:.0f} tok/s, {progress.n_failed} failed; {servers}"
        self._rich.update(self._task, completed=progress.n_done, description=told)
        if not self._terminal and now - self._said >= _LINE_EVERY_S:
            self._said = now
            left = (progress.n_total - progress.n_done) / rate if rate else 0.0
            print(f"{progress.n_done} of {progress.n_total}, {told}; {left:.0f} s left", file=sys.stderr, flush=True)


def _tell(progress: Progress, n_old: int, spent_s: float, output: Path, failures: Path, *, as_json: bool) -> None:
    told: dict[str, Any] = {
        "requests": progress.n_total,
        "answered_before": progress.n_before - n_old,
        "answered": progress.n_ok,
        "failed": progress.n_failed + n_old,
        "retries": progress.n_retries,
        "output_tokens": progress.n_tokens,
        "seconds": round(spent_s, 1),
        "servers": {server.url: server.n_answered for server in progress.servers},
        "output": str(output),
        "errors": str(failures),
    }
    if as_json:
        print_json(told)
        return
    rate = f"{progress.n_ok / spent_s:.1f} per second, {progress.n_tokens / spent_s:.0f} tok/s" if spent_s else ""
    print(f"{progress.n_ok} answered now, {told['answered_before']} before, {told['failed']} failed; {rate}")
    for server, n in told["servers"].items():
        print(f"  {server}: {n}")
    with contextlib.suppress(OSError):
        if failures.stat().st_size == 0:
            failures.unlink()
