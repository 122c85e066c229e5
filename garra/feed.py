"""What happens, told to whoever listens: a short memory and any number of followers, none of whom can hold it up."""

from __future__ import annotations

import asyncio
import datetime
from collections import deque
from collections.abc import AsyncGenerator

import msgspec

from garra.events import Fact

_REMEMBERED = 100
_UNREAD = 1000


class Feed:
    """Takes facts and hands them on as JSON lines."""

    def __init__(self) -> None:
        self._past: deque[bytes] = deque(maxlen=_REMEMBERED)
        self._followers: set[asyncio.Queue[bytes]] = set()

    def tell(self, fact: Fact) -> None:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = msgspec.json.encode({"at": now, "kind": fact.kind, "profile": fact.profile, "detail": fact.detail})
        self._past.append(line)
        for follower in list(self._followers):
            if follower.full():
                self._followers.discard(follower)  # it reads nothing: its stream ends here
            else:
                follower.put_nowait(line)

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """The last facts, then every new one, for as long as somebody listens."""
        mine: asyncio.Queue[bytes] = asyncio.Queue(_UNREAD)
        for line in self._past:
            mine.put_nowait(line)
        self._followers.add(mine)
        try:
            while mine in self._followers or not mine.empty():
                yield await mine.get()
        finally:
            self._followers.discard(mine)
