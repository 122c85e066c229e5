"""Conversations from a file: JSON lines (or one JSON list) in the shapes of ShareGPT and of OpenAI's APIs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from garra.bench.words import Messages, Talk, Turn
from garra.errors import BadRequest

_USUAL_ANSWER = 128
_LONGEST_ANSWER = 1024
_TOKEN_CHARS = 4


def read(path: Path, limit: int, n_output: int | None = None) -> list[Talk]:
    """The first `limit` conversations. Raises BadRequest naming the line that is none."""
    talks = []
    for number, row in _rows(path):
        talk = _talk(row, n_output)
        if talk is None:
            raise BadRequest(
                f"{path}, entry {number}: neither ShareGPT nor OpenAI",
                fix='"conversations": [{"from": "human", "value": ...}] or "messages": [...] or "prompt": ...',
            )
        talks.append(talk)
        if len(talks) == limit:
            break
    if not talks:
        raise BadRequest(f"{path} holds no conversation", fix="one JSON object per line")
    return talks


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            if file.read(1) == "[":
                file.seek(0)
                yield from enumerate(json.load(file), 1)
                return
            file.seek(0)
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, json.loads(line)
    except OSError as error:
        raise BadRequest(f"cannot read {path}: {error.strerror}", fix="check the path") from None
    except ValueError as error:
        raise BadRequest(f"{path} is not JSON: {error}", fix="one JSON object per line") from None


def _talk(row: Any, n_output: int | None) -> Talk | None:
    if not isinstance(row, Mapping):
        return None
    if isinstance(said := row.get("conversations"), list):
        return _sharegpt(said, n_output)
    body = row["body"] if isinstance(row.get("body"), Mapping) else row
    messages: Messages
    if isinstance(told := body.get("messages"), list) and told:
        messages = tuple(told)
        while len(messages) > 1 and messages[-1].get("role") == "assistant":
            messages = messages[:-1]  # the answer is what is asked for
    elif isinstance(prompt := body.get("prompt"), str):
        messages = ({"role": "user", "content": prompt},)
    else:
        return None
    wanted = n_output or body.get("max_tokens") or body.get("max_completion_tokens") or _USUAL_ANSWER
    return Talk((Turn(messages, int(wanted)),))


def _sharegpt(said: list[Any], n_output: int | None) -> Talk | None:
    """The first question, with an answer as long as the one that was given."""
    texts = [(str(one.get("from")), str(one.get("value", ""))) for one in said if isinstance(one, Mapping)]
    questions = [place for place, (who, _) in enumerate(texts) if who in ("human", "user")]
    if not questions:
        return None
    at = questions[0]
    answer = texts[at + 1][1] if at + 1 < len(texts) else ""
    usual = min(_LONGEST_ANSWER, len(answer) // _TOKEN_CHARS) or _USUAL_ANSWER
    return Talk((Turn(({"role": "user", "content": texts[at][1]},), n_output or usual),))
