"""The `garra` command: what it is made of, and the one place that prints errors.

Nothing heavy is imported here: `garra --help` and shell completion answer at once.
"""

from __future__ import annotations

import signal
import sys
from typing import NoReturn

import typer

from garra import __version__
from garra.cli import (
    batch,
    bench,
    bundle,
    cache,
    chat,
    config,
    connect,
    doctor,
    engine,
    keys,
    manage,
    models,
    plan,
    serve,
    service,
    status,
    tune,
)
from garra.errors import GarraError

app = typer.Typer(
    name="garra",
    help="One workstation, one dependable OpenAI endpoint: a pinned llama.cpp, tuned per profile, supervised.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 done, 1 a bug, 2 usage, 3 configuration, 4 model, 5 engine build, 6 engine start, "
    "7 address or lock taken, 8 not running, 9 network, 130 interrupted.",
)
app.command()(serve.up)
app.command()(serve.down)
app.command()(serve.pull)
app.command()(plan.plan)
app.command()(doctor.doctor)
app.command()(tune.tune)
app.command()(batch.batch)
app.command()(connect.connect)
app.command()(manage.load)
app.command()(manage.unload)
app.command()(manage.pin)
app.command()(manage.reload)
app.command()(keys.alias)
app.command()(manage.events)
app.command()(status.status)
app.command()(status.ps)
app.command()(status.logs)
app.command()(chat.chat)
app.add_typer(config.app, name="config")
app.add_typer(engine.app, name="engine")
app.add_typer(models.app, name="models")
app.add_typer(bundle.app, name="bundle")
app.add_typer(cache.app, name="cache")
app.add_typer(bench.app, name="bench")
app.add_typer(keys.app, name="keys")
app.add_typer(service.app, name="service")


@app.command()
def version() -> None:
    """Print garra's version."""
    print(f"garra {__version__}")


def _terminate(signum: int, frame: object) -> NoReturn:
    """SIGTERM unwinds like an exception, so that whatever runs ends its children first."""
    sys.exit(128 + signum)


def run() -> NoReturn:
    """The entry point: a GarraError becomes two lines and its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        app()
    except GarraError as error:
        print(f"error: {error.what}", file=sys.stderr)
        if error.fix:
            print(f"  fix: {error.fix}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left, as `head` does
        sys.exit(141)
    sys.exit(0)
