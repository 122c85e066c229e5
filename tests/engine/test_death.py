"""Engines and garras that are killed: what clients see, what is left, and what comes back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from pathlib import Path

import httpx
import openai
import psutil
import pytest

from tests.support import Garra, alive, eventually

LONG = {
    "model": "demo",
    "stream": True,
    "max_tokens": 4000,
    "ignore_eos": True,
    "messages": [{"role": "user", "content": "Tell me a long story."}],
}


def test_an_engine_killed_mid_stream_ends_in_an_error_event_and_comes_back(garra: Garra) -> None:
    garra.up("demo")
    pid = garra.engine_pid()
    lines: list[str] = []
    with (
        httpx.Client(base_url=garra.url, timeout=180) as client,
        client.stream("POST", "/v1/chat/completions", json=LONG) as reply,
        pytest.raises(httpx.RemoteProtocolError, match="incomplete"),
    ):
        for line in reply.iter_lines():
            lines.append(line)
            if len(lines) == 20:
                os.kill(pid, signal.SIGKILL)
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert "[DONE]" not in events
    error = json.loads(events[-1])["error"]
    assert error["code"] == "engine_died"
    assert "ended by SIGKILL" in error["message"]
    for event in events[:-1]:
        assert json.loads(event)["choices"], "only whole events reach a client"
    eventually(garra.ready)
    assert garra.engine_pid() != pid
    assert garra.engine()["restarts"] == 1
    assert garra.engine()["leases"] == 0


def test_the_sdk_raises_when_the_engine_dies(garra: Garra) -> None:
    garra.up("demo")
    with openai.OpenAI(base_url=f"{garra.url}/v1", api_key="any", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": "Tell me a story."}],
            max_tokens=4000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        with pytest.raises(openai.APIError, match="ended by SIGKILL"):
            for number, _ in enumerate(stream):
                if number == 10:
                    os.kill(garra.engine_pid(), signal.SIGKILL)


def test_a_request_whose_engine_dies_before_it_answers_is_asked_once_more(garra: Garra) -> None:
    garra.up("demo")
    pid = garra.engine_pid()
    body = LONG | {"stream": False, "max_tokens": 100}
    reply: list[httpx.Response] = []
    asking = threading.Thread(
        target=lambda: reply.append(httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180))
    )
    asking.start()
    eventually(lambda: garra.engine()["leases"] and garra.busy_slots())
    os.kill(pid, signal.SIGKILL)
    asking.join()
    assert reply[0].status_code == 200
    assert reply[0].json()["usage"]["completion_tokens"] == 100
    report = garra.report("demo")
    assert (report["retries"], report["requests"]["died"], report["requests"]["complete"]) == (1, 1, 1)
    assert garra.engine_pid() != pid


def test_garra_killed_leaves_no_engine_and_the_next_start_is_clean(garra: Garra) -> None:
    garra.up("demo")
    engine, process = garra.engine_pid(), garra.process
    assert process is not None
    process.kill()
    process.wait()
    eventually(lambda: not alive(engine), within_s=2)
    assert list((garra.runtime / "engines").glob("*.sock")), "what a killed garra leaves behind"
    garra.up("demo")
    assert len(list((garra.runtime / "engines").glob("*.sock"))) == 1
    assert garra.stop() == 0
    assert not list((garra.runtime / "engines").iterdir())
    assert not (garra.runtime / "control.sock").exists()


def test_an_engine_without_a_tether_is_swept_at_the_next_start(garra: Garra, tmp_path: Path) -> None:
    path = os.pathsep.join(folder for folder in garra.env["PATH"].split(os.pathsep) if not _has_setpriv(folder))
    hidden = tmp_path / "bin"
    hidden.mkdir()
    for folder in garra.env["PATH"].split(os.pathsep):
        if _has_setpriv(folder):
            for program in Path(folder).iterdir():
                if program.name != "setpriv":
                    with contextlib.suppress(OSError):
                        (hidden / program.name).symlink_to(program)
    garra.env["PATH"] = f"{hidden}{os.pathsep}{path}"
    garra.up("demo")
    engine, process = garra.engine_pid(), garra.process
    assert process is not None
    process.kill()
    process.wait()
    assert alive(engine)
    garra.up("demo")
    assert not alive(engine)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(engine).wait(60)


def _has_setpriv(folder: str) -> bool:
    return (Path(folder) / "setpriv").exists()


def test_a_stream_is_drained_and_newcomers_are_refused_at_shutdown(garra: Garra) -> None:
    garra.configure("drain_s = 60").up("demo")
    url = garra.url
    body = LONG | {"max_tokens": 150}
    with (
        httpx.Client(base_url=url, timeout=180) as client,
        client.stream("POST", "/v1/chat/completions", json=body) as reply,
    ):
        lines = reply.iter_lines()
        for _ in range(5):
            next(lines)
        assert garra.process is not None
        garra.process.send_signal(signal.SIGTERM)
        eventually(lambda: "shutting down" in garra.said)
        refused = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=180)
        rest = [line for line in lines if line]
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
    assert rest[-1] == "data: [DONE]"
    assert garra.process.wait(30) == 0


def test_a_second_signal_stops_at_once(garra: Garra) -> None:
    garra.configure("drain_s = 600").up("demo")
    engine = garra.engine_pid()
    with (
        httpx.Client(base_url=garra.url, timeout=180) as client,
        client.stream("POST", "/v1/chat/completions", json=LONG) as reply,
    ):
        lines, rest = reply.iter_lines(), list[str]()
        next(lines)
        assert garra.process is not None
        garra.process.send_signal(signal.SIGINT)
        eventually(lambda: "draining" in garra.said)
        garra.process.send_signal(signal.SIGINT)
        garra.process.wait(60)
        with contextlib.suppress(httpx.RemoteProtocolError):
            rest.extend(lines)
    assert "data: [DONE]" not in rest, "the answer was cut, not waited for"
    assert not alive(engine)
