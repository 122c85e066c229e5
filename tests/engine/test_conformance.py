"""Every route, asked of the engine itself and through garra: the same, or listed in docs/conformance.md with why.

`GARRA_TEST_WRITE=1` writes the table anew.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from garra.apis.routes import ROUTES, Api, Route, Work
from tests.engine.noise import three_kinds
from tests.support import Garra

TABLE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
USER = [{"role": "user", "content": "hi"}]
FIXED = {"temperature": 0, "seed": 1, "cache_prompt": False}
GOOD: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": USER, "max_tokens": 4, **FIXED},
    "chat/completions/input_tokens": {"messages": USER},
    "chat/completions/control": {"id": "chatcmpl-none", "action": "reasoning_end"},
    "completions": {"prompt": "hi", "max_tokens": 4, **FIXED},
    "completion": {"prompt": "hi", "n_predict": 4, **FIXED},
    "responses": {"input": "hi", "max_output_tokens": 4, **FIXED},
    "responses/input_tokens": {"input": "hi"},
    "messages": {"messages": USER, "max_tokens": 4, **FIXED},
    "messages/count_tokens": {"messages": USER},
    "embeddings": {"input": "hi"},
    "embedding": {"content": "hi"},
    "rerank": {"query": "hi", "documents": ["a", "b"]},
    "reranking": {"query": "hi", "documents": ["a", "b"]},
    "infill": {"input_prefix": "a", "input_suffix": "b"},
    "tokenize": {"content": "hi"},
    "detokenize": {"tokens": [300]},
    "apply-template": {"messages": USER},
}
LONG = "word " * 3000
CHANGING = re.compile(
    r"^(id|created|created_at|completed_at|timings|system_fingerprint|item_id|.*_ms|prompt_progress)$"
)
MATTERS = ("content-type", "cache-control", "transfer-encoding")
WHY = {
    "errors": "errors come in OpenAI's or Anthropic's own form and codes; the engine's message is kept",
    "fields": "responses get the fields and numbers that SDKs build on",
    "stream": "streams are `no-store`, so that no cache keeps them",
    "mistake": "a client's mistake is a 400: the engine's 500 makes clients try again for ever",
    "template": "what a template complains about is told in one line",
    "merged": "late system messages are moved to the front, where the template would reject them",
}


class Case(NamedTuple):
    name: str
    body: dict[str, Any] | None
    raw: bytes | None = None


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: Any


def cases(route: Route) -> Iterator[Case]:
    if route.method == "GET":
        yield Case("as it is", None)
        return
    body = GOOD[route.path.removeprefix("/v1").strip("/")]
    yield Case("good", body)
    if route.work is Work.ANSWER and route.path != "/infill":
        yield Case("stream", body | {"stream": True})
        yield Case("too long", _with_text(body, LONG))
    if route.form is not None:
        yield Case("late system message", _with_late_system(route, body))
        yield Case("unknown role", _with_role(route, body))
    if route.work in (Work.ANSWER, Work.EMBED, Work.RERANK):
        yield Case("empty", {})


def _with_text(body: dict[str, Any], text: str) -> dict[str, Any]:
    key = next(key for key in ("messages", "prompt", "input") if key in body)
    return body | {key: [{"role": "user", "content": text}] if key == "messages" else text}


def _with_late_system(route: Route, body: dict[str, Any]) -> dict[str, Any]:
    late = [*USER, {"role": "system", "content": "be brief"}]
    return {key: value for key, value in body.items() if key != "input"} | (
        {"input": late} if route.form is Api.RESPONSES else {"messages": late}
    )


def _with_role(route: Route, body: dict[str, Any]) -> dict[str, Any]:
    odd = [{"role": "narrator", "content": "x"}]
    return {key: value for key, value in body.items() if key != "input"} | (
        {"input": odd} if route.form is Api.RESPONSES else {"messages": odd}
    )


@pytest.fixture(scope="module")
def served(engine_build: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Garra]:
    one = three_kinds(
        tmp_path_factory.mktemp("models"), "slots = 1\nthreads = 1\ncontext = 1024\nmend = { sessions = false }\n"
    )
    yield one
    one.close()


def profile_for(route: Route) -> str:
    return {Work.EMBED: "vectors", Work.RERANK: "scores"}.get(route.work, "demo")


def asked(client: httpx.Client, route: Route, case: Case, profile: str) -> Answer:
    path = route.path if route.method == "POST" else f"{route.path}?model={profile}"
    body = json.dumps({"model": profile, **case.body}).encode() if case.body is not None else b""
    reply = client.request(route.method, path, content=body, headers={"Content-Type": "application/json"})
    headers = {name: reply.headers[name] for name in MATTERS if name in reply.headers}
    if headers.get("content-type", "").startswith("text/event-stream"):
        events = [line[6:] for line in reply.text.splitlines() if line.startswith("data: ")]
        return Answer(reply.status_code, headers, [_settled(_parsed(one)) for one in events])
    return Answer(reply.status_code, headers, _settled(_parsed(reply.text)))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _settled(value: Any) -> Any:
    """Without what differs from one request to the next."""
    if isinstance(value, dict):
        return {key: _settled(inner) for key, inner in value.items() if not CHANGING.match(key)}
    if isinstance(value, list):
        return [_settled(one) for one in value]
    return round(value, 4) if isinstance(value, float) else value


def difference(engine: Answer, ours: Answer) -> str:
    """What differs, as a key of WHY or, where there is none, in full; empty where nothing does."""
    if engine == ours:
        return ""
    if engine.status >= 400 and ours.status < 400:
        return "merged"
    if engine.status >= 500 and ours.status == 400:
        return "mistake"
    if engine.status >= 400 and engine.status == ours.status and "Jinja Exception" in _message(engine.body):
        return "template"
    if engine.status >= 400 and engine.status == ours.status and _message(engine.body) in _message(ours.body):
        return "errors"
    if engine.status != ours.status:
        return f"{engine} against {ours}"
    own = {key: value for key, value in ours.headers.items() if key != "cache-control"}
    if ours.headers.get("cache-control") == "no-store" and engine.body == ours.body:
        return "stream"
    if own.get("content-type", "").split(";")[0] == engine.headers.get("content-type", "").split(";")[0] and _within(
        engine.body, ours.body
    ):
        return "fields"
    return f"{engine} against {ours}"


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return str(body)
    if "n_prompt_tokens" in error or "prompt is too long" in error["message"]:
        return "too long"
    return str(error["message"])


def _within(less: Any, more: Any) -> bool:
    """Whether everything in the one is in the other: a stream's events may have others between them."""
    if isinstance(less, dict):
        return isinstance(more, dict) and all(key in more and _within(value, more[key]) for key, value in less.items())
    if isinstance(less, list):
        rest = iter(more)
        return all(any(_within(one, other) for other in rest) for one in less)
    return bool(less == more)


def test_every_route_is_the_engines_or_the_difference_is_known(served: Garra) -> None:
    sockets = {Path(file["socket"]).name.split("-")[0]: file["socket"] for file in served.engine_files()}
    rows = []
    with httpx.Client(base_url=served.url, timeout=180) as proxy:
        for route in ROUTES:
            profile = profile_for(route)
            transport = httpx.HTTPTransport(uds=sockets[profile])
            with httpx.Client(transport=transport, base_url="http://engine", timeout=180) as engine:
                for case in cases(route):
                    theirs, ours = asked(engine, route, case, profile), asked(proxy, route, case, profile)
                    found = difference(theirs, ours)
                    assert found == "" or found in WHY, (route.path, case.name, found[:3000])
                    rows.append((route, case, theirs, ours, found))
    table = rendered(rows)
    if os.environ.get("GARRA_TEST_WRITE"):
        TABLE.write_text(table)
    assert TABLE.read_text() == table, "GARRA_TEST_WRITE=1 writes it anew"


def rendered(rows: list[tuple[Route, Case, Answer, Answer, str]]) -> str:
    same = sum(not row[4] for row in rows)
    lines = [
        "# Conformance",
        "",
        "Every route of llama-server b11434 that garra passes on, asked directly and through garra: "
        f"{len(rows)} requests,\n{same} answers identical in status, headers that matter and body (ids, times and "
        "timings aside). Written by\n`tests/engine/test_conformance.py`, which fails at any other difference.",
        "",
        "| route | request | engine | garra | difference |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {route.method} `{route.path}` | {case.name} | {theirs.status} | {ours.status} | {found or 'none'} |"
        for route, case, theirs, ours, found in rows
    ]
    used = [key for key in WHY if any(row[4] == key for row in rows)]
    return "\n".join([*lines, "", *(f"- {key}: {WHY[key]}" for key in used), ""])
