"""What a reload does, and what it leaves alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from garra import config
from garra.errors import ConfigError
from garra.events import Fact
from garra.feed import Feed
from garra.reload import Reloader, compare

A = {"model": "file:/a.gguf", "context": 512}


def load(**tables: object) -> config.Config:
    return config.load({"profiles": tables})


def test_profiles_are_sorted_by_what_happens_to_their_engines() -> None:
    before = load(same=A, knob=A, launch=A, gone=A)
    after = load(same=A, knob={**A, "max_queue": 5}, launch={**A, "slots": 3}, new=A)
    changes = compare(before, after)
    assert changes.added == ("new",)
    assert changes.removed == ("gone",)
    assert changes.restarted == ("launch",)
    assert changes.adjusted == ("knob",)
    assert "same" in changes.untouched


def test_a_mode_alone_restarts_only_if_it_changes_the_slots() -> None:
    assert compare(load(a={**A, "slots": 4}), load(a={**A, "slots": 4, "mode": "high_throughput"})).adjusted == ("a",)
    assert compare(load(a=A), load(a={**A, "mode": "high_throughput"})).restarted == ("a",)


def test_what_only_a_start_reads_is_named() -> None:
    assert compare(config.load(), config.load({"port": 1234})).not_applied == ("port",)


def test_an_invalid_file_changes_nothing_and_says_why() -> None:
    applied: list[config.Config] = []
    told: list[Fact] = []
    answers: Iterator[config.Config | ConfigError] = iter([config.load(), ConfigError("cannot use these settings: x")])

    def read() -> config.Config:
        answer = next(answers)
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    reloader = Reloader(config.load(), read, applied.append, told.append)
    reloader.reload()
    with pytest.raises(ConfigError):
        Reloader(config.load(), lambda: (_ for _ in ()).throw(ConfigError("no")), applied.append, told.append).reload()
    reloader.reload_or_log()
    assert len(applied) == 1
    assert told[-1].detail == "not reloaded: cannot use these settings: x"


async def test_followers_get_the_past_and_the_present_and_hold_nobody_up() -> None:
    feed = Feed()
    for number in range(150):
        feed.tell(Fact("phase", "a", str(number)))
    follower = feed.follow()
    first = await anext(follower)
    assert b'"detail":"50"' in first, "the last hundred"
    waiting = asyncio.ensure_future(_nth(follower, 99))
    feed.tell(Fact("phase", "a", "new"))
    assert b'"new"' in await asyncio.wait_for(waiting, 5)
    for number in range(3000):  # nobody reads
        feed.tell(Fact("phase", "a", str(number)))
    seen = 0
    async for _ in follower:
        seen += 1
    assert seen <= 1000
    await follower.aclose()


async def _nth(follower: object, n: int) -> bytes:
    last = b""
    for _ in range(n + 1):
        last = await anext(follower)  # type: ignore[call-overload]
    return last
