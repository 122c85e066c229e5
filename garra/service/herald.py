"""What systemd hears of a running garra: READY once a model serves, how it goes, and that it is still healthy."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from urllib.parse import urlsplit

from garra.ports import Fleet
from garra.service.notify import Notifier
from garra.spec import Phase

_STATUS_EVERY_S = 1.0
_SIGNS_PER_LIMIT = 3.0
"""Two may be missed."""
_PROBE_S = 5.0


class Herald:
    """Used with `async with`; does nothing where nobody wants to know."""

    def __init__(self, notifier: Notifier, fleet: Fleet, url: str) -> None:
        self._notifier = notifier
        self._fleet = fleet
        self._url = urlsplit(url)
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Herald:
        if self._notifier.wanted:
            self._tasks.append(asyncio.ensure_future(self._tell_status()))
        if self._notifier.wanted and self._notifier.watchdog_s:
            self._tasks.append(asyncio.ensure_future(self._give_signs(self._notifier.watchdog_s / _SIGNS_PER_LIMIT)))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def ready(self) -> None:
        self._notifier.tell(READY="1", STATUS=self._status())

    def stopping(self) -> None:
        self._notifier.tell(STOPPING="1", STATUS="running answers end")

    async def _tell_status(self) -> None:
        told = ""
        while True:
            if (status := self._status()) != told:
                told = status
                self._notifier.tell(STATUS=status)
            await asyncio.sleep(_STATUS_EVERY_S)

    async def _give_signs(self, every_s: float) -> None:
        """Only while the listener answers: a loop that turns is not enough for clients."""
        while True:
            if await self._answers():
                self._notifier.tell(WATCHDOG="1")
            await asyncio.sleep(every_s)

    async def _answers(self) -> bool:
        host = self._url.netloc
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_PROBE_S):
                reader, writer = await asyncio.open_connection(self._url.hostname, self._url.port)
                try:
                    writer.write(f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                    return (await reader.readline()).startswith(b"HTTP/1.1 200")
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        return False

    def _status(self) -> str:
        words = []
        for profile in self._fleet.profiles():
            seen = self._fleet.status(profile.name)
            if seen.phase is not Phase.COLD:
                busy, waiting = seen.leases + seen.lingering, seen.waiting
                words.append(f"{profile.name} {seen.phase}, {busy} busy, {waiting} waiting")
        return "; ".join(words) or "no model is loaded"
