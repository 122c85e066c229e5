"""An engine that is stuck is found out and replaced; one that only takes its time is left alone."""

from __future__ import annotations

import json
import os
import signal
import threading

import httpx
import pytest

from tests.engine.conftest import Make
from tests.support import Garra, eventually, words


def test_a_stopped_engine_is_replaced_and_its_client_told(garra: Garra) -> None:
    garra.configure("[profiles.demo]\nstall_s = 2\n").up("demo")
    pid = garra.engine_pid()
    body = {"model": "demo", "stream": True, "max_tokens": 4000, "messages": [{"role": "user", "content": "A story."}]}
    lines: list[str] = []
    with (
        httpx.Client(base_url=garra.url, timeout=180) as client,
        client.stream("POST", "/v1/chat/completions", json=body | {"ignore_eos": True}) as reply,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        for line in reply.iter_lines():
            lines.append(line)
            if len(lines) == 20:
                os.kill(pid, signal.SIGSTOP)
    error = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))["error"]
    assert "and does not answer" in error["message"]
    eventually(garra.ready)
    assert garra.engine_pid() != pid
    assert 'garra_engine_restarts_total{cause="stalled",profile="demo"} 1.0' in httpx.get(f"{garra.url}/metrics").text
    reply = httpx.post(f"{garra.url}/v1/chat/completions", json=body | {"stream": False, "max_tokens": 3}, timeout=180)
    assert reply.status_code == 200


def test_an_engine_whose_slots_do_not_move_is_replaced(stubbed: Make) -> None:
    garra = stubbed("stuck", "stall_s = 1").up("demo")
    pid = garra.engine_pid()
    body = {"model": "demo", "stream": True, "messages": []}
    with (
        httpx.Client(base_url=garra.url, timeout=180) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        text = "".join(reply.iter_lines())
        assert "its slots do not move" in text
    eventually(garra.ready)
    assert garra.engine_pid() != pid


def test_a_slow_prefill_is_left_alone(garra: Garra) -> None:
    """One batch of the whole prompt: no byte and no movement for many times `stall_s`."""
    garra.configure("[profiles.demo]\nstall_s = 1\nbatch = 2048\nubatch = 2048\n").up("demo")
    pid = garra.engine_pid()
    body = {"model": "demo", "stream": True, "max_tokens": 2, "messages": [{"role": "user", "content": words(500)}]}
    done = threading.Event()
    seen: list[int] = []

    def look() -> None:
        while not done.is_set():
            slots = garra.ask_engine("GET", "/slots")
            seen.append(max(slot.get("n_prompt_tokens_processed", 0) for slot in slots))
            done.wait(0.5)

    looking = threading.Thread(target=look)
    looking.start()
    reply = httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=120)
    done.set()
    looking.join()
    assert reply.text.endswith("data: [DONE]\n\n")
    assert len(seen) >= 8, "it took at least four seconds"
    assert garra.engine_pid() == pid
    assert garra.engine()["restarts"] == 0


def test_a_long_answer_without_a_stream_is_left_alone(garra: Garra) -> None:
    """No byte before the end, but the slots move with every token."""
    garra.configure("[profiles.demo]\nstall_s = 1\n").up("demo")
    pid = garra.engine_pid()
    body = {"model": "demo", "max_tokens": 600, "messages": [{"role": "user", "content": "A story."}]}
    reply = httpx.post(f"{garra.url}/v1/chat/completions", json=body | {"ignore_eos": True}, timeout=120)
    assert reply.json()["usage"]["completion_tokens"] == 600
    assert garra.engine_pid() == pid
    assert garra.engine()["restarts"] == 0
