"""`garra chat`: a conversation in the terminal, through the same proxy everybody uses."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from garra.cli import completion
from garra.errors import EngineDown, NotRunning

Message = dict[str, str]


def chat(
    profile: Annotated[
        str | None,
        completion.profile("A profile; without one, the engine that is ready."),
    ] = None,
    message: Annotated[str | None, typer.Option("--message", "-m", help="Say one thing and leave.")] = None,
) -> None:
    """Talk to a model. Ctrl-D ends the conversation, Ctrl-C the answer."""
    from garra.cli.control import Control

    there = Control()
    report, key = there.status(), there.key()
    name = profile or next(
        (row["engine"]["profile"] for row in report["profiles"] if row["engine"]["phase"] == "ready"), None
    )
    if name is None:
        raise NotRunning("no engine is ready", fix="garra up")
    url = f"{report['url']}/v1/chat/completions"
    history: list[Message] = []
    if message is not None:
        _say(url, key, name, [*history, {"role": "user", "content": message}])
        return
    print(f"{name}: Ctrl-D ends the conversation, Ctrl-C the answer", file=sys.stderr)
    while (said := _prompt()) is not None:
        history.append({"role": "user", "content": said})
        history.append({"role": "assistant", "content": _say(url, key, name, history)})


def _prompt() -> str | None:
    """What the person says, or None at the end."""
    while True:
        try:
            said = input("> ").strip()
        except EOFError:
            return None
        if said:
            return said


def _say(url: str, key: str, model: str, messages: list[Message]) -> str:
    answer = ""
    timings: dict[str, Any] = {}
    try:
        for event in _events(url, key, {"model": model, "messages": messages, "stream": True}):
            if "error" in event:
                raise EngineDown(event["error"]["message"])
            timings = event.get("timings", timings)
            for choice in event["choices"]:
                piece = choice["delta"].get("content") or ""
                answer += piece
                print(piece, end="", flush=True)
    except KeyboardInterrupt:
        if not sys.stdin.isatty():
            raise
    print()
    if "predicted_per_second" in timings:
        rate, n_tokens = timings["predicted_per_second"], timings["predicted_n"]
        print(f"[{n_tokens} tokens, {rate:.0f} tok/s decode]", file=sys.stderr)
    return answer


def _events(url: str, key: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    import httpx

    headers = {"Authorization": f"Bearer {key}"}
    try:
        with httpx.stream("POST", url, json=body, headers=headers, timeout=None, trust_env=False) as reply:
            if reply.status_code != 200:
                raise EngineDown(json.loads(reply.read())["error"]["message"])
            for line in reply.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield json.loads(line.removeprefix("data: "))
    except httpx.TransportError as error:
        raise EngineDown(f"the connection broke: {error}", fix="garra status") from None
