"""Prompts that outlive their engine: what is kept, what is thrown away, and what must prove itself."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garra.prompts.book import Book
from garra.prompts.chain import PIECE_BYTES, chain_of, expected_tokens, shared
from garra.prompts.fingerprint import fingerprint, named_files
from garra.prompts.words import Costs, Held, Kept
from garra.prompts.worth import gain_s, to_discard, to_restore, to_save
from garra.traffic import Usage

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


def test_files_among_a_profiles_own_flags_are_found() -> None:
    extra = ["--lora", "/a.gguf", "--lora-scaled", "/b.gguf:0.5,c.gguf:-1", "--seed", "7", "--rope-scale=2"]
    found = {str(path) for path in named_files(extra)}
    assert {"/a.gguf", "/b.gguf", "c.gguf"} <= found
    assert not any(one.startswith("-") for one in found)


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
