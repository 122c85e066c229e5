"""`garra up`, `garra down`, `garra pull`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from garra import paths
from garra.cli import completion
from garra.errors import AlreadyRunning, ConfigError, DownloadFailed, GarraError, NotRunning, Taken
from garra.supervisor.tether import tether

if TYPE_CHECKING:
    from garra.cli.control import Control
    from garra.config import Config
    from garra.snapshot import EngineStatus
    from garra.spec import Profile

_LAST_WORDS_S = 5.0  # between a socket that is gone and the end of its process
ProfileArgument = Annotated[
    str | None,
    completion.profile("A profile; without one, the best this machine can run."),
]


def up(
    profile: ProfileArgument = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Serve in the background.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Start the profile as it asks even where memory is short for it.")
    ] = False,
    prebuilt: Annotated[
        bool,
        typer.Option("--prebuilt", help="Without an engine: serve with a prebuilt one while the real one is compiled."),
    ] = False,
    log_format: Annotated[
        str | None, typer.Option(help="console, or json: one object per line, and one line per request.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One profile value, for example slots=4.")
    ] = None,
) -> None:
    """Serve a profile: builds the engine and fetches the model if need be, then runs until Ctrl-C.

    If garra already runs, the profile is loaded there.
    """
    from garra import config as layers
    from garra.cli.control import running
    from garra.cli.engine import build_if_missing

    settings = [*(settings or []), *(["force=true"] * force)]
    flags = {
        key: value for key, value in (("host", host), ("port", port), ("log_format", log_format)) if value is not None
    }
    config = layers.load(flags)
    there = running()
    if there is not None and (flags or settings):
        raise Taken("garra already runs, with its own settings", fix="garra down, then this again")
    follow = build_if_missing(say, prebuilt=prebuilt)
    name = config.profile(profile).name if profile is not None else choose(config, say)
    if settings:
        config = layers.load({**flags, "profiles": {name: _assignments(settings)}})
    bring(config.profile(name))
    if there is not None:
        load_there(there, name)
    elif detach:
        _start_detached(name, flags, settings or [], prebuilt)
    else:
        overrides: dict[str, Any] = dict(flags)
        if settings:
            overrides["profiles"] = {name: _assignments(settings)}
        if follow:
            _build_behind()
        _run_foreground(config, name, lambda: layers.load(overrides))


def _build_behind() -> None:
    """Compile the pinned engine at low priority beside; it takes over when it has proved itself."""
    log = paths.state_dir() / "logs" / "engine-build-behind.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        subprocess.Popen(
            [*tether("TERM"), sys.executable, "-m", "garra", "engine", "build"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            preexec_fn=lambda: os.nice(19),  # noqa: PLW1509 - no thread runs yet
        )
    say(f"the real engine is compiled behind, and takes over when it is proved (log {log})")


def down() -> None:
    """Stop garra and its engines: running answers may end first (drain_s); a second time stops at once."""
    import time

    from garra.cli.control import Control, running

    control = Control()
    control.shut_down()
    while running() is not None:
        time.sleep(0.05)
    say("garra is down")


def pull(
    profile: Annotated[str, completion.profile("The profile whose model to download.")],
) -> None:
    """Download a profile's model; what was begun is resumed, and every byte is verified."""
    from garra import config as layers

    print(bring(layers.load().profile(profile)))


def bring(profile: Profile) -> Path:
    """The profile's model file, downloaded with a progress bar if need be; the model that drafts for it, too."""
    from dataclasses import replace

    from garra.cli.progress import DownloadBar
    from garra.registry import fetch, store

    if profile.speculation == "draft" and profile.draft_model is not None:
        bring(replace(profile, model=profile.draft_model, speculation="none", sha256=None, download_bytes=None))

    if store.locate(profile.model) is not None:
        return fetch.ensure(profile, say)
    with DownloadBar(profile.name, profile.download_bytes) as bar:
        return fetch.ensure(profile, say, bar.show)


def say(line: str) -> None:
    """One line for the person at the terminal."""
    print(line, file=sys.stderr, flush=True)


def choose(config: Config, tell: Any) -> str:
    """The best profile that fits this machine as it asks and whose model is here or can be fetched; tells why."""
    from garra.cli.plan import planner
    from garra.registry import fetch

    with planner() as made:
        for name, on_gpu in (("turbo_4b", True), ("cpu_fallback", False), ("demo", False)):
            if name not in config.profiles:
                continue
            profile = config.profiles[name]
            try:
                launch = made.plan(profile, present=False)
            except GarraError as error:
                tell(f"not {name}: {error.what}")
                continue
            if launch.rung or (on_gpu and launch.gpu is None):
                continue  # it would run, but not as it is meant to
            assert launch.bill is not None
            need = launch.bill.need
            reason = (
                f"{need.vram_mib} MiB of VRAM and " * bool(need.vram_mib) + f"{need.ram_mib} MiB of RAM, which are free"
            )
            obstacle = fetch.reachable(profile)
            if obstacle is None:
                tell(f"profile {name}: {reason}")
                return name
            tell(f"not {name}, though there is enough memory ({reason}): {obstacle}")
    raise DownloadFailed("no profile's model is here or can be fetched", fix="garra pull PROFILE, with a network")


def _assignments(pairs: list[str]) -> dict[str, Any]:
    """`--set` values, read as TOML where they are TOML, else as text."""
    import tomllib

    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise ConfigError(f'cannot use --set "{pair}"', fix="write --set KEY=VALUE")
        try:
            values[key.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            values[key.strip()] = text
    return values


class _Foreground:
    """The `Narrator` of a garra that keeps the terminal."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar = _LoadingBar(name)

    def loading(self, status: EngineStatus) -> None:
        self._bar.show(status.phase, status.load_fraction)

    def ready(self, url: str) -> None:
        self._bar.close()
        say(_greeting(url, self._name))

    def close(self) -> None:
        self._bar.close()


def _run_foreground(config: Config, name: str, read_config: Callable[[], Config]) -> None:
    from garra import app, logs
    from garra.cli.control import wait_for_start

    logs.begin(config.settings.log_format)
    narrator = _Foreground(name)
    try:
        app.serve(config, name, narrator, read_config)
    except AlreadyRunning:  # another one has just begun: it does not answer yet
        narrator.close()
        load_there(wait_for_start(lambda: True), name)
    finally:
        narrator.close()


def _start_detached(name: str, flags: dict[str, Any], settings: list[str], prebuilt: bool) -> None:
    from garra.cli.control import wait_for_start

    command = [sys.executable, "-m", "garra", "up", name]
    command += [word for key, value in flags.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    command += [word for pair in settings for word in ("--set", pair)]
    command += ["--prebuilt"] * prebuilt
    log = paths.server_log()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, cwd="/"
        )
    try:
        control = wait_for_start(lambda: child.poll() is None)
        _show_until_ready(control, name, control.wait_ready)
    except NotRunning:  # it gave up, before or after it answered: its own words say why
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_LAST_WORDS_S)
        with log.open("rb") as output:
            output.seek(start)
            sys.stderr.write(output.read().decode("utf-8", "replace"))
        if child.poll():
            raise typer.Exit(child.returncode) from None
        raise
    say(f"garra runs in the background (pid {child.pid}, log {log}); garra down stops it")


def load_there(control: Control, name: str) -> None:
    """Load a profile in a running garra, with a progress bar, and say how to reach it."""
    _show_until_ready(control, name, control.load_and_wait)


def _show_until_ready(
    control: Control, name: str, wait: Callable[[str, Callable[[dict[str, Any]], None]], dict[str, Any]]
) -> None:
    bar = _LoadingBar(name)
    try:
        report = wait(name, lambda engine: bar.show(engine["phase"], engine["load_fraction"]))
    finally:
        bar.close()
    for warning in report["engine"]["warnings"]:
        say(f"warning: {warning}")
    say(_greeting(control.status()["url"], report["engine"]["profile"]))


class _LoadingBar:
    """A bar that is there while an engine loads, on terminals only."""

    def __init__(self, name: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn(f"{name}: {{task.fields[phase]}}"), BarColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=1.0, phase="")
        self._progress.start()

    def show(self, phase: str, fraction: float | None) -> None:
        self._progress.update(self._task, completed=fraction or 0.0, phase=phase)

    def close(self) -> None:
        self._progress.stop()


def _greeting(url: str, name: str) -> str:
    own = str(Path(sys.executable).with_name("garra"))
    me = "garra" if shutil.which("garra") else min(own, os.path.relpath(own), key=len)  # `make up`
    return (
        f"\n  {name} is served at {url}/v1   (any OpenAI client; the API key can be anything)\n"
        f"  try it:  {me} chat {name}\n"
        f"  or:      curl {url}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f'             -d \'{{"model": "{name}", "stream": true, '
        '"messages": [{"role": "user", "content": "Hi!"}]}\'\n'
    )
