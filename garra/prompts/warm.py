"""A beginning many conversations share, computed once, kept on disk, and put back into every new engine."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Protocol

from garra.errors import BadRequest
from garra.ports import Fleet
from garra.prompts.keeper import Keeper
from garra.prompts.words import Kept
from garra.spec import Profile
from garra.traffic import Outcome, Usage, Wish

_TWO_QUESTIONS = ("Alpha", "Omega")
"""What their conversations have in common is what is before the question."""
_LEAST_CHARACTERS = 16


class Prefills(Protocol):
    """The engine's HTTP surface, as far as it is needed here."""

    async def render(self, socket: Path, conversation: dict[str, Any]) -> str: ...

    async def prefill(self, socket: Path, prompt: str) -> Usage: ...


class Warmer:
    """Holds no state but its parts."""

    def __init__(self, fleet: Fleet, keeper: Keeper, http: Prefills) -> None:
        self._fleet = fleet
        self._keeper = keeper
        self._http = http

    async def warm(self, profile: Profile, label: str, messages: list[dict[str, Any]], tools: list[Any]) -> Kept:
        """Compute what every conversation that begins so has in common, and keep it under this name.

        Raises BadRequest, EngineDown and what a lease raises; GarraError where the disk fails.
        """
        if not self._keeper.keeps(profile):
            raise BadRequest(
                f"{profile.name} keeps no prompts",
                fix='persist_prompts = "swap" in its profile, and a prompt_store_mib above 0',
            )
        async with self._fleet.lease(Wish(profile.name, "warm")) as lease:
            common = await self._common(lease.socket, messages, tools)
            usage = await self._http.prefill(lease.socket, common)
            if usage.slot is None:
                raise BadRequest("this engine does not tell its slots", fix="garra engine build")
            prefill_s = usage.prompt_ms / 1e3 / max(1, usage.n_prompt)
            kept = await self._keeper.pin(profile.name, lease.socket, usage.slot, label, prefill_s)
            lease.ended(Outcome.COMPLETE, usage)
        return kept

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
