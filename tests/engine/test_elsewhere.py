"""Profiles of other servers, and profiles that stand in for each other."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter
from pathlib import Path

import httpx
import openai
import pytest

from tests.engine.conftest import Make
from tests.support import Garra, eventually

HI = [{"role": "user", "content": "hi"}]


def remote(url: str, *more: str) -> str:
    lines = ('backend = "openai"', f'url = "{url}/v1"', 'remote_model = "demo"', *more)
    return "\n[profiles.far]\n" + "\n".join(lines) + "\n"


@pytest.fixture
def far(stubbed: Make) -> Garra:
    """Another garra, that wants a key."""
    garra = stubbed("late", "slots = 4")
    key = json.loads(garra.run("keys", "create", "near", "--json", check=True).stdout)["key"]
    garra.env["KEY_OF_FAR"] = key
    return garra.up("demo")


def near_of(far: Garra, *more: str) -> Garra:
    near = Garra(data=Path(far.env["XDG_DATA_HOME"]), STUB="late", KEY_OF_FAR=far.env["KEY_OF_FAR"])
    model = Path(far.env["XDG_DATA_HOME"]) / "noise.gguf"
    own = f'[profiles.demo]\nmodel = "file:{model}"\ncontext = 512\n'
    return near.configure(own + remote(far.url, 'key_env = "KEY_OF_FAR"', *more))


def test_another_server_is_one_more_profile(far: Garra) -> None:
    near = near_of(far, "slots = 2", "queue_timeout_s = 30")
    try:
        near.up("far")
        with openai.OpenAI(base_url=f"{near.url}/v1", api_key="any", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="far", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            text = "".join(event.choices[0].delta.content or "" for event in stream)
        assert text == "x" * 10
        status = near.engine("far")
        assert (status["phase"], status["slots"], status["pid"]) == ("ready", 2, 0)
        eventually(lambda: near.report("far")["requests"].get("complete") == 1)
        eventually(lambda: far.report()["requests"].get("complete") == 1)
        said = httpx.get(f"{near.url}/metrics").text
        assert 'garra_requests_total{outcome="complete",profile="far"} 1.0' in said
        assert far.env["KEY_OF_FAR"] not in near.said + near.run("config", "show").stdout
    finally:
        near.close()


def test_its_queue_is_ours(far: Garra) -> None:
    """Two slots there as here: what is more waits with us."""
    near = near_of(far, "slots = 2")

    async def crowd() -> list[int]:
        async with httpx.AsyncClient(base_url=near.url, timeout=180) as http:
            body = {"model": "far", "messages": HI, "stream": True}
            replies = await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for _ in range(8)))
        return [reply.text.count("[DONE]") for reply in replies]

    try:
        near.up("far")
        assert asyncio.run(crowd()) == [1] * 8
        waits = httpx.get(f"{near.url}/metrics").text
        assert 'garra_request_queue_time_seconds_count{profile="far"} 8' in waits
    finally:
        near.close()


def test_a_server_that_goes_away_is_down_and_comes_back(far: Garra) -> None:
    near = near_of(far)
    try:
        near.up("far")
        port = int(far.url.rpartition(":")[2])
        far.stop()
        eventually(lambda: near.engine("far")["phase"] in ("backoff", "failed", "loading"))
        far.process = None
        far.start("demo", port=port)
        eventually(lambda: near.run("load", "far").returncode == 0)
        reply = httpx.post(f"{near.url}/v1/chat/completions", json={"model": "far", "messages": HI, "stream": True})
        assert "[DONE]" in reply.text
    finally:
        near.close()


def test_without_its_key_it_is_not_started(far: Garra) -> None:
    near = near_of(far)
    del near.env["KEY_OF_FAR"]
    try:
        near.up("demo")
        refused = near.run("load", "far")
        assert refused.returncode == 6
        assert "KEY_OF_FAR" in refused.stderr
    finally:
        near.close()


# -- fallbacks


def ask(garra: Garra, **more: object) -> httpx.Response:
    body = {"model": "demo", "messages": HI, "stream": True} | more
    return httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180)


def test_a_full_queue_goes_to_the_fallback(stubbed: Make) -> None:
    settings = 'slots = 1\nmax_queue = 1\nfallback = ["other"]\n'
    garra = stubbed("late", settings).up("demo")
    assert garra.run("load", "other").returncode == 0

    async def crowd() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=garra.url, timeout=180) as http:
            body = {"model": "demo", "messages": HI, "stream": True}
            return list(await asyncio.gather(*(http.post("/v1/chat/completions", json=body) for _ in range(6))))

    replies = asyncio.run(crowd())
    assert all("[DONE]" in reply.text for reply in replies)
    served = Counter(reply.headers["X-Garra-Profile"] for reply in replies)
    assert served["other"] >= 2
    assert served["demo"] >= 2


def test_without_a_fallback_nothing_is_said_of_profiles(stubbed: Make) -> None:
    garra = stubbed("late").up("demo")
    assert "X-Garra-Profile" not in ask(garra).headers


def test_the_primary_is_killed_under_load(stubbed: Make, tmp_path: Path) -> None:
    """Whoever had seen no byte gets an answer from the fallback; nobody's request is answered twice."""
    ledger = tmp_path / "ledger.txt"
    garra = stubbed("ledger", 'slots = 4\nfallback = ["other"]\n', LEDGER=str(ledger)).up("demo")
    assert garra.run("load", "other").returncode == 0

    async def crowd() -> list[tuple[str, httpx.Response | None]]:
        async with httpx.AsyncClient(
            base_url=garra.url, timeout=180, limits=httpx.Limits(max_connections=None)
        ) as http:

            async def one(n: int) -> tuple[str, httpx.Response | None]:
                await asyncio.sleep(n * 0.02)
                body = {"model": "demo", "messages": HI, "stream": True, "user": f"u{n}"}
                try:
                    return f"u{n}", await http.post("/v1/chat/completions", json=body)
                except httpx.RemoteProtocolError:  # cut in the middle of its answer
                    return f"u{n}", None

            async def kill() -> None:
                for _ in range(3):
                    await asyncio.sleep(0.35)
                    files = [one for one in garra.engine_files() if "demo-" in one["socket"]]
                    for file in files:
                        with contextlib.suppress(ProcessLookupError):  # killed a moment ago
                            os.kill(file["pid"], signal.SIGKILL)

            *replies, _ = await asyncio.gather(*(one(n) for n in range(60)), kill())
        return replies  # type: ignore[return-value]

    replies = asyncio.run(crowd())
    whole = [name for name, reply in replies if reply is not None and "[DONE]" in reply.text]
    by = Counter(reply.headers["X-Garra-Profile"] for _, reply in replies if reply is not None)
    assert by["other"] >= 1, "how many hangs on where each kill fell"
    cut = len(replies) - len(whole)
    assert cut <= 3 * 4, "only those who were being answered when it died"
    sent = Counter(line.split()[1] for line in ledger.read_text().splitlines() if line.startswith("sent"))
    assert all(sent[name] >= 1 for name in whole)
    twice = [name for name, n in sent.items() if n > 1 and name in whole]
    assert all(reply.text.count("[DONE]") == 1 for name, reply in replies if reply is not None and name in twice)


def test_while_the_primary_waits_out_a_crash_the_fallback_answers(stubbed: Make) -> None:
    garra = stubbed("late", 'fallback = ["other"]\n').up("demo")
    assert garra.run("load", "other").returncode == 0

    def seen() -> bool:
        """Each crash makes the next delay longer, until there is time for a request in it."""
        for file in garra.engine_files():
            if "demo-" in file["socket"]:
                os.kill(file["pid"], signal.SIGKILL)
        if garra.engine("demo")["phase"] != "backoff":
            return False
        served = ask(garra).headers["X-Garra-Profile"]
        if garra.engine("demo")["phase"] != "backoff":
            return False
        assert served == "other"
        return True

    eventually(seen)
