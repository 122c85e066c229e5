"""Drafting is measured on a profile's own requests, turned off when it loses and on again when it wins."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from garra import config
from garra.supervisor.drafting import LEARNING, Drafters, Drafting
from garra.traffic import Usage


def answer(ms_per_token: float, *, n: int = 65, drafted: int = 0, accepted: int = 0) -> Usage:
    return Usage(10, n, 5.0, ms_per_token * (n - 1), 0, drafted, accepted)


def serve(drafting: Drafting, with_ms: float, without_ms: float, n: int, dice: random.Random) -> list[bool]:
    """`n` requests whose tokens take so long with and without drafts, give or take 10 %; which of them drafted."""
    kinds = []
    for _ in range(n):
        drafted = drafting.choose()
        kinds.append(drafted)
        ms = (with_ms if drafted else without_ms) * dice.gauss(1, 0.1)
        drafting.learn(answer(ms, drafted=8 * drafted, accepted=6 * drafted), drafted=drafted)
    return kinds


def test_what_loses_is_turned_off_and_then_only_tried_now_and_then() -> None:
    drafting, dice = Drafting(), random.Random(1)
    serve(drafting, 10.0, 7.0, 40, dice)
    assert not drafting.on
    assert "off: it loses, 0.7" in str(drafting)
    assert sum(serve(drafting, 10.0, 7.0, 320, dice)) == 10


def test_what_pays_stays_on_with_a_few_for_comparison() -> None:
    drafting, dice = Drafting(), random.Random(1)
    serve(drafting, 5.0, 8.0, 40, dice)
    assert drafting.on
    assert drafting.speedup == pytest.approx(1.6, rel=0.15)
    assert drafting.acceptance_rate == 0.75
    assert serve(drafting, 5.0, 8.0, 160, dice).count(False) == 10


def test_it_comes_back_when_what_is_asked_changes() -> None:
    drafting, dice = Drafting(), random.Random(1)
    serve(drafting, 10.0, 7.0, 40, dice)
    assert not drafting.on
    serve(drafting, 4.0, 7.0, 2000, dice)
    assert drafting.on


def test_near_one_it_does_not_flutter() -> None:
    drafting, dice, changes = Drafting(), random.Random(3), 0
    for _ in range(3000):
        before = drafting.on
        serve(drafting, 7.0, 7.0, 1, dice)
        changes += drafting.on is not before
    assert changes <= 4


def test_nothing_is_decided_on_few_or_short_answers() -> None:
    drafting = Drafting()
    for _ in range(2 * LEARNING - 1):
        drafted = drafting.choose()
        drafting.learn(answer(90.0 if drafted else 1.0), drafted=drafted)
        assert drafting.on
    short = Drafting()
    for _ in range(100):
        drafted = short.choose()
        short.learn(answer(90.0 if drafted else 1.0, n=8), drafted=drafted)
    assert short.on
    assert short.speedup is None


def test_an_engine_that_drafts_all_the_same_is_found_out() -> None:
    drafting = Drafting()
    while drafting.choose():
        drafting.learn(answer(7.0, drafted=8, accepted=2), drafted=True)
    drafting.learn(answer(7.0, drafted=8, accepted=2), drafted=False)
    assert drafting.on
    assert all(drafting.choose() for _ in range(100))
    assert "cannot be told" in str(drafting)


def test_what_is_known_lives_as_long_as_the_engines_settings() -> None:
    made: Callable[..., object] = lambda **values: config.load({"profiles": {"demo": values}}).profiles  # noqa: E731
    told: list[str] = []
    drafters = Drafters(lambda profile, news: told.append(f"{profile}: {news}"))
    drafters.configure(made(speculation="ngram"))  # type: ignore[arg-type]
    assert drafters.said("cpu_fallback") == ""
    assert drafters.choose("cpu_fallback")
    drafters.learn("demo", answer(7.0, drafted=4, accepted=4), drafted=True)
    assert "100% accepted" in drafters.said("demo")
    drafters.configure(made(speculation="ngram", idle_ttl_s=5))  # type: ignore[arg-type]
    assert "100% accepted" in drafters.said("demo")
    drafters.configure(made(speculation="ngram", slots=4))  # type: ignore[arg-type]
    assert drafters.said("demo") == "being measured"
    for _ in range(40):
        drafted = drafters.choose("demo")
        drafters.learn("demo", answer(9.0 if drafted else 3.0), drafted=drafted)
    assert told == ["demo: off: it loses, 0.33x"]
    drafters.configure(made(speculation="none"))  # type: ignore[arg-type]
    assert drafters.said("demo") == ""
