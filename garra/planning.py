"""Planning on this machine: joins header, hardware, engine and what was learned, and asks the pure planner.

Everything here may take half a second and touches disks and drivers: call it from a thread.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from garra import gpus, hardware, ledger, parts
from garra.bill import HOST, Bill, Claim, Need, Place
from garra.engine import accounting, devices
from garra.engine.argv import server_argv
from garra.errors import DoesNotFit, GarraError
from garra.host import Gpu, HostSpec
from garra.planner import plan as planner
from garra.planner import room as rooms
from garra.planner.room import Margins, Room
from garra.registry.card import ModelCard
from garra.registry.catalog import Catalog
from garra.spec import MIB, EngineBuild, KvType, LaunchPlan, Profile

log = logging.getLogger(__name__)

_PROBE_VRAM_MIB = 1024
"""The engine's accounting opens the GPU for a moment: not on a card that is nearly full."""


class Planner:
    """Plans launches with one engine build; remembers what was learned."""

    def __init__(
        self,
        engine: Callable[[], EngineBuild | None],
        margins: Margins,
        known: ledger.Ledger | None,
        *,
        detect: Callable[[], HostSpec] = hardware.detect,
        backend: str | None = None,
        alone: Callable[[], bool] = lambda: True,
    ) -> None:
        self._engine = engine
        self._margins = margins
        self._known = known
        self._detect = detect
        self._backend = backend
        """Of the engine there would be, where the machine is only described."""
        self._alone = alone
        """Whether no engine of ours is up: only then may the accounting open a GPU."""

    def configure(self, margins: Margins) -> None:
        self._margins = margins

    def plan(
        self,
        profile: Profile,
        *,
        place: Place | None = None,
        force: bool = False,
        present: bool = True,
        whole: bool = False,
    ) -> LaunchPlan:
        """The plan for this moment. `place`: where the scheduler puts it; `whole`: as if no engine of ours were loaded.

        Raises ModelNotPresent (unless `present` is False and garra ships a card), BadModel, DoesNotFit.
        """
        if profile.server is not None:  # it takes nothing here
            return LaunchPlan(profile, Path(profile.server.url), threads=0, gpu_layers=0)
        card, path = parts.card_of(profile)
        if path is None and present:
            raise parts.absent(profile)
        draft = parts.draft_of(profile)
        if profile.speculation == "draft" and draft is None and present:
            raise parts.absent(profile)
        host, build = self._detect(), self._engine()
        if place is not None and place.gpu is not None:
            host = replace(host, gpus=tuple(one for one in host.gpus if one.index == place.gpu) or host.gpus)
        room = self.room(host, build, whole=whole)
        if place is not None and profile.memory_mib is None:  # the person's word on its memory is not argued with
            room = rooms.within(room, place)
        before = self._lowered(profile, room)
        made = planner.plan_launch(
            profile,
            card,
            host,
            room,
            path or Path(f"{profile.name}.gguf"),
            account=self._account(build, path, room, draft),
            beside=parts.beside(profile),
            skip=before.rung if before is not None else 0,
            force=force or profile.force,
        )
        notes = list(made.notes)
        if build is not None and room.device is None and host.gpus and profile.gpu_layers != 0:
            notes.append(
                f"this engine was built for the {build.backend.upper()}: {profile.name} does not use "
                f"{host.gpus[0].name}; garra engine build --backend auto"
            )
        elif not host.gpus and profile.gpu_layers != 0:
            notes.append(f"no GPU found: {profile.name} runs on the CPU")
        if before is not None:
            notes.append(f"it begins lower since {before.at}: {before.why} (garra plan {profile.name} --forget)")
        return replace(
            made,
            notes=tuple(notes),
            projector=parts.projector_of(profile),
            draft=draft,
            engine=build.stamp if build is not None else "",
        )

    def need(self, profile: Profile, budget: Claim) -> Need:
        """What the profile takes while nothing else of ours is loaded; with the reason where that never fits."""
        spots = [device for device in budget if device != HOST]
        roomiest = max(spots, key=lambda device: budget[device], default=None)
        gpu = int(roomiest.removeprefix("gpu")) if roomiest is not None else None
        place = Place(gpu, budget.get(roomiest or "", 0), budget.get(HOST, 0))
        try:
            need = _overridden(profile, _need_of(self.plan(profile, whole=True, place=place)))
            if profile.force:  # the scheduler gives it all there is
                need = Need(min(need.vram_mib, place.vram_mib), min(need.ram_mib, place.ram_mib))
            return need
        except DoesNotFit as error:
            return _overridden(profile, Need(why_not=error.what, fix=error.fix or ""))
        except GarraError:
            return _overridden(profile, Need())  # its load will say what is wrong

    def room(self, host: HostSpec, build: EngineBuild | None, *, whole: bool = False) -> Room:
        """What an engine may take now."""
        backend = build.backend if build is not None else self._backend or "cpu"
        room = rooms.of_host(host, backend, self._margins, whole=whole)
        if build is None or room.device is None or self._known is None:
            return room
        measured = self._known.overhead_bytes(build.stamp, room.what)
        return room if measured is None else replace(room, context_mib=-(-measured // MIB))

    def room_now(self) -> Room:
        """What an engine may take at this moment."""
        return self.room(self._detect(), self._engine())

    def forget(self, profile: str) -> bool:
        """Let the profile begin as it asks again; whether it had been lowered."""
        return self._known is not None and self._known.forget(profile)

    @staticmethod
    def largest_contexts(
        profile: Profile, card: ModelCard, room: Room, kv_types: Sequence[KvType], slots: Sequence[int]
    ) -> dict[str, dict[str, int]]:
        """Tokens per slot that fit at most, by type of KV cache and number of slots; 0: none."""
        return {
            kv_type: {str(n): planner.largest_context(profile, card, room, n, kv_type) for n in slots}
            for kv_type in kv_types
        }

    def last_loads(self, profile: str) -> list[ledger.Load]:
        """What its last loads were planned to take, and took, by device."""
        return self._known.last_loads(profile) if self._known is not None else []

    def lower(self, plan: LaunchPlan, wished: Profile, why: str) -> bool:
        """The engine ran out of memory with this plan: begin one rung lower from now on. False at the ladder's foot."""
        card, _ = parts.card_of(wished)
        room = self.room(self._detect(), self._engine())
        last = sum(1 for _ in planner.ladder(wished, card, room)) - 1
        if plan.rung >= last or self._known is None:
            return False
        return self._known.lower(self._key(wished, room), wished.name, plan.rung + 1, why)

    def learn(self, plan: LaunchPlan, vram_bytes: int, ram_bytes: int) -> None:
        """A READY engine holds so much of its GPU and of the RAM, the pages of its file included."""
        build, bill = self._engine(), plan.bill
        if build is None or bill is None or self._known is None:
            return
        if ram_bytes:
            self._known.learn(plan.profile.name, build.stamp, HOST, bill.total(HOST), ram_bytes)
        if not vram_bytes:
            return
        planned = sum(bill.total(device) - bill.parts[device].get("device context", 0) for device in bill.devices)
        gpu = next((one for one in self._detect().gpus if one.index == plan.gpu), None)
        if gpu is not None:
            self._known.learn(plan.profile.name, build.stamp, gpu.name, planned, vram_bytes)

    def _lowered(self, profile: Profile, room: Room) -> ledger.Lowered | None:
        return self._known.lowered(self._key(profile, room)) if self._known is not None else None

    def _key(self, profile: Profile, room: Room) -> str:
        """The same launch on the same memory: another profile, or another GPU, begins anew."""
        return _digest(repr(profile.engine_part()), room.gpu.name if room.gpu is not None else "cpu")

    def _account(
        self, build: EngineBuild | None, path: Path | None, room: Room, draft: Path | None
    ) -> planner.Account | None:
        if build is None or path is None:
            return None

        def account(made: LaunchPlan) -> Bill | None:
            plan = replace(made, draft=draft)
            seen = path.stat()
            words = server_argv(Path(accounting.TOOL), plan, Path("s.sock"))
            key = _digest(build.stamp, str(seen.st_size), str(seen.st_mtime_ns), *words)
            told = self._known.bill(key) if self._known is not None else None
            if told is None:
                if room.device is not None and not (self._alone() and room.vram_mib >= _PROBE_VRAM_MIB):
                    return None
                told = accounting.account(build, plan, environment(build, plan.gpu))
                if told is not None and self._known is not None:
                    self._known.keep_bill(key, told)
            return accounting.complete(told, plan.bill) if told is not None else None

        return account


class ThreadedPlans:
    """The `Plans` port: a planner whose waits are spent in threads."""

    def __init__(
        self,
        planner_: Planner,
        budget: Callable[[Sequence[int]], Claim],
        ours: Callable[[], Sequence[int]],
        catalog: Catalog,
    ) -> None:
        self._catalog = catalog
        self._planner = planner_
        self._budget = budget
        self._ours = ours

    async def need(self, profile: Profile) -> Need:
        ours = self._ours()
        return await asyncio.to_thread(lambda: self._planner.need(profile, self._budget(ours)))

    async def plan(self, profile: Profile, place: Place) -> LaunchPlan:
        return await asyncio.to_thread(self._planner.plan, profile, place=place)

    async def lower(self, plan: LaunchPlan, wished: Profile, why: str) -> bool:
        return await asyncio.to_thread(self._planner.lower, plan, wished, why)

    async def learn(self, plan: LaunchPlan, pid: int) -> None:
        if plan.profile.server is not None:
            return

        def look() -> None:
            vram_bytes, ram_bytes = gpus.held_mib(pid) * MIB, hardware.rss_bytes(pid)
            self._planner.learn(plan, vram_bytes, ram_bytes)
            self._catalog.used(str(plan.model_path), vram_bytes, ram_bytes)

        await asyncio.to_thread(look)

    def served(self, plan: LaunchPlan, decode_tok_s: float) -> None:
        self._catalog.decoded(str(plan.model_path), decode_tok_s)

    async def budget(self, pids: Sequence[int]) -> Claim:
        return await asyncio.to_thread(self._budget, pids)


def _need_of(plan: LaunchPlan) -> Need:
    return plan.bill.need if plan.bill is not None else Need()


def detect(build: EngineBuild | None, ours: Sequence[int] = ()) -> HostSpec:
    """This machine; GPUs that no driver library tells of are asked of the engine, once."""
    host = hardware.detect(ours)
    if host.gpus or build is None or build.backend in ("cpu", "cuda"):
        return host
    return replace(host, gpus=_listed(build))


@functools.cache
def _listed(build: EngineBuild) -> tuple[Gpu, ...]:
    return devices.listed(build, environment(build, None))


def environment(build: EngineBuild, gpu: int | None) -> dict[str, str]:
    """What an engine's programs run with: nothing that sets a flag behind garra's back, and one GPU at most."""
    return hardware.engine_environment() | build.environment() | hardware.only_gpu(build.backend, gpu)


def _overridden(profile: Profile, need: Need) -> Need:
    """`memory_mib` is the person's word on it: of the memory the model computes in."""
    if profile.memory_mib is None:
        return need
    if need.vram_mib:
        return Need(profile.memory_mib, need.ram_mib)
    return Need(0, profile.memory_mib)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
