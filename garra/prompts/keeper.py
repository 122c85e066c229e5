"""Saves what slots hold before their engine leaves, and puts it back when the next one is up. The `Prompts` port.

Nothing in here may cost more than it saves: a save has a limit, a failure is a line in the log and a prefill, and what
was restored must prove itself by the engine's own count, or the profile goes without until something changes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from garra.errors import BadRequest, EngineDown, GarraError
from garra.ports import Clock, EngineHttp
from garra.prompts.book import Book
from garra.prompts.store import PromptStore
from garra.prompts.words import Held, Kept
from garra.prompts.worth import gain_s, to_discard, to_restore, to_save
from garra.spec import MIB, LaunchPlan, Profile
from garra.tally import PromptTally
from garra.traffic import Usage

log = logging.getLogger(__name__)

_RESTORE_LIMIT_S = 20.0
_SAME_TOKENS = 8
"""By so much the engine's count of a slot may differ from ours: stop words, the last token."""


class Keeper:
    """One for all engines. `identity`: what must be equal for an engine to take a slot back."""

    def __init__(
        self,
        store: PromptStore,
        *,
        http: EngineHttp,
        clock: Clock,
        identity: Callable[[LaunchPlan], str],
        tell: Callable[[str, str], None],
        budget_mib: int,
        save_budget_ms: int,
    ) -> None:
        self.store = store
        self._http = http
        self._clock = clock
        self._identity = identity
        self._tell = tell
        self._books: dict[str, Book] = {}
        self._writing: dict[str, asyncio.Task[Any]] = {}
        """Hashes and descriptions of what engines have written."""
        self.closing = False
        """garra ends: what is only kept for swaps is not."""
        self.configure(budget_mib, save_budget_ms)

    def configure(self, budget_mib: int, save_budget_ms: int) -> None:
        """Settings from now on; who was turned off may try again."""
        self._budget_bytes = budget_mib * MIB
        self._save_s = save_budget_ms / 1e3
        for book in self._books.values():
            book.off = ""

    def book(self, profile: str) -> Book:
        book = self._books.get(profile)
        if book is None:  # asked at every answer: none is made in vain
            book = self._books[profile] = Book()
        return book

    def said(self, profile: str) -> str:
        return self.book(profile).off

    def tally(self, profile: str) -> PromptTally:
        return self.book(profile).tally

    def note(self, profile: str, chain: tuple[int, ...], usage: Usage) -> None:
        book = self.book(profile)
        if problem := book.note(chain, usage):
            self._turn_off(profile, book, problem)

    # -- before an engine leaves

    def keeps(self, profile: Profile) -> bool:
        """Whether prompts of this profile are kept at all."""
        return bool(self._budget_bytes) and profile.persist_prompts != "off" and kept_for(profile)

    async def keep(self, plan: LaunchPlan, socket: Path) -> None:
        profile = plan.profile
        book = self.book(profile.name)
        if book.off or not self.keeps(profile):
            return
        if self.closing and profile.persist_prompts != "always":
            return
        try:
            async with asyncio.timeout(self._save_s):
                await self._save_all(profile.name, book, socket)
        except TimeoutError:
            book.tally.events["failed"] += 1
            log.warning("%s: saving its prompts took longer than %.1f s", profile.name, self._save_s)
        except (EngineDown, OSError) as error:
            book.tally.events["failed"] += 1
            log.warning("%s: its prompts are not saved: %s", profile.name, error)

    async def _save_all(self, name: str, book: Book, socket: Path) -> None:
        free = [slot for slot in enumerate(await self._http.slots(socket) or ()) if not slot[1].busy and slot[1].n_held]
        held = [_known(book.held.get(n), n, state.n_held) for n, state in free]
        there = await asyncio.to_thread(self.store.kept)
        mine = [one for one in there if one.profile == name and one.fingerprint == book.fingerprint]
        for one in to_save(held, book.costs, self._save_s):
            if any(_same(one, kept) for kept in mine):
                continue  # as it was restored: the file is still there
            n_bytes = int(one.n_tokens * book.costs.token_bytes)
            if (gone := self._make_room(there, n_bytes, self.store.room())) is None:
                continue
            there = [kept for kept in there if kept not in gone]
            await self._save(name, book, socket, one, mine)

    async def _save(self, name: str, book: Book, socket: Path, one: Held, before: Collection[Kept]) -> None:
        self.store.folder(name)
        file, fingerprint = self.store.fresh_name(), book.fingerprint
        moved = await self._http.save_slot(socket, one.slot, file)
        if not moved.n_tokens:
            raise EngineDown(f"slot {one.slot}: nothing was written")
        book.saved(moved)
        worth_s = max(0.0, gain_s(moved.n_tokens, book.costs))
        outgrown = [kept for kept in before if not kept.pinned and kept.chain and _begins(kept, one)]

        async def describe() -> None:
            try:
                await asyncio.to_thread(self.store.add, name, file, fingerprint, moved.n_tokens, one.chain, worth_s)
            except OSError as error:
                self.store.discard(name, file)
                log.warning("%s: a saved prompt is lost: %s", name, error)
                return
            for kept in outgrown:
                self.store.remove(kept)

        self._after(name, describe)

    def _make_room(self, there: Sequence[Kept], n_bytes: int, free_bytes: int) -> list[Kept] | None:
        """What was removed for so many bytes to fit; None where they do not, and nothing was."""
        on_disk = free_bytes + sum(kept.n_bytes for kept in there)
        gone = to_discard(there, n_bytes, min(self._budget_bytes, on_disk))
        for kept in gone or ():
            self.store.remove(kept)
        return gone

    # -- because a person said so

    async def pin(self, profile: str, socket: Path, slot: int, label: str, prefill_s: float) -> Kept:
        """Keep what this slot holds under this name, in place of what had it. `prefill_s`: what a token of it took.

        Raises EngineDown; BadRequest where the store has no room for it, GarraError where the disk fails.
        """
        try:
            self.store.folder(profile)
            name, fingerprint = self.store.fresh_name(), self.book(profile).fingerprint
            moved = await self._http.save_slot(socket, slot, name)

            def describe() -> Kept:
                former = self._give_way(profile, name, label)
                worth_s = prefill_s * moved.n_tokens
                kept = self.store.add(profile, name, fingerprint, moved.n_tokens, (), worth_s, label)
                for one in former:
                    self.store.remove(one)
                return kept

            # as work that the next engine waits for: it removes what nothing describes
            kept: Kept = await asyncio.shield(self._after(profile, lambda: asyncio.to_thread(describe)))
        except OSError as error:
            raise GarraError(f"{label} is not kept: {error}", fix="another prompt_dir, or room on that disk") from error
        return kept

    def _give_way(self, profile: str, name: str, label: str) -> list[Kept]:
        """Make room for what was just written; what it replaces is told, and still there. Raises BadRequest."""
        n_bytes = self.store.written_bytes(profile, name)
        there = self.store.kept()
        former = [one for one in there if one.profile == profile and one.label == label]
        others = [one for one in there if one not in former]
        if self._make_room(others, n_bytes, self.store.room() + n_bytes) is None:
            self.store.discard(profile, name)
            warmed = sum(one.n_bytes for one in others if one.pinned)
            raise BadRequest(
                f"{label} takes {n_bytes / MIB:.1f} MiB, and the store of {self._budget_bytes / MIB:.0f} MiB holds"
                f" {warmed / MIB:.1f} MiB of warmed beginnings already",
                fix="garra cache clear, or a greater prompt_store_mib",
            )
        return former

    # -- when the next one is up

    async def bring_back(self, plan: LaunchPlan, socket: Path, slots: int) -> None:
        profile = plan.profile
        book = self.book(profile.name)
        book.started_anew()
        if profile.persist_prompts == "off" or not kept_for(profile):
            return
        try:
            book.fingerprint = self._identity(plan)
            async with asyncio.timeout(_RESTORE_LIMIT_S):
                await self._restore_all(profile, book, socket, slots)
        except (TimeoutError, EngineDown, OSError) as error:
            book.tally.events["failed"] += 1
            log.warning("%s: its prompts are not restored: %s", profile.name, error or type(error).__name__)

    async def _restore_all(self, profile: Profile, book: Book, socket: Path, slots: int) -> None:
        name = profile.name
        if (writing := self._writing.get(name)) is not None:
            await asyncio.wait([writing])
        kept = await asyncio.to_thread(self._fitting, name, book.fingerprint)
        if book.off:
            return
        worth = [one for one in kept if one.pinned or not book.costs.prefill_s or gain_s(one.n_tokens, book.costs) > 0]
        for slot, one in enumerate(to_restore(worth, slots)):
            began = self._clock.now()
            if not await asyncio.to_thread(self.store.holds, one):
                book.tally.events["failed"] += 1
                self.store.remove(one)
                log.warning("%s: %s is damaged: computed again instead", name, one.name)
                continue
            try:
                moved = await self._http.restore_slot(socket, slot, one.name)
            except EngineDown:
                self.store.remove(one)  # whatever it was: not a second time
                raise
            if moved.n_tokens != one.n_tokens:
                book.tally.events["failed"] += 1
                self.store.remove(one)
                continue
            book.restored(slot, one, self._clock.now() - began)
            self.store.used(one)
            log.info("%s: %d tokens are back in slot %d", name, one.n_tokens, slot)

    def _fitting(self, name: str, fingerprint: str) -> list[Kept]:
        """What this engine would take; the rest of the profile's files is removed."""
        self.store.sweep(name)
        kept = self.store.kept(name)
        for one in kept:
            if one.fingerprint != fingerprint:
                self.store.remove(one)
        return [one for one in kept if one.fingerprint == fingerprint]

    # -- housekeeping

    def wipe(self, profiles: Mapping[str, Profile]) -> None:
        """At the start and at the end: only `always` outlives garra."""
        for folder in self.store.root.glob("*"):
            profile = profiles.get(folder.name)
            if profile is None or profile.persist_prompts != "always":
                self.store.wipe([folder.name])

    async def close(self) -> None:
        """Wait for what is being written."""
        await asyncio.gather(*self._writing.values(), return_exceptions=True)

    def _after(self, name: str, work: Callable[[], Awaitable[Any]]) -> asyncio.Task[Any]:
        """Beside everything else, in order for each profile."""
        before = self._writing.get(name)

        async def run() -> Any:
            if before is not None:
                await asyncio.wait([before])
            return await work()

        task = asyncio.ensure_future(run())
        self._writing[name] = task
        task.add_done_callback(lambda done: self._writing.get(name) is done and self._writing.pop(name))
        return task

    def _turn_off(self, profile: str, book: Book, why: str) -> None:
        book.off = why
        book.unproved.clear()
        self._tell(profile, f"prompts are no longer kept: {why}")
        log.warning("%s: prompts are no longer kept: %s", profile, why)

        async def wipe() -> None:
            await asyncio.to_thread(self.store.wipe, [profile])

        self._after(profile, wipe)


def kept_for(profile: Profile) -> bool:
    """Whether its slots hold anything that could be kept: text, in an engine of ours."""
    return profile.kind == "chat" and profile.server is None and profile.text_only


def _known(held: Held | None, slot: int, n_tokens: int) -> Held:
    """What the engine says the slot holds, with the text we think it is if the two agree."""
    agreed = held is not None and abs(held.n_tokens - n_tokens) <= _SAME_TOKENS
    return Held(slot, n_tokens, held.chain if held is not None and agreed else ())


def _same(held: Held, kept: Kept) -> bool:
    return bool(held.chain) and held.chain == kept.chain and abs(held.n_tokens - kept.n_tokens) <= _SAME_TOKENS


def _begins(kept: Kept, held: Held) -> bool:
    """Whether it is an earlier state of the same conversation."""
    return held.chain[: len(kept.chain)] == kept.chain and held.n_tokens >= kept.n_tokens
