"""The keeper: what leaves with an engine comes back with the next, and what fails costs nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from garra import config
from garra.errors import BadRequest, EngineDown, GarraError
from garra.prompts.keeper import Keeper
from garra.prompts.store import PromptStore
from garra.prompts.words import Held, Moved
from garra.snapshot import SlotState
from garra.spec import LaunchPlan, Profile
from tests.fakes import FakeClock, FakeEngines, plan_for
from tests.unit.test_prompts import answer


@pytest.fixture
def store(tmp_path: Path) -> PromptStore:
    return PromptStore(tmp_path / "prompts")


class Engine(FakeEngines):
    """Its slots hold something, and move to files."""

    def __init__(self, store: PromptStore, held: dict[int, int]) -> None:
        super().__init__()
        self.store = store
        self.held = held
        self.breaks = ""
        self.file_bytes = 0
        """At least."""
        self.put_back: dict[int, str] = {}
        self.may_write = asyncio.Event()
        self.may_write.set()

    async def slots(self, socket: Path) -> tuple[SlotState, ...]:
        return tuple(SlotState(False, 1, 0, 0, n_held=n) for n in self.held.values())

    async def save_slot(self, socket: Path, slot: int, name: str) -> Moved:
        await self.may_write.wait()
        if self.breaks == "save":
            raise EngineDown("no space")
        if self.breaks == "nothing":
            return Moved(0, 0, 1.0)
        if self.breaks == "gone":
            return Moved(self.held[slot], 1, 1.0)
        (self.store.folder("demo") / name).write_bytes((b"%d" % self.held[slot] * 100).ljust(self.file_bytes))
        return Moved(self.held[slot], 20_000 * self.held[slot], 10.0)

    async def restore_slot(self, socket: Path, slot: int, name: str) -> Moved:
        if self.breaks == "restore":
            raise EngineDown("it died")
        self.put_back[slot] = name
        n = int((self.store.folder("demo") / name).read_bytes()[:4])
        return Moved(n - (self.breaks == "fewer"), 0, 1.0)


class World:
    """A keeper with an engine, and two prompts of 2000 and 1000 tokens in its slots."""

    def __init__(self, store: PromptStore, **settings: Any) -> None:
        self.store = store
        self.engine = Engine(store, {0: 2000, 1: 1000})
        self.identity = "f"
        self.told: list[str] = []
        self.keeper = Keeper(
            store,
            http=self.engine,
            clock=FakeClock(),
            identity=self.identify,
            tell=lambda profile, news: self.told.append(news),
            budget_mib=settings.pop("budget_mib", 100),
            save_budget_ms=1000,
        )
        self.plan: LaunchPlan = plan_for(demo(**settings))
        self.keeper.book("demo").fingerprint = self.identity  # as of the engine that is up
        self.keeper.note("demo", (1, 2), answer(0, 1990, slot=0))
        self.keeper.note("demo", (7,), answer(0, 990, slot=1))

    def identify(self, plan: LaunchPlan) -> str:
        if not self.identity:
            raise FileNotFoundError("the model is gone")
        return self.identity

    async def leave(self) -> list[int]:
        """Tokens of what is kept."""
        await self.keeper.keep(self.plan, Path("s"))
        await self.keeper.close()
        return sorted(one.n_tokens for one in self.store.kept("demo"))

    async def come_back(self) -> dict[int, str]:
        self.engine.put_back = {}
        await self.keeper.bring_back(self.plan, Path("s"), 2)
        return self.engine.put_back


def demo(**changes: Any) -> Profile:
    profile: Profile = config.load({"profiles": {"demo": changes}}).profiles["demo"]
    return profile


async def test_it_leaves_and_comes_back(store: PromptStore) -> None:
    world = World(store)
    assert await world.leave() == [1000, 2000]
    assert len(await world.come_back()) == 2
    assert world.keeper.book("demo").held[0] == Held(0, 2000, (1, 2)), "the most worth first"
    assert await world.leave() == [1000, 2000], "what was not used is not written again"
    assert world.keeper.book("demo").tally.events["saved"] == 2


async def test_a_longer_state_of_a_conversation_replaces_the_shorter(store: PromptStore) -> None:
    world = World(store)
    await world.leave()
    await world.come_back()
    world.keeper.note("demo", (1, 2, 3), answer(2000, 490, slot=0))
    world.engine.held[0] = 2500
    assert await world.leave() == [1000, 2500]


async def test_another_fingerprint_wipes(store: PromptStore) -> None:
    world = World(store)
    await world.leave()
    world.identity = "g"
    assert await world.come_back() == {}
    assert store.kept("demo") == []


@pytest.mark.parametrize("breaks", ["save", "nothing", "restore", "fewer"])
async def test_what_fails_costs_nothing_else(store: PromptStore, breaks: str) -> None:
    world = World(store)
    if breaks in ("save", "nothing"):
        world.engine.breaks = breaks
        assert await world.leave() == []
        assert await world.come_back() == {}
    else:
        await world.leave()
        world.engine.breaks = breaks
        await world.come_back()
        assert world.keeper.book("demo").tally.events["restored"] == 0
        world.engine.breaks = ""
        assert len(await world.come_back()) < 2, "not a second time"
    assert world.keeper.book("demo").tally.events["failed"] >= 1
    assert world.keeper.said("demo") == ""


async def test_a_model_that_is_gone_is_somebody_elses_trouble(store: PromptStore) -> None:
    world = World(store)
    world.identity = ""
    assert await world.come_back() == {}


async def test_a_damaged_file_never_reaches_the_engine(store: PromptStore) -> None:
    world = World(store)
    await world.leave()
    largest = max(store.kept("demo"), key=lambda one: one.n_tokens)
    file = store.folder("demo") / largest.name
    file.write_bytes(b"9" + file.read_bytes()[1:])
    assert largest.name not in (await world.come_back()).values()
    assert len(store.kept("demo")) == 1


async def test_a_save_that_takes_too_long_is_left(store: PromptStore) -> None:
    world = World(store)
    world.engine.may_write.clear()
    world.keeper.configure(100, 10)
    assert await world.leave() == []
    assert world.keeper.book("demo").tally.events["failed"] == 1


async def test_a_miss_turns_it_off_until_something_changes(store: PromptStore) -> None:
    world = World(store)
    await world.leave()
    await world.come_back()
    world.keeper.note("demo", (1, 2, 3), answer(0, 2490, slot=0))
    assert "computed again" in world.keeper.said("demo")
    assert world.told
    assert await world.leave() == []
    assert store.kept("demo") == []
    world.keeper.configure(100, 1000)
    assert world.keeper.said("demo") == ""
    assert await world.leave() == [1000, 2000]


@pytest.mark.parametrize(("persist", "left"), [("off", []), ("swap", []), ("always", [1000, 2000])])
async def test_only_always_outlives_garra(store: PromptStore, persist: str, left: list[int]) -> None:
    world = World(store, persist_prompts=persist)
    world.keeper.closing = True
    assert await world.leave() == left
    world.keeper.wipe({"demo": world.plan.profile})
    assert [one.n_tokens for one in sorted(store.kept("demo"), key=lambda one: one.n_tokens)] == left


async def test_the_budget_holds(store: PromptStore) -> None:
    world = World(store, budget_mib=0)
    assert await world.leave() == []


async def test_busy_slots_and_other_kinds_are_left_alone(store: PromptStore) -> None:
    world = World(store, kind="embedding")
    assert await world.leave() == []
    assert await world.come_back() == {}


# -- warmed by a person


async def test_what_is_warmed_counts_against_the_budget(store: PromptStore) -> None:
    world = World(store, budget_mib=1)
    world.engine.file_bytes = 600_000
    first = await world.keeper.pin("demo", Path("s"), 0, "first", 0.001)
    assert (first.n_tokens, first.worth_s, first.pinned) == (2000, 2.0, True)
    with pytest.raises(BadRequest, match=r"second takes 0\.6 MiB, and the store of 1 MiB holds 0\.6 MiB"):
        await world.keeper.pin("demo", Path("s"), 0, "second", 0.001)
    assert store.kept("demo") == [first]
    again = await world.keeper.pin("demo", Path("s"), 0, "first", 0.001)
    assert store.kept("demo") == [again], "the former one gives way"
    assert sorted(path.name for path in store.folder("demo").iterdir()) == [again.name, f"{again.name}.json"]


async def test_what_is_kept_for_swaps_gives_way_to_what_is_warmed(store: PromptStore) -> None:
    world = World(store)
    assert await world.leave() == [1000, 2000]
    world.keeper.configure(1, 1000)
    world.engine.file_bytes = 2_000_000
    with pytest.raises(BadRequest, match=r"mine takes 1\.9 MiB"):
        await world.keeper.pin("demo", Path("s"), 0, "mine", 0.001)
    assert len(store.kept("demo")) == 2, "nothing went in vain"
    world.engine.file_bytes = 1_048_500
    one = await world.keeper.pin("demo", Path("s"), 0, "mine", 0.001)
    assert store.kept("demo") == [one]


async def test_an_engine_that_starts_meanwhile_waits_for_the_description(store: PromptStore) -> None:
    """It would sweep away a file that nothing describes yet."""
    world = World(store)
    pinning = asyncio.ensure_future(world.keeper.pin("demo", Path("s"), 0, "mine", 0.001))
    await asyncio.sleep(0)
    assert list(store.root.glob("demo/*.slot")), "the engine has written, and nothing is described"
    assert store.kept("demo") == []
    assert len(await world.come_back()) == 1
    assert [one.label for one in store.kept("demo")] == [(await pinning).label] == ["mine"]


async def test_a_disk_that_fails_is_told(store: PromptStore) -> None:
    world = World(store)
    world.engine.breaks = "gone"
    with pytest.raises(GarraError, match="mine is not kept"):
        await world.keeper.pin("demo", Path("s"), 0, "mine", 0.001)
    assert store.kept("demo") == []
