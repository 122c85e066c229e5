"""What clients see while they wait, and when the waiting ends badly."""

from __future__ import annotations

import asyncio
import json
import re

import httpx
import openai
import pytest

from tests.engine.asking import Client, until
from tests.engine.conftest import Make
from tests.support import Garra


@pytest.mark.parametrize(
    ("path", "beat"),
    [
        ("/v1/chat/completions", '"object":"chat.completion.chunk"'),
        ("/v1/completions", '"object":"text_completion"'),
        ("/v1/responses", "event: response.in_progress"),
        ("/v1/messages", "event: ping"),
    ],
)
async def test_a_waiting_stream_is_kept_awake_in_its_own_api(stubbed: Make, path: str, beat: str) -> None:
    garra = stubbed("late", "slots = 1", "first_byte_grace_s = 0.2\nheartbeat_s = 0.4").up("demo")
    async with Client(garra) as client:
        replies = await asyncio.gather(*(client.ask(path=path) for _ in range(5)))
    last = max(replies, key=lambda reply: len(reply.lines))
    assert all(reply.whole for reply in replies)
    positions = [int(found[1]) for line in last.lines if (found := re.match(r": garra queued position=(\d+)", line))]
    assert positions == sorted(positions, reverse=True)
    assert positions[0] > positions[-1] >= 1, "it moves up"
    assert any(beat in line for line in last.lines)
    assert last.headers["content-type"].startswith("text/event-stream")


async def test_the_sdk_takes_comments_and_empty_chunks(garra: Garra) -> None:
    garra.configure("first_byte_grace_s = 0.2\nheartbeat_s = 0.3\n[profiles.demo]\nslots = 1\n").up("demo")

    async def one(client: openai.AsyncOpenAI, number: int) -> tuple[str, str | None]:
        stream = await client.chat.completions.create(
            model="demo",
            stream=True,
            max_tokens=60,
            messages=[{"role": "user", "content": f"Tell me story {number}."}],
            extra_body={"ignore_eos": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        waited = any(chunk.id == "garra-waiting" for chunk in chunks)
        return text, chunks[-1].choices[0].finish_reason if waited or number == 0 else "did not wait"

    async with openai.AsyncOpenAI(base_url=f"{garra.url}/v1", api_key="any", max_retries=0) as client:
        answers = await asyncio.gather(*(one(client, number) for number in range(4)))
    assert all(text for text, _ in answers)
    assert [reason for _, reason in answers].count("length") >= 3


async def test_an_error_after_the_comments_is_an_event_in_the_stream(stubbed: Make) -> None:
    garra = stubbed("late", "slots = 1\nqueue_timeout_s = 0.6", "first_byte_grace_s = 0.2").up("demo")
    async with Client(garra) as client:
        chat = await asyncio.gather(*(client.ask() for _ in range(6)))
        messages = await asyncio.gather(*(client.ask(path="/v1/messages") for _ in range(6)))
    late = [reply for reply in chat if reply.cut]
    assert late
    for reply in late:
        assert reply.status == 200
        event = json.loads(reply.lines[-2].removeprefix("data: "))
        assert event["error"]["code"] == "queue_timeout"
    event = next(reply.lines for reply in messages if reply.cut)
    assert "event: error" in event
    assert json.loads(event[-2].removeprefix("data: "))["type"] == "error"


async def test_a_refusal_of_the_engine_after_the_comments_is_an_event_too(garra: Garra) -> None:
    garra.configure("first_byte_grace_s = 0.1\n[profiles.demo]\nslots = 1\ncontext = 512\n").up("demo")
    long = {"model": "demo", "stream": True, "max_tokens": 100, "messages": [{"role": "user", "content": "A story."}]}
    too_long = long | {"messages": [{"role": "user", "content": "word " * 3000}]}
    async with httpx.AsyncClient(base_url=garra.url, timeout=180) as client:
        first = asyncio.ensure_future(client.post("/v1/chat/completions", json=long))
        await until(lambda: garra.engine()["leases"] == 1)
        lines: list[str] = []
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", "/v1/chat/completions", json=too_long) as reply:
                async for line in reply.aiter_lines():
                    lines.append(line)
        await first
    told = json.loads([line for line in lines if line.startswith("data: ")][-1].removeprefix("data: "))
    assert "exceeds the available context size" in told["error"]["message"]
    assert told["error"]["type"] == "invalid_request_error"


async def test_a_client_that_leaves_the_queue_is_gone_from_it(stubbed: Make) -> None:
    garra = stubbed("late", "slots = 1").up("demo")
    async with Client(garra) as client:
        tasks = [asyncio.ensure_future(client.ask()) for _ in range(10)]
        await until(lambda: garra.engine()["waiting"] >= 8)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await until(lambda: garra.engine()["waiting"] == garra.engine()["leases"] == 0)
        await until(lambda: garra.engine()["lingering"] == 0)
        assert (await client.ask()).whole
