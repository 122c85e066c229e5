"""`garra service`: started at boot or login, watched, and stopped without cutting an answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from garra.cli import completion
from garra.cli.serve import say
from garra.cli.status import JsonOption, print_json
from garra.errors import ConfigError

if TYPE_CHECKING:
    from garra.service.unit import Scope, Wish

app = typer.Typer(help="Run garra as a service of systemd.", no_args_is_help=True)

_PASSED_ON = "XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME HF_HOME HF_HUB_CACHE HF_ENDPOINT".split()
"""Nothing secret: units can be read by everybody."""

SystemOption = Annotated[
    bool | None, typer.Option("--system/--user", help="Of the machine, or of you. [default: system for root]")
]


@app.command()
def install(
    profile: Annotated[
        str | None,
        completion.profile("The profile to serve; else the best this machine runs."),
    ] = None,
    system: SystemOption = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.")] = None,
    run_as: Annotated[
        str | None, typer.Option(help="With --system: whose service it is. [default: who called sudo]")
    ] = None,
    memory_high: Annotated[str, typer.Option(help="Reclaim memory beyond this, such as 24G.", show_default=False)] = "",
    start: Annotated[bool, typer.Option("--start/--no-start", help="Enable and start it, too.")] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the unit and change nothing.")] = False,
) -> None:
    """Write a hardened unit, enable and start it: ready once a model serves."""
    from garra.service import manager, unit

    scope = _scope(system)
    wish = _wish(scope, profile, port, run_as, memory_high)
    text = unit.text(wish)
    if dry_run:
        print(text, end="")
        return
    manager.require(scope)
    for folder in wish.writable:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
    file = manager.unit_file(scope)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except PermissionError:
        raise ConfigError(f"cannot write {file}", fix="sudo garra service install --system, or --user") from None
    say(f"wrote {file}")
    manager.systemctl(scope, "daemon-reload")
    if not start:
        say(f"start it:  systemctl {'--user ' * (scope == 'user')}enable --now {unit.NAME}")
        return
    say("starting: ready once the model serves (garra service logs -f tells how it goes)")
    manager.systemctl(scope, "enable", unit.NAME)
    manager.systemctl(scope, "restart", unit.NAME)
    say(f"{unit.NAME} runs: {manager.state(scope)['status']}")
    if scope == "user":
        say("it ends when you log out, unless:  loginctl enable-linger")


@app.command()
def status(system: SystemOption = None, as_json: JsonOption = False) -> None:
    """What systemd says of it; garra status tells the rest (exit code 8: it does not run)."""
    from garra.service import manager

    scope = _installed(system)
    seen = manager.state(scope)
    if as_json:
        print_json(seen)
    else:
        print(
            f"garra.service ({scope}): {seen['active']} ({seen['sub']}), {seen['enabled']}, {seen['restarts']} restarts"
        )
        print(f"unit    {seen['unit']}")
        print(f"status  {seen['status'] or seen['result']}" + (f", pid {seen['pid']}" if seen["pid"] else ""))
    if seen["active"] != "active":
        raise typer.Exit(8)


@app.command()
def logs(
    system: SystemOption = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many of the last lines.")] = 50,
) -> None:
    """Show what garra says, from the journal; garra logs PROFILE shows an engine's."""
    from garra.service import manager

    command = manager.journal(_installed(system), lines, follow=follow)
    os.execvp(command[0], command)


@app.command()
def uninstall(system: SystemOption = None) -> None:
    """Stop it, once its answers have ended, and remove the unit; models and settings stay."""
    from garra.service import manager, unit

    scope = _installed(system)
    manager.systemctl(scope, "disable", "--now", unit.NAME)
    manager.unit_file(scope).unlink()
    manager.systemctl(scope, "daemon-reload")
    say(f"{unit.NAME} is gone")


def _scope(system: bool | None) -> Scope:
    return "system" if (os.geteuid() == 0 if system is None else system) else "user"


def _installed(system: bool | None) -> Scope:
    """The scope with a unit: the one asked for, else the likelier one. Raises ConfigError."""
    from garra.service import manager

    first = _scope(system)
    second: Scope = "user" if first == "system" else "system"
    for scope in (first,) if system is not None else (first, second):
        if manager.unit_file(scope).exists():
            manager.require(scope)
            return scope
    raise ConfigError("garra is no service here", fix="garra service install")


def _wish(scope: Scope, profile: str | None, port: int | None, run_as: str | None, memory_high: str) -> Wish:
    import garra
    from garra import config as layers
    from garra import gpus
    from garra.cli.serve import choose
    from garra.registry import store as models
    from garra.service import manager
    from garra.service.unit import Wish

    config = layers.load()
    name = config.profile(profile).name if profile is not None else choose(config, say)
    own = Path(sys.executable).with_name("garra")
    command = [str(own)] if own.exists() else [sys.executable, "-m", "garra"]
    command += ["up", name, *(["--port", str(port)] if port is not None else [])]
    user = _user(run_as) if scope == "system" else ""
    environment = {key: os.environ[key] for key in _PASSED_ON if os.environ.get(key)} if not user else {}
    return Wish(
        scope=scope,
        command=command,
        drain_s=config.settings.drain_s,
        writable=[*_writable(user), *([str(kept)] if (kept := config.settings.prompt_dir) is not None else [])],
        read=[command[0], sys.prefix, garra.__file__, str(models.locate(config.profiles[name].model) or "")],
        user=user,
        gpus=sorted({gpu.vendor for gpu in gpus.visible()}),
        namespaces=scope == "system" or manager.users_have_namespaces(),
        environment=environment,
        memory_high=memory_high,
    )


def _user(run_as: str | None) -> str:
    """Raises ConfigError where only root could be meant."""
    user = run_as or os.environ.get("SUDO_USER") or ""
    if not user:
        raise ConfigError(
            "whose service is it to be? root's would be a risk", fix="garra service install --run-as USER"
        )
    return user


def _writable(user: str) -> list[str]:
    """garra's own folders, and the cache of models it shares with other programs."""
    from garra import paths
    from garra.registry import hubcache
    from garra.service import manager

    if user:
        home = manager.home_of(user)
        below = (".config/garra", ".local/share/garra", ".local/state/garra", ".cache/garra", ".cache/huggingface")
        return [str(home / folder) for folder in below]
    folders = [paths.config_dir(), paths.data_dir(), paths.state_dir(), paths.cache_dir(), hubcache.cache_dir()]
    return [str(folder) for folder in (*folders, paths.runtime_dir())]
