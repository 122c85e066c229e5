"""Live traffic told to whoever records it: shapes; texts only to who asked for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec

from garra.bench.traffic import Recorded, shape_of
from garra.ports import Lease
from garra.traffic import Wish

_UNREAD = 10_000


class Recorder:
    """Hands requests that ended to its followers, none of whom can hold it up."""

    def __init__(self) -> None:
        self._followers: dict[asyncio.Queue[bytes], bool] = {}

    @property
    def active(self) -> bool:
        return bool(self._followers)

    def take(self, path: str, body: bytes, wish: Wish, lease: Lease | None, began_s: float, e2e_s: float) -> None:
        """A request is over."""
        if not self._followers:
            return
        messages, blocks, wanted = shape_of(body)
        usage = lease.usage if lease is not None else None
        told = Recorded(began_s, wish.profile, path, wanted, messages, blocks, round(e2e_s, 4))
        if lease is not None:
            told.outcome = str(lease.outcome or "left")
            told.queue_s, told.load_s = round(lease.waited.queue_s, 4), round(lease.waited.load_s, 4)
        if usage is not None:
            told.n_prompt, told.n_cached = usage.n_prompt + usage.n_cached, usage.n_cached
            told.n_output, told.prefill_s = usage.n_decoded, usage.prompt_ms / 1e3
        shape = msgspec.json.encode(told)
        whole = shape
        if any(self._followers.values()):
            asked: dict[str, Any] = msgspec.json.decode(body)
            told.body = asked
            whole = msgspec.json.encode(told)
        for follower, with_text in list(self._followers.items()):
            if follower.full():
                self._followers.pop(follower)  # it reads nothing: its stream ends here
            else:
                follower.put_nowait(whole if with_text else shape)

    async def follow(self, *, text: bool) -> AsyncGenerator[bytes, None]:
        """Every request that ends from now on, for as long as somebody listens."""
        mine: asyncio.Queue[bytes] = asyncio.Queue(_UNREAD)
        self._followers[mine] = text
        try:
            while mine in self._followers or not mine.empty():
                yield await mine.get()
        finally:
            self._followers.pop(mine, None)
