"""Conversations that name themselves find their prompt again, also where many share a long beginning (patch 0004)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support import Garra

SYSTEM = " ".join(f"Rule {n}: answer in the way of rule {n + 1}." for n in range(60))
TALK = " ".join(f"Item {n} of my own list is number {n}." for n in range(50))


@pytest.fixture(scope="module")
def agents(demo_model: object) -> Iterator[Garra]:
    one = Garra().configure("[profiles.demo]\nslots = 2\ncontext = 8192\ncache_ram_mib = 512\n").up("demo")
    yield one
    one.close()


def turn(garra: Garra, session: str, text: str, **changes: Any) -> dict[str, int]:
    """One turn of a conversation; the engine's own count of it."""
    body = {
        "model": "demo",
        "messages": [
            {"role": "system", "content": SYSTEM + changes.pop("rules", "")},
            {"role": "user", "content": text},
        ],
        "max_tokens": 4,
        **changes,
    }
    headers = {"X-Claude-Code-Session-Id": session} if session else {}
    answer = httpx.post(f"{garra.url}/v1/chat/completions", json=body, headers=headers, timeout=180).json()
    timings: dict[str, int] = answer["timings"]
    return timings


def test_a_session_finds_its_slot_though_others_share_its_beginning(agents: Garra) -> None:
    first = turn(agents, "a", "mine " + TALK)
    assert first["cache_n"] < 50
    n_prompt = first["prompt_n"] + first["cache_n"]
    other = turn(agents, "b", "other " + TALK)
    assert other["cache_n"] > 0.4 * n_prompt, "the shared beginning was copied, not computed again"
    again = turn(agents, "a", "mine " + TALK + " And now?")
    assert again["prompt_n"] < 20, "nothing of it was lost"
    back = turn(agents, "b", "other " + TALK + " And now?")
    assert back["prompt_n"] < 20


def test_a_third_session_costs_the_two_others_nothing_that_is_not_saved(agents: Garra) -> None:
    for session in ("a", "b"):
        turn(agents, session, f"{session} " + TALK)
    turn(agents, "c", "third " + TALK)
    for session in ("a", "b"):
        assert turn(agents, session, f"{session} " + TALK + " And now?")["prompt_n"] < 40


def test_a_nameless_request_takes_no_sessions_prompt(agents: Garra) -> None:
    turn(agents, "a", "mine " + TALK)
    turn(agents, "b", "other " + TALK)
    turn(agents, "", "nobody's " + TALK)
    assert turn(agents, "a", "mine " + TALK + " And now?")["prompt_n"] < 40


def test_claude_codes_api_is_steered_as_well(agents: Garra) -> None:
    def ask(session: str, text: str) -> int:
        body = {"model": "demo", "system": SYSTEM, "max_tokens": 2, "messages": [{"role": "user", "content": text}]}
        headers = {"X-Claude-Code-Session-Id": session}
        answer = httpx.post(f"{agents.url}/v1/messages", json=body, headers=headers, timeout=180).json()
        return int(answer["usage"]["input_tokens"])

    ask("m1", "mine " + TALK)
    ask("m2", "other " + TALK)
    assert ask("m1", "mine " + TALK + " And now?") < 40


def test_without_the_switch_a_session_loses_its_slot(demo_model: object) -> None:
    """What this is about: the control of the tests above."""
    garra = Garra().configure("[profiles.demo]\nslots = 2\ncontext = 8192\nmend = { sessions = false }\n").up("demo")
    try:
        turn(garra, "a", "mine " + TALK)
        turn(garra, "b", "other " + TALK)
        assert turn(garra, "a", "mine " + TALK + " And now?")["prompt_n"] > 200
    finally:
        garra.close()
