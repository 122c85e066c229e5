"""A conversation too long for its slot loses its middle, never its head or its end."""

from __future__ import annotations

import json
from typing import Any

import pytest

from garra.proxy.overflow import Excess, excess_of, shortened

REFUSAL = (
    b'{"error":{"code":400,"message":"request (3078 tokens) exceeds the available context size (512 tokens)",'
    b'"type":"exceed_context_size_error","n_prompt_tokens":3078,"n_ctx":512}}'
)


def said(role: str, text: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": text, **more}


def body(messages: list[dict[str, Any]], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "temperature": 0.25, **more}).encode()


def tokens(text: bytes) -> int:
    return len(text) // 4


def fit(messages: list[dict[str, Any]], n_ctx: int, **more: Any) -> list[dict[str, Any]]:
    """What is left once it fits, as the proxy does it: again while the engine refuses."""
    asked = body(messages, **more)
    for _ in range(4):
        n = tokens(asked)
        if n <= n_ctx:
            told = json.loads(asked)
            assert told["temperature"] == 0.25
            kept: list[dict[str, Any]] = told["messages"]
            return kept
        shorter = shortened(asked, Excess(n, n_ctx))
        assert shorter is not None
        asked = shorter.body
    raise AssertionError("still too long")


def test_the_engines_refusal_is_understood() -> None:
    assert excess_of(REFUSAL) == Excess(3078, 512)
    assert excess_of(b'{"error":{"type":"invalid_request_error","message":"x"}}') is None
    assert excess_of(b"<html>") is None


def test_the_oldest_turns_go_the_system_message_and_the_last_ones_stay() -> None:
    turns = [said(role, f"{n} {role} " + "x" * 400) for n in range(20) for role in ("user", "assistant")]
    kept = fit([said("system", "Be brief."), *turns, said("user", "And now?")], 1000)
    assert kept[0]["content"] == "Be brief."
    assert kept[-1]["content"] == "And now?"
    assert kept[1]["role"] == "user"
    assert kept[1:-1] == turns[-len(kept) + 2 :]
    assert 2 < len(kept) < 20


def test_a_tools_result_goes_with_its_call() -> None:
    turn = [
        said("user", "look " + "x" * 300),
        said("assistant", "", tool_calls=[{"id": "1", "function": {"name": "f", "arguments": "{}"}}]),
        said("tool", "y" * 300, tool_call_id="1"),
        said("assistant", "done"),
    ]
    kept = fit([said("system", "s"), *turn * 8, said("user", "last")], 500)
    assert kept[1]["role"] == "user"
    calls = sum(bool(one.get("tool_calls")) for one in kept)
    assert calls == sum(one["role"] == "tool" for one in kept)


def test_one_message_too_long_for_all_of_it_loses_its_middle() -> None:
    text = "BEGIN " + "middle " * 2000 + "END"
    (kept,) = fit([said("user", text)], 800)
    assert kept["content"].startswith("BEGIN")
    assert kept["content"].endswith("END")
    assert "characters left out" in kept["content"]


def test_room_is_left_for_the_answer() -> None:
    turns = [said(role, "x" * 200) for _ in range(40) for role in ("user", "assistant")]
    roomy = shortened(body(turns, max_tokens=250), Excess(3000, 1000))
    tight = shortened(body(turns, max_tokens=10), Excess(3000, 1000))
    assert roomy is not None
    assert tight is not None
    assert len(roomy.body) < len(tight.body)


@pytest.mark.parametrize(
    "asked",
    [
        b"not json",
        b'{"model":"m","prompt":"no chat"}',
        b'{"model":"m","messages":"no list"}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":["no object"]}',
        body([said("system", "only " * 1000)]),
        body([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x" * 9000}}]}]),
    ],
)
def test_what_cannot_be_shortened_is_left_to_the_engines_refusal(asked: bytes) -> None:
    assert shortened(asked, Excess(3000, 500)) is None
