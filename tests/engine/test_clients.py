"""The real OpenAI SDK against a real engine, and answers that are the engine's own."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.support import Garra

THINGS = (
    "rain bread foxes chess tea snow jazz maps bees iron ships moss kites salt owls glass rivers clocks pears stone"
)
PROMPTS = [f"Write one sentence about {thing}." for thing in THINGS.split()]


def client_of(served: Garra) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0)


def ask(prompt: str, *, stream: bool) -> dict[str, Any]:
    return {
        "model": "demo",
        "stream": stream,
        "temperature": 0,
        "max_tokens": 24,
        "cache_prompt": False,  # a prompt that shares a cached prefix is batched, and so rounded, differently
        "messages": [{"role": "user", "content": prompt}],
    }


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def content_of(events: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def test_20_answers_equal_the_engines_own_streamed_and_not(served: Garra) -> None:
    engine = httpx.Client(
        transport=httpx.HTTPTransport(uds=served.engine_socket()), base_url="http://engine", timeout=180
    )
    with engine, httpx.Client(base_url=served.url, timeout=180) as proxy:
        for prompt in PROMPTS:
            own = engine.post("/v1/chat/completions", json=ask(prompt, stream=False)).json()
            ours = proxy.post("/v1/chat/completions", json=ask(prompt, stream=False)).json()
            assert ours["choices"] == own["choices"]
            assert ours["usage"] == own["usage"]
            assert ours["timings"].keys() == own["timings"].keys()
            answer = own["choices"][0]["message"]["content"]
            assert answer
            own_events = events_of(engine.post("/v1/chat/completions", json=ask(prompt, stream=True)).text)
            reply = proxy.post("/v1/chat/completions", json=ask(prompt, stream=True))
            events = events_of(reply.text)
            assert content_of(own_events) == content_of(events) == answer
            assert [e["choices"] for e in events] == [e["choices"] for e in own_events]
            assert "timings" in events[-1]
            assert reply.headers["content-type"].startswith("text/event-stream")
            assert reply.headers["cache-control"] == "no-store"


def test_the_openai_sdk(served: Garra) -> None:
    with client_of(served) as client:
        assert [model.id for model in client.models.list()] == ["turbo_4b", "balanced_9b", "cpu_fallback", "demo"]
        assert client.models.retrieve("demo").id == "demo"
        reply = client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Say hello."}], max_tokens=16
        )
        assert reply.choices[0].message.content
        assert reply.usage is not None
        assert reply.usage.completion_tokens > 0
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Say hello."}],
            max_tokens=16,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert any(chunk.usage for chunk in chunks)
        plain = client.completions.create(model="demo", prompt="One, two,", max_tokens=4)
        assert plain.choices[0].text


async def test_the_async_openai_sdk(served: Garra) -> None:
    async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="demo", messages=[{"role": "user", "content": "Count to five."}], max_tokens=16, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "".join(pieces)


def test_errors_are_the_sdks_own(served: Garra) -> None:
    with client_of(served) as client:
        with pytest.raises(openai.NotFoundError, match="there are: turbo_4b, balanced_9b, cpu_fallback, demo"):
            client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.NotFoundError, match="garra pull turbo_4b"):
            client.chat.completions.create(model="turbo_4b", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-9")
        with pytest.raises(openai.BadRequestError, match="exceeds the available context size"):
            client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "1 " * 9000}])


def test_what_the_models_list_tells(served: Garra) -> None:
    demo = httpx.get(f"{served.url}/v1/models/demo").json()
    assert (demo["status"]["value"], demo["context_length"], demo["slots"]) == ("loaded", 8192, 2)
    turbo = httpx.get(f"{served.url}/v1/models/turbo_4b").json()
    assert turbo["status"]["value"] in ("not_downloaded", "unloaded")


def test_health_and_unknown_paths(served: Garra) -> None:
    assert httpx.get(f"{served.url}/health").json()["profiles"] == {"demo": "ready"}
    assert httpx.get(f"{served.url}/health?ready=1").status_code == 200
    gone = httpx.get(f"{served.url}/nope")
    assert gone.status_code == 404
    assert gone.json()["error"]["code"] == "not_found"


def test_a_foreign_page_has_no_effect(served: Garra) -> None:
    launched = served.n_launched()
    for headers in (
        {"Origin": "https://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Origin": "null"},
    ):
        body = json.dumps(ask("hi", stream=False))
        reply = httpx.post(
            f"{served.url}/v1/chat/completions", content=body, headers={"Content-Type": "text/plain", **headers}
        )
        assert reply.status_code == 403
        assert reply.json()["error"]["code"] == "forbidden"
    assert served.n_launched() == launched


def test_the_refusal_comes_before_the_body(served: Garra) -> None:
    with served.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n"
            b"Content-Type: text/plain\r\nContent-Length: 1000000\r\n\r\n"
        )
        assert connection.recv(200).startswith(b"HTTP/1.1 403")


def test_a_client_that_waits_for_100_continue_is_told(served: Garra) -> None:
    body = json.dumps(ask(PROMPTS[0], stream=False)).encode()
    with served.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        connection.sendall(body)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_body_past_the_limit_is_told(garra: Garra) -> None:
    garra.configure("body_limit_mib = 1").up("demo")
    reply = httpx.post(f"{garra.url}/v1/chat/completions", content=b" " * 2_000_000)
    assert reply.status_code == 413
    assert "body_limit_mib" in reply.json()["error"]["message"]


def test_http_1_0_clients_get_the_answer_without_chunks(served: Garra) -> None:
    body = json.dumps(ask(PROMPTS[0], stream=True)).encode()
    with served.connect() as connection:
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, payload = answer.partition(b"\r\n\r\n")
    assert b"chunked" not in head
    assert content_of(events_of(payload.decode()))
