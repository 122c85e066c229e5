"""What garra writes down of requests, and what their clients are told of the wait."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.support import Garra


def test_requests_are_lines_of_json_with_the_id_their_client_knows(garra: Garra) -> None:
    garra.configure("[profiles.demo]\nslots = 1\ncontext = 512").up("demo", "--log-format", "json")
    url = f"{garra.url}/v1/chat/completions"

    def ask(number: int) -> httpx.Response:
        messages = [{"role": "user", "content": f"my secret {number}"}]
        body = {"model": "demo", "max_tokens": 128, "ignore_eos": True, "messages": messages}
        return httpx.post(url, json=body, headers={"X-Request-Id": f"mine-{number}"}, timeout=180)

    with ThreadPoolExecutor(2) as clients:
        replies = list(clients.map(ask, (1, 2)))
    assert [reply.headers["X-Request-Id"] for reply in replies] == ["mine-1", "mine-2"]
    (timing,) = [reply.headers["Server-Timing"] for reply in replies if "Server-Timing" in reply.headers]
    queue_ms, load_ms = map(float, re.fullmatch(r"queue;dur=([\d.]+), load;dur=([\d.]+)", timing).groups())  # type: ignore[union-attr]
    assert queue_ms > 50
    assert load_ms == 0
    missing = httpx.post(url, json={"model": "nobody", "messages": []})
    assert missing.status_code == 404
    garra.run("unload", "demo")
    assert "load;dur=" in ask(3).headers["Server-Timing"]
    garra.stop()
    assert "secret" not in garra.said
    rows = [json.loads(line) for line in garra.said.splitlines() if line.startswith("{")]
    told = {row["request_id"]: row for row in rows if row["logger"] == "garra.requests"}
    assert set(told) == {"mine-1", "mine-2", "mine-3"}
    assert told["mine-1"]["completion_tokens"] > 0
    assert told["mine-3"]["load_ms"] > 50
    assert max(told[name]["queue_ms"] for name in ("mine-1", "mine-2")) > 50
    assert any("listening on" in row["message"] for row in rows)
