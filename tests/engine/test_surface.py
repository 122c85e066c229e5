"""Every kind of work through real SDKs: tools, schemas, usage, embeddings, scores; a template that rejects things.

The models are noise: what they say is nonsense, but forced tools and schemas bind them all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import ollama
import openai
import pydantic
import pytest

from garra.engine import smoke
from tests import shapes
from tests.support import Garra
from tests.tiny_gguf import write

PICKY = """{%- if tools %}<|im_start|>system
You may call these: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as {"name": NAME, "arguments": {...}}<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System comes first.') }}{% endif -%}
{%- if m.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('Unknown role.') }}{% endif -%}
<|im_start|>{{ m.role }}
{{ m.content }}
{%- for call in m.tool_calls or [] %}
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
{%- endfor %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at a thing.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["n"],
        },
    },
}
BRACE: Any = {"logit_bias": [["{", 60]]}
"""Makes noise begin with what every call begins with; the rest the grammar sees to."""
USER: Any = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def served(engine_build: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Garra]:
    """A chat model with tools and a picky template, one for embeddings, one for scores."""
    folder = tmp_path_factory.mktemp("models")
    picky = write(folder / "picky.gguf", shapes.qwen35(n_layer=4, kind="F32"), seed=3, template=PICKY)
    noise = smoke.write_noise_model(folder / "noise.gguf")
    one = Garra().configure(f"""
        [profiles.demo]
        model = "file:{picky}"
        context = 4096
        threads = 1
        sampling = {{ temperature = 0 }}
        [profiles.demo.variants.calling]
        defaults = {{ tool_choice = "required", logit_bias = [["{{", 60]] }}
        [profiles.plain]
        model = "file:{noise}"
        context = 512
        threads = 1
        [profiles.vectors]
        model = "file:{noise}"
        kind = "embedding"
        pooling = "mean"
        context = 512
        threads = 1
        [profiles.scores]
        model = "file:{noise}"
        kind = "rerank"
        context = 512
        threads = 1
    """)
    one.up("demo")
    for name in ("plain", "vectors", "scores"):
        one.run("load", name, check=True)
    yield one
    one.close()


@pytest.fixture
def client(served: Garra) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as one:
        yield one


def post(garra: Garra, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{garra.url}{path}", json={"model": "demo", **body}, timeout=180)


# -- tools


def test_a_tool_call_goes_there_and_back_with_openai(client: openai.OpenAI) -> None:
    ask: Any = {"model": "demo", "tools": [TOOL], "tool_choice": "required", "max_tokens": 200, "extra_body": BRACE}
    answer = client.chat.completions.create(messages=USER, **ask)
    call, *more = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason == "tool_calls"
    assert call.type == "function"
    assert call.function.name == "look"
    assert 0 <= json.loads(call.function.arguments)["n"] <= 9
    told: Any = [
        *USER,
        answer.choices[0].message.to_dict(),
        *({"role": "tool", "tool_call_id": one.id, "content": "a cat"} for one in (call, *more)),
    ]
    after = client.chat.completions.create(messages=told, model="demo", tools=[TOOL], max_tokens=4)  # type: ignore[list-item]
    assert after.usage is not None
    assert answer.usage is not None
    assert after.usage.prompt_tokens > answer.usage.prompt_tokens
    with client.chat.completions.stream(messages=USER, **ask) as stream:
        whole = stream.get_final_completion()
    assert (whole.choices[0].message.tool_calls or [])[0].function.name == "look"


def test_and_with_ollama(served: Garra) -> None:
    one = ollama.Client(host=served.url)
    try:
        told = one.chat("demo:calling", USER, tools=[TOOL])  # this API cannot force a call: a profile's variant can
        calls = told.message.tool_calls or []
        assert (calls[0].function.name, list(calls[0].function.arguments)) == ("look", ["n"])
        pieces = list(one.chat("demo:calling", USER, tools=[TOOL], stream=True))
        (again,) = [piece.message.tool_calls for piece in pieces if piece.message.tool_calls]
        assert again[0].function.name == "look", "whole calls, in one line"
        history = [*USER, told.message, {"role": "tool", "tool_name": "look", "content": "a cat"}]
        after = one.chat("demo", history, tools=[TOOL], options={"num_predict": 3})
        assert (after.prompt_eval_count or 0) > (told.prompt_eval_count or 0)
    finally:
        one._client.close()


def test_and_with_anthropic(served: Garra) -> None:
    tool: Any = {"name": "look", "input_schema": TOOL["function"]["parameters"]}  # type: ignore[index]
    with anthropic.Anthropic(base_url=served.url, api_key="any", max_retries=0) as one:
        answer = one.messages.create(
            model="demo", max_tokens=200, messages=USER, tools=[tool], tool_choice={"type": "any"}, extra_body=BRACE
        )
        use = next(block for block in answer.content if block.type == "tool_use")
        assert answer.stop_reason == "tool_use"
        assert (use.name, list(use.input)) == ("look", ["n"])
        with one.messages.stream(
            model="demo:calling",
            max_tokens=200,
            messages=USER,
            tools=[tool],
            tool_choice={"type": "tool", "name": "look"},
        ) as stream:
            final = stream.get_final_message()
        assert final.stop_reason == "tool_use"
        assert final.usage.output_tokens > 0
        count = one.messages.count_tokens(model="demo", messages=USER)
        assert count.input_tokens > 5


def test_tools_without_a_place_in_the_template_are_a_400(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="no place for tools") as refusal:
        client.chat.completions.create(model="plain", messages=USER, tools=[TOOL])  # type: ignore[list-item]
    assert refusal.value.code == "tools_not_supported"
    rows = {row["id"]: row for row in httpx.get(f"{client.base_url}models").json()["data"]}
    assert "tools" in rows["demo"]["capabilities"]
    assert "tools" not in rows["plain"]["capabilities"]


# -- schemas, usage, responses


class Answer(pydantic.BaseModel):
    n: int = pydantic.Field(ge=0, le=9)


def test_schemas_bind_on_every_api(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model="demo", messages=USER, response_format=Answer, max_tokens=60)
    assert chat.choices[0].message.parsed is not None
    parsed = client.responses.parse(model="demo", input="hi", text_format=Answer, max_output_tokens=60)
    assert isinstance(parsed.output_parsed, Answer)


def test_a_responses_stream_suits_the_sdks_helper(client: openai.OpenAI) -> None:
    with client.responses.stream(model="demo", input="hi", max_output_tokens=8) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.usage is not None
    assert final.usage.output_tokens == 8


def test_a_streamed_function_call_of_responses(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", **TOOL["function"]}  # type: ignore[dict-item]
    with client.responses.stream(
        model="demo", input="hi", tools=[tool], extra_body=BRACE, tool_choice="required"
    ) as stream:
        kinds = [event.type for event in stream]
        call = next(item for item in stream.get_final_response().output if item.type == "function_call")
    assert "response.function_call_arguments.done" in kinds
    assert list(json.loads(call.arguments)) == ["n"]


def test_usage_comes_with_a_stream_that_asks_for_it(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="demo", messages=USER, stream=True, stream_options={"include_usage": True}, max_tokens=24, logprobs=True
    )
    events = list(stream)
    assert events[-1].usage is not None
    assert events[-1].usage.completion_tokens == 24
    assert any(event.choices and event.choices[0].logprobs for event in events)


# -- a template that rejects conversations


def test_late_system_messages_are_merged_where_the_template_would_raise(served: Garra) -> None:
    late = [*USER, {"role": "system", "content": "be brief"}]
    reply = post(served, "/v1/chat/completions", messages=late, max_tokens=2)
    assert (reply.status_code, reply.headers["X-Garra-Mended"]) == (200, "system")
    claude = post(served, "/v1/messages", messages=late, max_tokens=2, system="a", stream=True)
    assert (claude.status_code, claude.headers["X-Garra-Mended"]) == (200, "system")
    codex = post(
        served, "/v1/responses", max_output_tokens=2, input=[{"role": "developer", "content": "a"}, *USER, late[1]]
    )
    assert codex.status_code == 200
    template = post(served, "/apply-template", messages=late).json()["prompt"]
    assert template.startswith("<|im_start|>system\nbe brief")
    assert 'garra_mended_total{profile="demo",what="system"}' in httpx.get(f"{served.url}/metrics").text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_what_the_template_rejects_is_a_400_that_says_why(served: Garra, path: str) -> None:
    before = served.report()["requests"].get("failed", 0)
    reply = post(served, path, messages=[{"role": "narrator", "content": "x"}], max_tokens=2)
    assert reply.status_code == 400, reply.text
    assert "Unknown role" in reply.json()["error"]["message"] or "role" in reply.json()["error"]["message"]
    assert served.report()["requests"].get("failed", 0) == before, "no sign of an engine that is ill"


# -- embeddings and scores


def test_embeddings(client: openai.OpenAI, served: Garra) -> None:
    told = client.embeddings.create(model="vectors", input=["one", "two"])
    assert [len(row.embedding) for row in told.data] == [64, 64]
    one = ollama.Client(host=served.url)
    try:
        assert len(one.embed("vectors", ["one", "two"]).embeddings) == 2
        assert one.embed("vectors", "one").embeddings[0] == pytest.approx(told.data[0].embedding, abs=1e-4)
        assert len(one.embeddings("vectors", "one").embedding) == 64
        long = "word " * 2000
        assert len(one.embed("vectors", long).embeddings[0]) == 64, "cut to what the model takes"
        with pytest.raises(ollama.ResponseError):
            one.embed("vectors", long, truncate=False)
    finally:
        one._client.close()
    with pytest.raises(openai.BadRequestError, match='kind "chat"'):
        client.embeddings.create(model="demo", input="x")
    with pytest.raises(openai.BadRequestError, match='kind "embedding"'):
        client.chat.completions.create(model="vectors", messages=USER)


def test_scores(served: Garra) -> None:
    for path in ("/v1/rerank", "/rerank"):
        reply = post(served, path, model="scores", query="a", documents=["b", "c"])
        assert [row["index"] for row in sorted(reply.json()["results"], key=lambda row: row["index"])] == [0, 1]


# -- the engine's state


def test_looks_take_no_slot_and_load_nothing(served: Garra) -> None:
    before = served.report()["requests"]
    assert httpx.get(f"{served.url}/props?model=demo").json()["total_slots"] == 2
    assert len(httpx.get(f"{served.url}/slots?model=demo").json()) == 2
    assert httpx.get(f"{served.url}/lora-adapters?model=demo").json() == []
    assert served.report()["requests"] == before
    cold = httpx.get(f"{served.url}/props?model=turbo_4b")
    assert cold.status_code == 503
    assert "not loaded" in cold.json()["error"]["message"]
    assert served.engine("turbo_4b")["phase"] == "cold"
    assert httpx.get(f"{served.url}/props?model=none").status_code == 404


def test_a_running_answer_can_be_steered(served: Garra) -> None:
    reply = post(served, "/v1/chat/completions/control", id="chatcmpl-none", action="reasoning_end")
    assert reply.json()["success"] is False
    assert post(served, "/v1/chat/completions/control", id="x", action="dance").status_code == 400


def test_models_tell_their_kind_and_context(served: Garra) -> None:
    rows = {row["id"]: row for row in httpx.get(f"{served.url}/v1/models").json()["data"]}
    assert {rows[name]["kind"] for name in ("demo", "vectors", "scores")} == {"chat", "embedding", "rerank"}
    assert rows["demo"]["meta"]["n_ctx"] == 4096
    assert Path(served.root).exists()
