"""Ollama's own SDK against the demo model, and what its strictest clients look for."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import httpx
import ollama
import pytest

from tests.engine.conftest import Make
from tests.support import Garra, eventually

HI = [{"role": "user", "content": "Say hi."}]
FEW = {"num_predict": 8, "temperature": 0}


@contextlib.contextmanager
def client_of(garra: Garra) -> Iterator[ollama.Client]:
    one = ollama.Client(host=garra.url)
    try:
        yield one
    finally:
        one._client.close()


@pytest.fixture
def client(served: Garra) -> Iterator[ollama.Client]:
    with client_of(served) as one:
        yield one


def test_a_chat_streamed_and_whole(client: ollama.Client) -> None:
    whole = client.chat("demo", HI, options=FEW)
    assert whole.done
    assert whole.done_reason == "length"
    assert (whole.eval_count, whole.message.role) == (8, "assistant")
    assert (whole.prompt_eval_count or 0) > 10
    assert (whole.total_duration or 0) >= (whole.eval_duration or 0) > 0
    pieces = list(client.chat("demo:latest", HI, options=FEW, stream=True))
    assert [one.done for one in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(one.message.content or "" for one in pieces) == whole.message.content


def test_generations(client: ollama.Client) -> None:
    raw = client.generate("demo", "One, two, three,", raw=True, options=FEW)
    assert raw.response
    asked = client.generate("demo", "Say hi.", system="Be brief.", options=FEW)
    assert asked.response
    assert (asked.prompt_eval_count or 0) > (raw.prompt_eval_count or 0), "the template is around it"
    with pytest.raises(ollama.ResponseError, match="does not support insert") as refusal:
        client.generate("demo", "a", suffix="b")
    assert refusal.value.status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_how_likely_each_token_was(client: ollama.Client, stream: bool) -> None:
    for chatted in (True, False):
        more: dict[str, Any] = {"options": FEW, "logprobs": True, "top_logprobs": 2, "stream": stream}
        ask = client.chat("demo", HI, **more) if chatted else client.generate("demo", "One,", raw=True, **more)
        answers = list(ask) if stream else [ask]
        told = [token for answer in answers for token in answer.logprobs or []]
        text = "".join((answer.message.content if chatted else answer.response) or "" for answer in answers)
        assert "".join(token.token for token in told) == text
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in told)


def test_a_schema_is_kept_to(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}, "required": ["n"]}
    told = client.chat("demo", HI, format=schema, options={"num_predict": 60})
    assert isinstance(json.loads(told.message.content or "")["n"], int)


def test_what_there_is(client: ollama.Client, served: Garra) -> None:
    (demo,) = client.list().models
    assert (demo.model, demo.details.quantization_level if demo.details else None) == ("demo:latest", "Q4_1")
    shown = client.show("demo")
    assert shown.modelinfo is not None
    assert shown.modelinfo["llama.context_length"] == served.engine()["slot_context"]
    (up,) = client.ps().models
    assert up.expires_at is not None
    assert httpx.get(f"{served.url}/api/version").json()["version"].count(".") == 2
    assert httpx.get(served.url).text == "Ollama is running"
    assert httpx.head(served.url).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "said"),
    [
        ("POST", "chat", 404, "no profile is called"),
        ("POST", "create", 501, "garra import"),
        ("POST", "push", 501, "publishes no models"),
        ("HEAD", "blobs/sha256:1", 501, ""),
        ("DELETE", "delete", 403, "administrator"),
        ("POST", "nothing", 404, "there is no POST"),
        ("GET", "chat", 404, "there is no GET"),
    ],
)
def test_errors_are_texts(served: Garra, method: str, path: str, status: int, said: str) -> None:
    reply = httpx.request(method, f"{served.url}/api/{path}", json={"model": "none", "messages": HI})
    assert reply.status_code == status
    if said:
        assert said in reply.json()["error"]


def test_a_larger_context_is_told_not_loaded(served: Garra) -> None:
    pid = served.engine_pid()
    body = {"model": "demo", "messages": HI, "stream": False, "options": {"num_ctx": 100_000, "num_predict": 1}}
    reply = httpx.post(f"{served.url}/api/chat", json=body, timeout=180)
    assert reply.headers["X-Garra-Context"] == "8192 of 100000 asked for"
    smaller = httpx.post(
        f"{served.url}/api/chat", json=body | {"options": {"num_ctx": 512, "num_predict": 1}}, timeout=180
    )
    assert "X-Garra-Context" not in smaller.headers
    assert served.engine_pid() == pid


def test_load_unload_and_keep_alive(stubbed: Make) -> None:
    garra = stubbed("late", "min_resident_s = 0\nidle_ttl_s = 600").up("demo")
    with client_of(garra) as client:
        assert client.generate("demo", keep_alive=0).done_reason == "unload"
        eventually(lambda: garra.engine()["phase"] == "cold")
        assert client.generate("demo").done_reason == "load"
        assert garra.engine()["phase"] == "ready"
        list(client.chat("demo", HI, keep_alive="5m", stream=True))
        assert 250 < garra.engine()["stays_s"] <= 300
        list(client.chat("demo", HI, keep_alive=-1, stream=True))
        assert 500 < garra.engine()["stays_s"] <= 600, "the profile's own limit stands"
        list(client.chat("demo", HI, keep_alive=0, stream=True))
    eventually(lambda: garra.engine()["phase"] == "cold")
    assert garra.engine()["cause"] == "idle"


def test_an_engine_that_dies_in_the_middle_is_an_error_to_the_sdk(stubbed: Make) -> None:
    garra = stubbed("cut").up("demo")
    with client_of(garra) as client, pytest.raises(ollama.ResponseError, match="died while it answered"):
        list(client.chat("demo", HI, stream=True))
