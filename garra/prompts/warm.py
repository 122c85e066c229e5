"""A beginning many conversations share, computed once, kept on disk, and put back into every new engine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from garra.errors import BadRequest
from garra.ports import Fleet
from garra.prompts.keeper import kept_for
from garra.prompts.store import PromptStore
from garra.prompts.words import Kept, Moved
from garra.spec import Profile
from garra.traffic import Outcome, Usage, Wish

_TWO_QUESTIONS = ("Alpha", "Omega")
"""What their conversations have in common is what is before the question."""
_LEAST_CHARACTERS = 16


class Prefills(Protocol):
    """The engine's HTTP surface, as far as it is needed here."""

    async def render(self, socket: Path, conversation: dict[str, Any]) -> str: ...

    async def prefill(self, socket: Path, prompt: str) -> Usage: ...

    async def save_slot(self, socket: Path, slot: int, name: str) -> Moved: ...


class Warmer:
    """Holds no state but its parts. `identity` of the profile's engine that is up."""

    def __init__(self, fleet: Fleet, store: PromptStore, http: Prefills, identity: Callable[[str], str]) -> None:
        self._fleet = fleet
        self._store = store
        self._http = http
        self._identity = identity

    async def warm(self, profile: Profile, label: str, messages: list[dict[str, Any]], tools: list[Any]) -> Kept:
        """Compute what every conversation that begins so has in common, and keep it under this name.

        Raises BadRequest, EngineDown and what a lease raises; OSError where the disk does.
        """
        if profile.persist_prompts == "off" or not kept_for(profile):
            raise BadRequest(f"{profile.name} keeps no prompts", fix='persist_prompts = "swap" in its profile')
        name = self._store.fresh_name()
        async with self._fleet.lease(Wish(profile.name, "warm")) as lease:
            common = await self._common(lease.socket, messages, tools)
            usage = await self._http.prefill(lease.socket, common)
            if usage.slot is None:
                raise BadRequest("this engine does not tell its slots", fix="garra engine build")
            self._store.folder(profile.name)
            moved = await self._http.save_slot(lease.socket, usage.slot, name)
            fingerprint = self._identity(profile.name)
            lease.ended(Outcome.COMPLETE, usage)
        seconds = usage.prompt_ms / 1e3 * moved.n_tokens / max(1, usage.n_prompt)
        for one in self._store.kept(profile.name):
            if one.label == label:
                self._store.remove(one)
        return await asyncio.to_thread(
            self._store.add, profile.name, name, fingerprint, moved.n_tokens, (), seconds, label
        )

    async def _common(self, socket: Path, messages: list[dict[str, Any]], tools: list[Any]) -> str:
        more = {"tools": tools} if tools else {}
        rendered = [
            await self._http.render(socket, {"messages": [*messages, {"role": "user", "content": one}], **more})
            for one in _TWO_QUESTIONS
        ]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*rendered, strict=False))
        common = "".join(one for one, _ in same)
        if len(common) < _LEAST_CHARACTERS:
            raise BadRequest("conversations that begin so have nothing in common: the template puts the question first")
        return common
