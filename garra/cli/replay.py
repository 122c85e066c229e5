"""`garra bench record` and `garra bench replay`: what clients really ask, asked again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra.cli.status import JsonOption
from garra.errors import BadRequest

if TYPE_CHECKING:
    from garra.bench.traffic import Recorded
    from garra.bench.words import Cell
    from garra.cli.serving import Asked


def record(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the recording goes.")],
    duration: Annotated[str | None, typer.Option("--for", help="How long: 10m; without it until Ctrl-C.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Record what is asked, not only its shape.")] = False,
) -> None:
    """Record the requests of a running garra: times, lengths and what shares a beginning; no text unless asked for."""
    from garra.bench.traffic import FORMAT
    from garra.cli.control import Control
    from garra.cli.serve import say
    from garra.cli.tune import seconds

    traffic = Control().traffic(text=text)
    count = 0
    try:
        handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # it may hold what people wrote
        file = os.fdopen(handle, "w", encoding="utf-8")
    except OSError as error:
        raise BadRequest(f"cannot write {output}: {error.strerror}", fix="choose another -o") from None
    with file:
        file.write(json.dumps({"garra_traffic": FORMAT, "text": text}) + "\n")
        file.flush()
        say("recording; Ctrl-C ends it")
        timer = threading.Timer(seconds(duration), _interrupt) if duration else None
        if timer is not None:
            timer.daemon = True
            timer.start()
        try:
            for one in traffic:
                file.write(json.dumps(one) + "\n")
                file.flush()
                count += 1
        except KeyboardInterrupt:
            pass
        finally:
            if timer is not None:
                timer.cancel()
    print(f"{count} requests in {output}", file=sys.stderr)


def _interrupt() -> None:
    """As Ctrl-C does it: the read that waits for the next request ends."""
    os.kill(os.getpid(), signal.SIGINT)


def replay(
    recording: Annotated[Path, typer.Argument(help="A file of garra bench record.")],
    target: Annotated[
        str | None, typer.Argument(metavar="PROFILE|URL", help="Default: the profile that was asked most.")
    ] = None,
    speed: Annotated[float, typer.Option(min=0.01, help="2: twice as fast as it was.")] = 1.0,
    model: Annotated[str | None, typer.Option("--model", help="The model to ask for, at a URL.")] = None,
    api_key: Annotated[str | None, typer.Option("--api-key", envvar="OPENAI_API_KEY", show_default=False)] = None,
    slo: Annotated[str | None, typer.Option(help="For goodput, in ms: ttft=500,tpot=50,e2el=5000.")] = None,
    label: Annotated[str, typer.Option("--label", help="A name to find the run by.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the run as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Ask recorded requests again, at their own times or faster, with made-up text of the same shape."""
    from garra.bench.traffic import profiles_of
    from garra.cli import bench_report as report
    from garra.cli.bench import keep_run, read_slo
    from garra.cli.serving import asked

    records = read(recording)
    wanted = read_slo(slo)
    with asked(target or profiles_of(records)[0], model) as one:
        one.load()

        async def measure(target_: Any, bar: Any) -> tuple[Cell, ...]:
            return (await _play(one, target_, records, speed, recording.stem, bar),)

        settings = {"recording": recording.name, "speed": speed}
        run = asyncio.run(keep_run(one, api_key, label, settings, measure))
    report.finish(run, wanted, output=output, plot=plot, as_json=as_json)


async def _play(one: Asked, target: Any, records: list[Recorded], speed: float, name: str, bar: Any) -> Cell:
    from garra.bench.arrivals import replayed
    from garra.bench.load import Label, open_loop
    from garra.bench.machine import Watch
    from garra.bench.session import dice
    from garra.bench.traffic import talk_of
    from garra.bench.words import Cell

    named = dice(1)
    talks = [talk_of(record, named) for record in records]
    load = f"replay x{speed:g}"
    bar.stage(f"{name} {load}", len(talks))
    with Watch(one.pids) as watch:
        moments = replayed([record.at_s for record in records], speed)
        samples, seconds = await open_loop(target, talks, moments, Label(name, load, 0), bar.told)
    span = moments[-1] or 1.0
    return Cell(name, load, None, len(records) / span, tuple(samples), (seconds,), watch.seen())


def read(path: Path) -> list[Recorded]:
    """The recording, in the order the requests came. Raises BadRequest."""
    import msgspec

    from garra.bench.traffic import FORMAT, Recorded

    try:
        first, *rest = path.read_bytes().splitlines()
        if json.loads(first).get("garra_traffic") != FORMAT:
            raise ValueError("another format")
        records = [msgspec.json.decode(line, type=Recorded) for line in rest]
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}", fix="garra bench record -o FILE") from None
    except (ValueError, AttributeError, msgspec.DecodeError) as error:
        raise BadRequest(f"{path} is no recording: {error}", fix="garra bench record -o FILE") from None
    chats = [one for one in records if one.messages]
    if not chats:
        raise BadRequest(f"{path} holds no request", fix="record while somebody asks: garra bench record -o FILE")
    return sorted(chats, key=lambda one: one.at_s)
