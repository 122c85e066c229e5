"""What a real engine will not do on demand, through a whole garra."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.engine.conftest import Make
from tests.support import Garra, alive, eventually


def ask(garra: Garra, *, stream: bool = False) -> httpx.Response:
    body = {"model": "demo", "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    return httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180)


def test_a_child_that_ignores_term_is_killed_and_reaped(stubbed: Make) -> None:
    garra = stubbed("ignore_term").up("demo")
    assert ask(garra).json()["choices"][0]["message"]["content"] == "stub"
    engine = garra.engine_pid()
    assert garra.stop() == 0
    assert not alive(engine)
    assert not list((garra.runtime / "engines").iterdir())


def test_a_child_that_exits_at_once_opens_the_breaker_and_is_told(stubbed: Make) -> None:
    garra = stubbed("exit3").start("demo")
    assert garra.process is not None
    assert garra.process.wait(60) == 6
    assert "the stub wants to exit (exit status 3)" in garra.said
    assert garra.said.count("backoff (start_failed)") == 4


def test_a_child_that_never_listens_is_given_up(stubbed: Make) -> None:
    garra = stubbed("deaf").start("demo")
    eventually(lambda: "no progress for 2 s while loading" in garra.said)
    garra.stop()


def test_a_child_that_is_not_what_was_planned_is_refused(stubbed: Make) -> None:
    garra = stubbed("slots").start("demo")
    eventually(lambda: "planned 2 slots, the engine has 3" in garra.said)
    garra.stop()


def test_a_flooded_log_costs_neither_memory_nor_disk(stubbed: Make) -> None:
    garra = stubbed("flood").up("demo")
    logs = Path(garra.env["XDG_STATE_HOME"]) / "garra" / "logs"
    eventually((logs / "demo.log.1").exists)
    assert ask(garra).status_code == 200
    assert sum(path.stat().st_size for path in logs.iterdir()) < 20_000_000


def test_bytes_that_are_not_http_are_a_502(stubbed: Make) -> None:
    reply = ask(stubbed("garbage").up("demo"))
    assert reply.status_code == 502
    assert "not an HTTP status line" in reply.json()["error"]["message"]


def test_half_an_event_never_reaches_the_client(stubbed: Make) -> None:
    garra = stubbed("cut").up("demo")
    body = {"model": "demo", "stream": True, "messages": []}
    lines: list[str] = []
    with (
        httpx.stream("POST", f"{garra.url}/v1/chat/completions", json=body, timeout=180) as reply,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        lines.extend(reply.iter_lines())
    with httpx.stream("POST", f"{garra.url}/v1/chat/completions", json=body, timeout=180) as reply:
        seen = [line for line in _until_cut(reply) if line]
    assert seen[0] == 'data: {"choices":[]}'
    assert json.loads(seen[1].removeprefix("data: "))["error"]["code"] == "engine_died"
    assert len(seen) == 2


def _until_cut(reply: httpx.Response) -> Iterator[str]:
    try:
        yield from reply.iter_lines()
    except httpx.RemoteProtocolError:
        return
