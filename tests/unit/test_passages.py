"""Streams in other words: cut at any place, they come out the same."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from garra.apis.endings import is_whole
from garra.apis.errors import EngineRefused, error_body
from garra.apis.passages import EventPassage, MessagesPassage, ResponsesPassage
from garra.apis.routes import Api


def event(kind: str, **more: Any) -> bytes:
    return b"event: " + kind.encode() + b"\ndata: " + json.dumps({"type": kind, **more}).encode() + b"\n\n"


def events(said: bytes) -> list[dict[str, Any]]:
    found = []
    for block in said.decode().strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        data = json.loads(fields["data"])
        assert fields.get("event") == data["type"]
        found.append(data)
    return found


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": []}
CALL = {"id": "fc_1", "type": "function_call", "arguments": '{"a":1}', "name": "look", "call_id": "c"}
STREAM = b"".join([
    event("response.created", response={"id": "r", "object": "response", "status": "in_progress"}),
    event("response.in_progress", response={"id": "r", "object": "response", "status": "in_progress"}),
    event("response.output_item.added", item={"id": "rs_1", "type": "reasoning"}),
    event("response.reasoning_text.delta", item_id="rs_1", delta="hm"),
    event("response.reasoning_text.delta", item_id="rs_1", delta="m"),
    event("response.output_item.added", item=MESSAGE),
    event("response.content_part.added", item_id="msg_1", part={"type": "output_text", "text": ""}),
    event("response.output_text.delta", item_id="msg_1", delta="hi"),
    event("response.output_item.added", item=CALL),
    event("response.function_call_arguments.delta", item_id="fc_1", delta='{"a":1}'),
    event("response.output_item.done", item={"id": "rs_1", "type": "reasoning"}),
    event("response.output_text.done", item_id="msg_1", text="hi"),
    event("response.output_item.done", item=MESSAGE),
    event("response.output_item.done", item=CALL),
    event("response.completed", response={"id": "r", "model": "m", "usage": {"input_tokens": 1}}),
])  # fmt: skip


def through(passage: EventPassage, pieces: list[bytes]) -> bytes:
    return b"".join(passage.feed(piece) for piece in pieces) + passage.end()


def test_responses_get_their_numbers_and_fields() -> None:
    told = events(through(ResponsesPassage("demo"), [STREAM]))
    assert [one["sequence_number"] for one in told] == list(range(len(told)))
    first = told[0]["response"]
    assert (first["output"], first["tools"], first["model"], first["created_at"]) == ([], [], "demo", 0)
    places = {one["item_id"]: one["output_index"] for one in told if "item_id" in one}
    assert places == {"rs_1": 0, "msg_1": 1, "fc_1": 2}
    assert all(one["content_index"] == 0 for one in told if one["type"].startswith("response.output_text"))
    part = next(one["part"] for one in told if one["type"] == "response.content_part.added")
    assert part == {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    kinds = [one["type"] for one in told]
    closed = told[kinds.index("response.function_call_arguments.done")]
    assert (closed["arguments"], closed["output_index"]) == ('{"a":1}', 2)
    assert kinds.index("response.function_call_arguments.done") + 1 == len(kinds) - 2
    assert told[kinds.index("response.reasoning_text.done")]["text"] == "hmm"
    assert told[-1]["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 0}


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_where_it_is_cut_makes_no_difference(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in itertools.pairwise(borders)]
    assert through(ResponsesPassage("demo"), pieces) == through(ResponsesPassage("demo"), [STREAM])


def test_a_whole_response_is_filled_in_as_well() -> None:
    told = json.loads(ResponsesPassage("demo").whole(b'{"object":"response","id":"r","output":[1],"usage":{}}'))
    assert (told["output"], told["tools"], told["error"]) == ([1], [], None)
    assert ResponsesPassage("demo").whole(b"<html>") == b"<html>"


@pytest.mark.parametrize(
    ("passage", "name"), [(MessagesPassage(), b"event: error"), (ResponsesPassage("m"), b"event: response.failed")]
)
def test_an_error_inside_a_stream_has_the_shape_of_its_api(passage: EventPassage, name: bytes) -> None:
    bare = b'data: {"error":{"code":500,"message":"it broke","type":"server_error"}}\n\n'
    said = through(passage, [bare])
    assert said.startswith(name)
    assert b"it broke" in said


def test_what_is_no_error_of_anthropics_stream_is_passed_on_byte_by_byte() -> None:
    good = b'event: message_start\ndata: {"type":"message_start"}\n\n: ping\n\nevent: ping\ndata: {"type":"ping"}\n\n'
    assert through(MessagesPassage(), [good[:30], good[30:]]) == good
    assert through(ResponsesPassage("m"), [b": a comment\n\n"]) == b": a comment\n\n"


# -- how answers end


@pytest.mark.parametrize(
    ("api", "tail", "whole"),
    [
        (Api.CHAT, b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n', True),
        (Api.CHAT, b'data: {"choices":[{"finish_reason":null}]}\n\ndata: [DONE]\n\n', False),
        (Api.CHAT, b'data: {"error":{"message":"x"}}\n\n', True),
        (Api.TEXT, b'data: {"choices":[{"finish_reason": "length"}]}', True),
        (Api.MESSAGES, b'event: message_delta\ndata: {"type":"message_delta"}', False),
        (Api.MESSAGES, b'event: message_stop\ndata: {"type":"message_stop"}', True),
        (Api.RESPONSES, b'data: {"type":"response.completed"}', True),
        (Api.RESPONSES, b'data: {"type":"response.output_text.delta"}', False),
        (Api.ENGINE, b'data: {"content":"","stop":true}', True),
        (Api.OPENAI, b"anything", True),
    ],
)
def test_a_stream_must_say_why_it_ended(api: Api, tail: bytes, whole: bool) -> None:
    assert is_whole(tail, api) is whole


# -- what engines say of errors

TEMPLATE = (
    b'{"error":{"code":500,"message":"\\n------------\\nWhile executing CallExpression at line 85, column 32 in source:'
    b'\\n...\\nError: Jinja Exception: System message must be at the beginning.","type":"server_error"}}'
)


def test_a_templates_complaint_is_the_clients_affair() -> None:
    told = EngineRefused(500, TEMPLATE)
    assert (told.http_status, told.code, told.of_template) == (400, "template_error", True)
    assert told.what.endswith("System message must be at the beginning.")
    assert b"System message must" in error_body(told, Api.ENGINE)
    assert EngineRefused(500, TEMPLATE, template_errors=False).http_status == 500


def test_a_missing_field_is_no_fault_of_the_engine() -> None:
    told = EngineRefused(500, b'{"error":{"code":500,"message":"\'messages\' is required","type":"server_error"}}')
    assert (told.http_status, told.code) == (400, "invalid_request")
    assert EngineRefused(500, b'{"error":{"message":"CUDA error","type":"server_error"}}').http_status == 500


def test_a_prompt_too_long_is_told_in_each_apis_words() -> None:
    body = b'{"error":{"code":400,"message":"9000 tokens exceed the context of 8192",'
    body += b'"type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":8192}}'
    told = EngineRefused(400, body)
    openai = json.loads(error_body(told, Api.CHAT))["error"]
    assert (openai["code"], openai["n_ctx"]) == ("context_length_exceeded", 8192)
    anthropic = json.loads(error_body(told, Api.MESSAGES))["error"]
    assert anthropic["message"] == "prompt is too long: 9000 tokens > 8192 maximum"
    assert "9000" in json.loads(error_body(told, Api.OLLAMA))["error"]
    assert error_body(told, Api.ENGINE) == body


def test_other_engines_errors_are_read_too() -> None:
    assert EngineRefused(429, b'{"error":{"message":"slow","code":"rate_limited"}}').code == "rate_limited"
    assert EngineRefused(404, b'{"error":"no such model"}').what == "no such model"
    assert EngineRefused(502, b"<html>").what == "<html>"
