"""Ollama's words, there and back."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garra.apis import ollama_asks as asks
from garra.apis.ollama_answers import OllamaPassage
from garra.apis.ollama_lists import VERSION, Described, running, show, tag
from garra.downloads import DownloadState, DownloadStatus
from garra.errors import BadRequest
from garra.proxy.ollama_pull import progress, ref_of


def read(**asked: Any) -> asks.Asked:
    return asks.read(json.dumps({"model": "m", **asked}).encode())


USER = {"role": "user", "content": "hi"}

# -- requests


def test_a_chat_becomes_openais() -> None:
    made = asks.chat(
        read(
            messages=[USER],
            options={"temperature": 0.1, "num_predict": 7, "num_ctx": 99, "num_gpu": 1, "stop": ["x"]},
            format="json",
            think="high",
            tools=[{"type": "function"}],
        )
    )
    assert made.path == "/v1/chat/completions"
    assert made.body == {
        "messages": [USER],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.1,
        "stop": ["x"],
        "max_tokens": 7,
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": True},
        "reasoning_effort": "high",
        "tools": [{"type": "function"}],
    }
    assert asks.chat(read(messages=[USER], stream=False)).body == {"messages": [USER], "stream": False}
    schema = {"type": "object"}
    wanted = asks.chat(read(messages=[USER], format=schema, think=False, options={"num_predict": -2})).body
    assert wanted["response_format"]["json_schema"]["schema"] == schema
    assert wanted["chat_template_kwargs"] == {"enable_thinking": False}
    assert wanted["max_tokens"] == -1


def test_tool_calls_get_ids_and_what_tools_said_finds_its_call() -> None:
    calls = [{"function": {"name": name, "arguments": {"n": n}}} for n, name in enumerate(("look", "count"))]
    messages = asks.chat(
        read(
            messages=[
                {"role": "assistant", "content": "", "tool_calls": calls, "thinking": "hm"},
                {"role": "tool", "tool_name": "count", "content": "2"},
                {"role": "tool", "content": "seen"},
            ]
        )
    ).body["messages"]
    assert [call["id"] for call in messages[0]["tool_calls"]] == ["call_0", "call_1"]
    assert messages[0]["tool_calls"][1]["function"] == {"name": "count", "arguments": '{"n":1}'}
    assert messages[0]["reasoning_content"] == "hm"
    assert [one["tool_call_id"] for one in messages[1:]] == ["call_1", "call_0"]


def test_images_become_parts() -> None:
    content = asks.chat(read(messages=[{**USER, "images": ["/9j/abc", "iVBORx"]}])).body["messages"][0]["content"]
    assert content[0] == {"type": "text", "text": "hi"}
    assert [part["image_url"]["url"][:16] for part in content[1:]] == ["data:image/jpeg;", "data:image/png;b"]


def test_generations_take_three_ways() -> None:
    chat = asks.generate(read(prompt="p", system="s"))
    assert [one["role"] for one in chat.body["messages"]] == ["system", "user"]
    raw = asks.generate(read(prompt="p", raw=True, options={"num_predict": 3}))
    assert (raw.path, raw.body) == ("/completion", {"prompt": "p", "stream": True, "n_predict": 3})
    gap = asks.generate(read(prompt="a", suffix="b"))
    assert (gap.path, gap.body["input_prefix"], gap.body["input_suffix"]) == ("/infill", "a", "b")


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0),
        (-1, -1),
        (300, 300),
        ("5m", 300),
        ("1h30m", 5400),
        ("-1", -1),
        ("1.5s", 1.5),
        ("24h", 86400),
    ],
)
def test_durations_are_read_as_go_writes_them(given: Any, seconds: float | None) -> None:
    assert asks.keep_alive_s(given) == seconds


@pytest.mark.parametrize(
    "asked",
    [
        {"messages": "x"},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
        {"messages": [USER], "format": "xml"},
        {"messages": [USER], "think": "hard"},
        {"messages": [{**USER, "images": [5]}]},
    ],
)
def test_what_makes_no_sense_is_a_400(asked: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        asks.chat(read(**asked))


def test_odd_durations_and_missing_names_are_told() -> None:
    for odd in ("soon", "5x", ""):
        with pytest.raises(BadRequest):
            asks.keep_alive_s(odd)
    with pytest.raises(BadRequest, match="model is required"):
        asks.read(b"{}").named()
    assert asks.read(b'{"name":"old"}').named() == "old"


# -- answers


def passage(part: Any = "message") -> OllamaPassage:
    return OllamaPassage("m", part, now=lambda: "T", elapsed_ns=lambda: 9_000_000, load_ns=lambda: 1)


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"


def delta(**said: Any) -> dict[str, Any]:
    return {"choices": [{"delta": said, "finish_reason": None}]}


TIMINGS = {"cache_n": 2, "prompt_n": 3, "prompt_ms": 1.5, "predicted_n": 4, "predicted_ms": 2.5}
STREAM = sse(
    delta(role="assistant", content=None),
    delta(reasoning_content="hm"),
    delta(content="hé"),
    delta(tool_calls=[{"index": 0, "id": "c1", "function": {"name": "look", "arguments": '{"a"'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
    {"choices": [{"delta": {}, "finish_reason": "tool_calls"}], "timings": TIMINGS},
)


def lines(said: bytes) -> list[dict[str, Any]]:
    assert said.endswith(b"\n")
    assert b"\n\n" not in said
    return [json.loads(line) for line in said.splitlines()]


def through(one: OllamaPassage, *pieces: bytes) -> bytes:
    return b"".join(one.feed(piece) for piece in pieces) + one.end()


def test_a_stream_becomes_lines() -> None:
    told = lines(through(passage(), STREAM))
    assert told[0]["message"] == {"role": "assistant", "content": "", "thinking": "hm"}
    assert told[1]["message"] == {"role": "assistant", "content": "hé"}
    calls = told[2]["message"]["tool_calls"]
    assert calls == [{"id": "c1", "function": {"index": 0, "name": "look", "arguments": {"a": 1}}}]
    assert [one["done"] for one in told] == [False, False, False, True]
    assert told[3] == {
        "model": "m", "created_at": "T", "message": {"role": "assistant", "content": ""}, "done": True,
        "done_reason": "stop", "total_duration": 9_000_000, "load_duration": 1, "prompt_eval_count": 5,
        "prompt_eval_duration": 1_500_000, "eval_count": 4, "eval_duration": 2_500_000,
    }  # fmt: skip


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_a_stream_is_cut_makes_no_difference(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(borders)]
    assert through(passage(), *pieces) == through(passage(), STREAM)


def test_an_error_inside_a_stream_is_a_line_and_no_end() -> None:
    told = lines(through(passage(), sse(delta(content="a"), {"error": {"message": "it broke"}})))
    assert told[-1] == {"error": "it broke"}
    assert not any(one.get("done") for one in told)


def test_a_stream_without_an_end_is_not_ended() -> None:
    assert not any(one["done"] for one in lines(through(passage(), sse(delta(content="a")))))


def test_native_streams_and_whole_answers() -> None:
    native = sse(
        {"content": "a", "stop": False}, {"content": "", "stop": True, "stop_type": "limit", "timings": TIMINGS}
    )
    told = lines(through(passage("response"), native))
    assert [one["response"] for one in told] == ["a", ""]
    assert told[-1]["done_reason"] == "length"
    message = {
        "content": "x",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "no"}}],
    }
    whole = {
        "choices": [{"message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6},
    }
    one = json.loads(passage().whole(json.dumps(whole).encode()))
    assert (one["message"]["content"], one["message"]["thinking"], one["done"]) == ("x", "hm", True)
    assert one["message"]["tool_calls"][0]["function"]["arguments"] == {"": "no"}
    assert (one["prompt_eval_count"], one["eval_count"]) == (5, 6)
    assert "error" in json.loads(passage().whole(b"<html>"))


# -- lists

ONE = Described(
    "demo:latest",
    "llama",
    100,
    datetime(2026, 1, 2, tzinfo=UTC),
    "Q4_1",
    134_500_000,
    8192,
    576,
    ("completion", "insert"),
)


def test_strict_clients_find_every_field() -> None:
    row = tag(ONE)
    assert set(row) >= {"name", "model", "modified_at", "size", "digest", "details", "capabilities"}
    assert len(row["digest"]) == 64
    assert row["details"]["parameter_size"] == "134.5M"
    assert datetime.fromisoformat(row["modified_at"])
    up = running(ONE, vram_bytes=5, stays_s=60, now=datetime(2026, 1, 2, tzinfo=UTC))
    assert (up["expires_at"], up["size_vram"], up["context_length"]) == ("2026-01-02T00:01:00Z", 5, 8192)
    told = show(ONE)
    assert told["model_info"]["llama.context_length"] == 8192
    assert ".Suffix" in told["template"]
    assert told["parameters"].split() == ["num_ctx", "8192"]
    assert all(part.isdigit() for part in VERSION.split("."))


def test_downloads_are_told_in_ollamas_words() -> None:
    def status(state: DownloadState, **more: Any) -> DownloadStatus:
        return DownloadStatus("1", "hf:o/r:Q4", state, **more)

    (half,) = progress(status(DownloadState.RUNNING, done_bytes=5, total_bytes=10))
    assert half == {"status": "pulling r:Q4", "digest": "hf:o/r:Q4", "total": 10, "completed": 5}
    assert progress(status(DownloadState.DONE))[-1] == {"status": "success"}
    assert progress(status(DownloadState.FAILED, detail="no room")) == [{"error": "no room"}]
    assert ref_of("hf.co/o/r:Q4") == "hf:o/r:Q4"
    assert ref_of("demo") == "demo"
