"""Where garra itself speaks to clients: in the words of each API."""

from __future__ import annotations

import json

import pytest

from garra.apis.endings import usage_of
from garra.apis.errors import EngineRefused, error_body, error_event
from garra.apis.routes import Api
from garra.apis.signs import comment, heartbeat
from garra.errors import BadRequest, QueueFull
from garra.proxy.route import fingerprint, wish_of
from garra.spec import Phase
from garra.traffic import ClientKey, Priority, Usage, WaitNews

FULL = QueueFull("128 requests wait already", fix="try again in 6 s", retry_after_s=6)


@pytest.mark.parametrize("api", list(Api))
def test_an_error_has_the_shape_of_its_api(api: Api) -> None:
    body = json.loads(error_body(FULL, api))
    if api is Api.MESSAGES:
        assert body["type"] == "error"
        assert body["error"]["type"] == "rate_limit_error"
    elif api is Api.ENGINE:
        assert body["error"]["code"] == 429
    elif api is Api.OLLAMA:
        body = {"error": {"message": body["error"]}}
    else:
        assert body["error"]["code"] == "queue_full"
    assert body["error"]["message"].endswith("Fix: try again in 6 s")


def test_lines_of_ollama_are_whole_lines() -> None:
    for text in (error_event(FULL, Api.OLLAMA), heartbeat(Api.OLLAMA, "demo")):
        assert text.count(b"\n") == 1, "no blank lines: its clients cannot read them"
        assert json.loads(text)
    assert comment(WaitNews(3, Phase.READY), Api.OLLAMA) == b""


@pytest.mark.parametrize("api", [api for api in Api if api is not Api.OLLAMA])
def test_events_are_whole_events(api: Api) -> None:
    for text in (error_event(FULL, api), heartbeat(api, "demo")):
        assert text.endswith(b"\n\n")
        for event in text.decode().strip().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in event.splitlines())
            assert json.loads(fields["data"])
    names = [line for line in error_event(FULL, api).decode().splitlines() if line.startswith("event: ")]
    assert names == {Api.MESSAGES: ["event: error"], Api.RESPONSES: ["event: response.failed"]}.get(api, [])


def test_comments_tell_position_and_progress() -> None:
    assert comment(WaitNews(3, Phase.READY)) == b": garra queued position=3\n\n"
    assert comment(WaitNews(1, Phase.LOADING, 0.421)) == b": garra loading progress=0.42 position=1\n\n"
    assert comment(WaitNews(0, Phase.READY)) == b": garra prefill\n\n"


def test_usage_is_read_from_the_end_of_an_answer() -> None:
    timings = (
        b'"timings":{"cache_n":31,"prompt_n":37,"prompt_ms":145.6,"prompt_per_second":254.1,"predicted_n":27,"x":1}'
    )
    stream = (
        b'data: {"choices":[{"delta":{"content":"\\"predicted_n\\":99"}}]}\n\ndata: {' + timings + b"}\n\ndata: [DONE]"
    )
    assert usage_of(stream) == Usage(37, 27, 145.6, 0.0, 31)
    assert usage_of(b'{"usage":{"completion_tokens":5,"prompt_tokens":8,"total_tokens":13}}') == Usage(5, 8, 0.0)
    told = usage_of(b'{"usage":{"input_tokens":8,"output_tokens":5}}')
    assert told is not None
    assert told.tokens == 13
    assert usage_of(b'{"error":"none of it"}') is None
    assert usage_of(b"") is None


def test_a_late_refusal_of_the_engine_keeps_its_words() -> None:
    told = EngineRefused(400, b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}')
    assert (told.what, told.http_status) == ("too long", 400)
    assert EngineRefused(500, b"<html>").what == "<html>"


def wish(headers: dict[str, str], key: ClientKey | None = None) -> tuple[str, str, Priority]:
    made = wish_of("demo", headers, "10.0.0.7", 4000, key, Priority.NORMAL)
    assert made.tokens == 4000 / 4 + 256
    return made.client, made.share, made.priority


def test_a_client_is_its_key_else_its_address() -> None:
    key = ClientKey("ci", Priority.BATCH)
    assert wish({}) == ("10.0.0.7", "", Priority.NORMAL)
    assert wish({}, key) == ("key ci", "", Priority.BATCH)
    assert wish({"X-Garra-Client": "a" * 99}, key) == ("key ci", "a" * 64, Priority.BATCH)


def test_a_class_is_asked_for_and_capped() -> None:
    assert wish({"X-Garra-Priority": "interactive"})[2] is Priority.NORMAL
    assert wish({"X-Garra-Priority": "Batch"})[2] is Priority.BATCH
    with pytest.raises(BadRequest, match="is no class"):
        wish({"X-Garra-Priority": "now"})


def test_fingerprints_differ_by_path_and_body() -> None:
    prints = {fingerprint("/a", b"x"), fingerprint("/a", b"y"), fingerprint("/ax", b""), fingerprint("/b", b"x")}
    assert len(prints) == 4
    assert fingerprint("/a", b"x") == fingerprint("/a", b"x")
