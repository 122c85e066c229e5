"""The composition root: picks the real ports and runs one garra from lock to last engine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

import uvloop
from aiohttp import web

from garra import hardware, paths
from garra.config import Config
from garra.engine.client import HttpEngine
from garra.errors import ConfigError, Taken
from garra.events import Fact
from garra.feed import Feed
from garra.overview import Overview
from garra.prompts.keeper import Keeper
from garra.prompts.warm import Warmer
from garra.proxy.control import ControlServer
from garra.proxy.guard import is_loopback
from garra.proxy.server import ProxyServer
from garra.proxy.upstream import UpstreamPool
from garra.registry import store as models
from garra.registry.cards import Cards
from garra.registry.jobs import Jobs
from garra.reload import Reloader
from garra.service.herald import Herald
from garra.service.notify import Notifier
from garra.snapshot import EngineStatus
from garra.spec import Phase
from garra.supervisor import runfile
from garra.supervisor.bridge import AnySpawner
from garra.supervisor.fleet import EngineFleet
from garra.supervisor.memory import HostMemory
from garra.supervisor.process import ProcessSpawner
from garra.workshop import Workshop

log = logging.getLogger(__name__)

_NARRATE_EVERY_S = 0.2
_SHUTDOWN_S = 1.0  # for handlers that are still writing; aiohttp waits up to twice this
_VANISHED_CLIENT_MS = 60_000  # unacknowledged bytes for this long: the client's machine is gone


class Narrator(Protocol):
    """Tells the person in front of the terminal how the start goes."""

    def loading(self, status: EngineStatus) -> None:
        """Called a few times a second until the engine is READY or will not be."""
        ...

    def ready(self, url: str) -> None: ...


class LoopClock:
    """The running loop's time."""

    now = staticmethod(time.monotonic)

    def call_later(self, delay_s: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(delay_s, call)


def serve(config: Config, profile: str, narrator: Narrator, read_config: Callable[[], Config]) -> None:
    """Load `profile` and serve in the foreground until a signal or `garra down`; a reload calls `read_config`.

    Raises AlreadyRunning, Taken, ConfigError, EngineMissing, ModelNotPresent; EngineDown when it does not start.
    """
    settings = config.settings
    if not is_loopback(settings.host) and not config.keys:
        raise ConfigError(
            f"cannot listen on {settings.host}: whoever reaches it could use everything, for there is no key",
            fix="garra keys create NAME, and then the same again; or leave host = 127.0.0.1",
        )
    os.umask(0o077)  # sockets, run files and logs are this user's alone
    runtime = paths.runtime_dir()
    with runfile.runtime_lock(runtime):
        runfile.sweep(runtime / "engines")
        listener = _listen(config.settings.host, config.settings.port)
        with listener:
            uvloop.run(_serve(config, profile, runtime, listener, narrator, read_config))


async def _serve(
    config: Config,
    profile: str,
    runtime: Path,
    listener: socket.socket,
    narrator: Narrator,
    read_config: Callable[[], Config],
) -> None:
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signum, on_signal)

    shop = Workshop(config)
    pool = UpstreamPool()
    clock, feed, http = LoopClock(), Feed(), HttpEngine()
    settings = config.settings
    keeper = Keeper(
        shop.prompts,
        http=http,
        clock=clock,
        identity=shop.identity,
        tell=lambda profile, news: feed.tell(Fact("prompts", profile, news)),
        budget_mib=settings.prompt_store_mib,
        save_budget_ms=settings.save_budget_ms,
    )
    keeper.wipe(config.profiles)
    fleet = EngineFleet(
        config.profiles,
        shop.policy(),
        plans=shop.plans(lambda: fleet.pids()),  # noqa: PLW0108 - there is no fleet yet
        locate=models.locate,
        spawner=AnySpawner(ProcessSpawner(runtime / "engines", shop.argv, shop.environment), runtime / "engines"),
        http=http,
        connections=pool,
        memory=HostMemory(),
        prompts=keeper,
        clock=clock,
        tell=feed.tell,
    )
    url = _url(listener)
    jobs = Jobs(shop.catalog, clock, room=shop.room, in_use=lambda: _models_in_use(fleet))
    overview = Overview(
        fleet, url=url, engine=lambda: shop.build.stamp, clock=clock, http=http, downloads=jobs.downloads
    )
    proxy = ProxyServer(
        config,
        fleet,
        pool,
        jobs,
        Cards(models.locate),
        lambda: reloader.reload(),  # noqa: PLW0108 - there is none yet
        overview,
        feed.follow,
    )

    def apply(after: Config) -> None:
        shop.configure(after)
        keeper.configure(after.settings.prompt_store_mib, after.settings.save_budget_ms)
        fleet.configure(after.profiles, shop.policy(fleet.pids()))
        proxy.configure(after)
        controller.configure(after)
        if shop.renew():
            fleet.renew()
            feed.tell(Fact("engine", "", shop.build.stamp))

    reloader = Reloader(config, read_config, apply, feed.tell)
    controller = ControlServer(
        config,
        fleet,
        overview=overview,
        warmer=Warmer(fleet, keeper, http),
        key=proxy.own_key,
        models=proxy.registry,
        follow=feed.follow,
        record=lambda text: proxy.recorder.follow(text=text),
        reload=reloader.reload,
        shut_down=on_signal,
    )
    terminal = os.isatty(sys.stderr.fileno())

    def on_hangup() -> None:
        """A reload; but the terminal garra was started in may be gone, and then nobody wants it to go on."""
        (on_signal if terminal and not os.isatty(sys.stderr.fileno()) else reloader.reload_or_log)()

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    public = web.ServerRunner(proxy.web_server(), shutdown_timeout=_SHUTDOWN_S)
    control = web.AppRunner(
        controller.application(), access_log=None, shutdown_timeout=_SHUTDOWN_S, handler_cancellation=True
    )
    async with (
        fleet,
        _site(public, lambda: web.SockSite(public, listener)),
        _site(control, lambda: web.UnixSite(control, str(_fresh(paths.control_socket(runtime))))),
        Herald(Notifier(), fleet, url) as herald,
        _watching(config, reloader),
    ):
        paths.control_socket(runtime).chmod(0o600)
        log.info("listening on %s (engine %s)", url, shop.build.stamp)
        try:
            await _first_of(_start(fleet, profile, url, narrator), stop.wait())
            herald.ready()
            await stop.wait()
        finally:
            herald.stopping()
            log.info("shutting down; Ctrl-C stops at once")
            keeper.closing = True
            await _first_of(fleet.close(), hurry.wait())
            pool.close_all()
            await jobs.close()
            await keeper.close()
            keeper.wipe({profile.name: profile for profile in fleet.profiles()})
            shop.close()
    paths.control_socket(runtime).unlink(missing_ok=True)


def _models_in_use(fleet: EngineFleet) -> list[str]:
    """Paths of the models whose engines are up or on their way."""
    up = [one for one in fleet.profiles() if fleet.status(one.name).phase not in (Phase.COLD, Phase.FAILED)]
    return [str(path) for path in (models.locate(one.model) for one in up) if path is not None]


async def _start(fleet: EngineFleet, profile: str, url: str, narrator: Narrator) -> None:
    """Load the first engine and narrate. Raises what keeps it from becoming READY."""
    loaded = fleet.load(profile)
    while not loaded.done():
        narrator.loading(fleet.status(profile))
        await asyncio.wait((loaded,), timeout=_NARRATE_EVERY_S)
    loaded.result()
    narrator.ready(url)


async def _first_of(*work: Coroutine[Any, Any, object]) -> None:
    """Run all, cancel the rest once one is done; raises what that one raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in work]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


@contextlib.asynccontextmanager
async def _site(runner: web.BaseRunner, make: Callable[[], web.BaseSite]) -> AsyncIterator[None]:
    await runner.setup()
    try:
        await make().start()
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def _watching(config: Config, reloader: Reloader) -> AsyncIterator[None]:
    """Reload when the user's file changes, if that is wanted."""
    task = asyncio.ensure_future(_watch_file(reloader)) if config.settings.watch else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def _watch_file(reloader: Reloader) -> None:
    import watchfiles

    file = paths.user_profiles()
    file.parent.mkdir(parents=True, exist_ok=True)
    async for changes in watchfiles.awatch(file.parent, recursive=False, step=50):
        if any(Path(name).name == file.name for _, name in changes):
            reloader.reload_or_log()


def _fresh(address: Path) -> Path:
    address.unlink(missing_ok=True)  # we hold the lock: whoever made it is gone
    return address


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises Taken, naming who holds the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _VANISHED_CLIENT_MS)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise Taken(
            f"cannot listen on {host}:{port}: {hardware.port_holder(port) or error.strerror}",
            fix=f"garra up --port {port + 1}   (or GARRA_PORT, or port in profiles.toml)",
        ) from None
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{host}:{port}"
