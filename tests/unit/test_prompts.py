"""Prompts that outlive their engine: what is kept, what is thrown away, and what must prove itself."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garra import config
from garra.errors import EngineDown
from garra.prompts.book import Book
from garra.prompts.chain import PIECE_BYTES, chain_of, expected_tokens, shared
from garra.prompts.fingerprint import fingerprint
from garra.prompts.keeper import Keeper
from garra.prompts.store import PromptStore
from garra.prompts.words import Costs, Held, Kept, Moved
from garra.prompts.worth import gain_s, to_discard, to_restore, to_save
from garra.snapshot import SlotState
from garra.spec import LaunchPlan, Profile
from garra.traffic import Usage
from tests.fakes import FakeClock, FakeEngines, plan_for

CPU = Costs(prefill_s=0.0025, token_bytes=23_000, save_s=1e-9, restore_s=2e-9)


def body(*texts: str, model: str = "demo") -> bytes:
    messages = [{"role": "user", "content": text} for text in texts]
    return json.dumps({"model": model, "stream": True, "messages": messages}).encode()


# -- what requests have in common


def test_the_next_turn_begins_like_the_last() -> None:
    system = "You are helpful. " * 500
    first, second = chain_of(body(system, "hi")), chain_of(body(system, "hi", "hello", "what is TCP? " * 400))
    assert shared(first, second) == len(first) > 3
    assert len(second) > len(first)
    other = chain_of(body("X" + system, "hi"))
    assert shared(first, other) == 0
    assert chain_of(body(system, "hi", model="demo:nothink")) == first, "what stands before the text does not count"
    assert chain_of(b"{}") == ()


@given(st.binary(max_size=4 * PIECE_BYTES), st.binary(max_size=2 * PIECE_BYTES), st.binary(max_size=2 * PIECE_BYTES))
def test_a_chain_shares_exactly_the_whole_pieces(common: bytes, one: bytes, other: bytes) -> None:
    ours, theirs = chain_of(common + one), chain_of(common + other)
    same = 0
    for a, b in zip(common + one, common + other, strict=False):
        if a != b:
            break
        same += 1
    if not any(key in common + one + other for key in (b"messages", b"input", b"prompt", b"system", b"instruc")):
        assert shared(ours, theirs) >= min(same // PIECE_BYTES, len(ours), len(theirs))


def test_what_a_request_should_find() -> None:
    chain = tuple(range(10))
    assert expected_tokens(chain, 5500, chain) == 5000
    assert expected_tokens(chain, 5500, (0, 1, 2, 3, 4, 99)) == 2500
    assert expected_tokens(chain, 5500, (7,)) == expected_tokens((), 5500, chain) == 0


# -- worth


def test_saved_is_what_is_worth_it_and_fits_the_time() -> None:
    held = [Held(0, 8000), Held(1, 100), Held(2, 2000), Held(3, 30_000)]
    assert [one.slot for one in to_save(held, CPU, 1.0)] == [3, 0, 2], "the little one is computed sooner"
    slow = replace(CPU, save_s=1e-9 * 5)
    assert [one.slot for one in to_save(held, slow, 1.0)] == [0], (
        "30,000 tokens would take 3.4 s, 2,000 more than is left"
    )
    assert to_save(held, replace(CPU, prefill_s=1e-5), 1.0) == [], "a fast card computes it sooner than a disk reads it"
    assert gain_s(1000, Costs(prefill_s=0.001)) == 1.0


def kept(name: str, n_tokens: int = 1000, **more: Any) -> Kept:
    one = Kept(
        name, "demo", "f", n_tokens, (), {name: 1000}, {name: ""}, worth_s=n_tokens / 400, kept_at="", used_at="1"
    )
    return replace(one, **more)


def test_restored_is_what_was_warmed_then_the_most_worth() -> None:
    some = [kept("a", 100), kept("b", 900), kept("c", 500), kept("d", 10, label="system")]
    assert [one.name for one in to_restore(some, 3)] == ["d", "b", "c"]
    turns = [kept("first", 500, chain=(1, 2)), kept("second", 900, chain=(1, 2, 3)), kept("other", 100, chain=(7,))]
    assert [one.name for one in to_restore(turns, 3)] == ["second", "other"], "an earlier state of the same is in there"


def test_room_is_made_by_the_least_worth_per_byte() -> None:
    some = [kept("poor", 10), kept("old", used_at="0"), kept("new", used_at="2"), kept("mine", 1, label="warmed")]
    assert to_discard(some, 1000, 6000) == []
    gone = to_discard(some, 1000, 3000)
    assert gone is not None
    assert [one.name for one in gone] == ["poor", "old"]
    assert to_discard(some, 3500, 4000) is None, "what a person warmed stays"


# -- the fingerprint


def test_what_cells_depend_on_is_in_the_fingerprint() -> None:
    argv = "llama-server --model /m.gguf -c 8192 -np 2 -t 2 --cache-type-k f16 --temp 0.6 --no-mmproj --lora /l".split()
    same = fingerprint(argv, "sha", "b1")
    speed = "llama-server --model /x.gguf -c 8192 -np 2 -t 8 --cache-type-k f16 --temp 0 --no-mmproj --lora /l".split()
    assert fingerprint(speed, "sha", "b1") == same, "threads, sampling and the place of the file leave the cells alone"
    for place, other in ((4, "16384"), (6, "4"), (10, "q8_0"), (15, "/other")):
        changed = [*argv]
        changed[place] = other
        assert fingerprint(changed, "sha", "b1") != same
    assert fingerprint(argv, "other", "b1") != same
    assert fingerprint(argv, "sha", "b2") != same
    assert fingerprint([*argv, "-n", "-1"], "sha", "b1") == same


# -- proof


def answer(cached: int, prompt: int, slot: int | None = 0, decoded: int = 10) -> Usage:
    return Usage(prompt, decoded, prompt_ms=prompt * 2.5, n_cached=cached, slot=slot)


def restored(n_tokens: int = 2000, slot: int = 0) -> Book:
    book = Book()
    book.restored(slot, kept("a", n_tokens, chain=tuple(range(8))), 0.01)
    return book


def test_what_is_found_is_proved_wherever_it_is_answered() -> None:
    for slot in (0, 1, None):
        book = restored()
        assert book.note((*range(8), 99), answer(1990, 40, slot)) == ""
        assert (book.tally.events["verified"], book.tally.n_tokens, book.unproved) == (1, 1990, {})


def test_what_is_computed_again_is_a_miss() -> None:
    book = restored()
    problem = book.note((*range(8), 99), answer(0, 2040))
    assert "0 of 1777 tokens" in problem
    assert book.tally.events["missed"] == 1


def test_another_text_proves_nothing() -> None:
    book = restored()
    assert book.note((55, 66), answer(0, 2000, slot=1)) == ""
    assert book.unproved, "it is still there"
    assert book.note((55, 66), answer(0, 2000, slot=0)) == ""
    assert not book.unproved, "it was overwritten"
    assert not book.tally.events["missed"]


def test_what_slots_hold_and_what_prefill_costs_is_learned() -> None:
    book = Book()
    book.note((1,), answer(0, 1000, slot=3))
    assert book.held[3] == Held(3, 1010, (1,))
    assert book.costs.prefill_s == pytest.approx(0.0025)
    book.note((1, 2), answer(1000, 30, slot=3))
    assert book.costs.prefill_s == pytest.approx(0.0025), "thirty tokens tell little"
    assert book.held[3].n_tokens == 1040


# -- files


@pytest.fixture
def store(tmp_path: Path) -> PromptStore:
    return PromptStore(tmp_path / "prompts")


def written(
    store: PromptStore, text: bytes = b"cells" * 1000, name: str = "a.slot", *, checkpoints: bool = False
) -> Kept:
    (store.folder("demo") / name).write_bytes(text)
    if checkpoints:
        (store.folder("demo") / f"{name}.checkpoints").write_bytes(b"states")
    return store.add("demo", name, "f", 1000, (1, 2), 2.5)


def test_files_are_private_and_described(store: PromptStore) -> None:
    one = written(store, checkpoints=True)
    assert store.kept("demo") == store.kept() == [one]
    assert one.sizes == {"a.slot": 5000, "a.slot.checkpoints": 6}
    assert {path.stat().st_mode & 0o777 for path in store.folder("demo").iterdir()} == {0o600}
    assert store.folder("demo").stat().st_mode & 0o777 == 0o700
    assert store.holds(one)
    store.remove(one)
    assert list(store.folder("demo").iterdir()) == []


@pytest.mark.parametrize("which", ["a.slot", "a.slot.checkpoints"])
def test_a_flipped_bit_is_seen(store: PromptStore, which: str) -> None:
    one = written(store, checkpoints=True)
    file = store.folder("demo") / which
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert store.kept("demo") == [one]
    assert not store.holds(one)


@pytest.mark.parametrize("spoil", ["cut", "gone", "no json", "another name", "climbs", "huge"])
def test_what_is_damaged_is_removed(store: PromptStore, spoil: str) -> None:
    written(store, checkpoints=True)
    folder = store.folder("demo")
    about = folder / "a.slot.json"
    told = json.loads(about.read_text())
    match spoil:
        case "cut":
            (folder / "a.slot").write_bytes(b"cells")
        case "gone":
            (folder / "a.slot.checkpoints").unlink()
        case "no json":
            about.write_text("{")
        case "another name":
            about.write_text(json.dumps(told | {"name": "b.slot"}))
        case "climbs":
            about.write_text(
                json.dumps(told | {"sizes": {"a.slot": 5000, "../x": 1}, "digests": {"a.slot": "", "../x": ""}})
            )
        case "huge":
            about.write_text(json.dumps(told) + " " * (1 << 20))
    assert store.kept("demo") == []
    assert list(folder.iterdir()) == []


def test_what_no_description_speaks_of_is_swept(store: PromptStore) -> None:
    one = written(store)
    (store.folder("demo") / "half.slot").write_bytes(b"x")
    store.sweep("demo")
    assert sorted(path.name for path in store.folder("demo").iterdir()) == ["a.slot", "a.slot.json"]
    assert store.wipe() > 5000
    assert store.kept() == []
    assert not store.holds(one)


# -- the keeper


class Engine(FakeEngines):
    """Its slots hold something, and move to files."""

    def __init__(self, store: PromptStore, held: dict[int, int]) -> None:
        super().__init__()
        self.store = store
        self.held = held
        self.breaks = ""
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
        (self.store.folder("demo") / name).write_bytes(b"%d" % self.held[slot] * 100)
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
