"""The loop of the terminal view: a snapshot a second, and at once when something happens; keys; nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from garra import paths
from garra.errors import GarraError, NotRunning
from garra.snapshot import Snapshot
from garra.spec import Phase
from garra.tui.pace import Pace
from garra.tui.remote import Remote
from garra.tui.terminal import Terminal
from garra.tui.view import Screen
from garra.tui.words import Page, Told, Watched

_EVERY_S = 1.0
_AT_MOST_EVERY_S = 0.1
"""However much happens."""
_NOTICE_S = 4.0
_EVENTS = 200
_LOG_BYTES = 64 * 1024


async def watch() -> None:
    """Until somebody quits. Raises NotRunning when garra does not run to begin with; later it is waited for."""
    async with Remote(paths.control_socket(paths.runtime_dir())) as remote:
        await Live(remote, await remote.snapshot()).run()


class Live:
    """What is seen and chosen; one writer, this loop."""

    def __init__(self, remote: Remote, first: Snapshot) -> None:
        self._remote = remote
        self._snapshot = first
        up = (n for n, one in enumerate(first.profiles) if one.engine.phase is not Phase.COLD)
        self._watched = Watched(chosen=next(up, 0))
        self._events: deque[Told] = deque(maxlen=_EVENTS)
        self._pace = Pace()
        self._answered = time.monotonic()
        self._noticed = 0.0
        self._changed = asyncio.Event()
        self._over = asyncio.Event()
        self._orders: set[asyncio.Task[None]] = set()
        self._terminal = Terminal()

    async def run(self) -> None:
        with self._terminal.taken(self._on_key, self._draw):
            followers = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._refresh())]
            try:
                await self._over.wait()
            finally:
                for task in (*followers, *self._orders):
                    task.cancel()
                await asyncio.gather(*followers, *self._orders, return_exceptions=True)

    async def _refresh(self) -> None:
        while True:
            self._changed.clear()
            now = time.monotonic()
            try:
                self._snapshot = await self._remote.snapshot()
            except NotRunning:
                self._watched = replace(self._watched, silent_s=now - self._answered)
            else:
                self._answered = now
                pace = self._pace.note(self._snapshot, now)
                chosen = min(self._watched.chosen, max(0, len(self._snapshot.profiles) - 1))
                self._watched = replace(self._watched, pace=pace, silent_s=None, chosen=chosen)
            self._draw()
            await asyncio.sleep(_AT_MOST_EVERY_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S - _AT_MOST_EVERY_S):
                    await self._changed.wait()

    async def _follow(self) -> None:
        """Facts as they come; after a garra that ended, those of the next."""
        while True:
            self._events.clear()  # each feed begins with what it remembers
            async for fact in self._remote.events():
                self._events.append(fact)
                self._changed.set()
            await asyncio.sleep(_EVERY_S)

    def _draw(self) -> None:
        now = time.monotonic()
        watched = replace(
            self._watched,
            clock=f"{datetime.datetime.now():%H:%M:%S}",
            events=tuple(self._events),
            notice=self._watched.notice if now - self._noticed < _NOTICE_S else "",
        )
        if watched.page is Page.LOG:
            watched = replace(watched, log=_tail(paths.engine_log(self._name)))
        self._terminal.show(Screen(self._snapshot, watched))

    @property
    def _name(self) -> str:
        rows = self._snapshot.profiles
        return rows[self._watched.chosen].engine.profile if rows else ""

    # -- keys

    def _on_key(self, key: str) -> None:
        match key:
            case "q":
                self._over.set()
                return
            case "up" | "k":
                self._choose(-1)
            case "down" | "j":
                self._choose(1)
            case "?" | "h":
                self._watched = replace(self._watched, page=Page.HELP)
            case "g":
                self._watched = replace(self._watched, page=Page.LOG)
            case "esc":
                self._watched = replace(self._watched, page=Page.OVERVIEW)
            case "l" | "u" | "p" if self._name:
                self._order(key)
            case _:
                return
        self._draw()

    def _choose(self, step: int) -> None:
        last = max(0, len(self._snapshot.profiles) - 1)
        self._watched = replace(self._watched, chosen=min(last, max(0, self._watched.chosen + step)))

    def _order(self, key: str) -> None:
        name, pinned = self._name, self._snapshot.profiles[self._watched.chosen].engine.pinned
        what, body, notice = {
            "l": ("load", None, f"loading {name}"),
            "u": ("unload", None, f"unloading {name}"),
            "p": ("pin", {"pinned": not pinned}, f"{name} is {'no longer ' if pinned else ''}pinned"),
        }[key]
        self._notice(notice)
        task = asyncio.ensure_future(self._send(f"/profiles/{name}/{what}", body))
        self._orders.add(task)
        task.add_done_callback(self._orders.discard)

    async def _send(self, path: str, body: object) -> None:
        try:
            await self._remote.tell(path, body)
        except GarraError as error:
            self._notice(error.what)
        self._changed.set()

    def _notice(self, text: str) -> None:
        self._noticed = time.monotonic()
        self._watched = replace(self._watched, notice=text)


def _tail(path: Path) -> tuple[str, ...]:
    """The last lines of a file that may grow and may be gone."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return tuple(file.read().decode("utf-8", "replace").splitlines())
    except OSError:
        return ("there is no log yet",)
