"""The shape of live traffic without a word of it: lengths, times, and hashes that tell what shares a beginning. Pure.

A text is cut into blocks; each is known by a hash of everything up to its end. To replay it, a block's hash becomes the
seed of made-up text of the same length: who shared a beginning shares one again, so the prompt cache has the same work.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from garra.bench import texts
from garra.bench.words import Below, Talk, Turn

BLOCK_CHARS = 256
FORMAT = 1
_USUAL_ANSWER = 256


class Said(msgspec.Struct):
    """One message: who said how much."""

    role: str
    chars: int


class Recorded(msgspec.Struct, omit_defaults=True):
    """One request, as it is recorded."""

    at_s: float
    """Since the recording began, or since garra did."""
    profile: str
    path: str
    max_tokens: int | None
    messages: list[Said]
    blocks: list[str]
    """A hash for each block of all messages together."""
    e2e_s: float = 0.0
    outcome: str = ""
    n_prompt: int | None = None
    n_cached: int | None = None
    n_output: int | None = None
    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float | None = None
    body: dict[str, Any] | None = None
    """All that was asked: only where text was wanted."""


def shape_of(body: bytes) -> tuple[list[Said], list[str], int | None]:
    """Messages by length, block hashes, and the wished length of the answer."""
    try:
        asked = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return [], [], None
    given = asked.get("messages")
    if not isinstance(given, list):
        given = [{"role": "user", "content": asked.get("prompt", "")}]
    messages, whole = [], ""
    for one in given:
        if isinstance(one, Mapping):
            text = _text_of(one)
            messages.append(Said(str(one.get("role", "user")), len(text)))
            whole += text
    wanted = asked.get("max_completion_tokens") or asked.get("max_tokens")
    return messages, blocks_of(whole), wanted if isinstance(wanted, int) else None


def blocks_of(text: str) -> list[str]:
    """A hash per block, of everything up to its end."""
    digest, found = hashlib.blake2b(digest_size=8), []
    for at in range(0, len(text), BLOCK_CHARS):
        digest.update(text[at : at + BLOCK_CHARS].encode("utf-8", "surrogatepass"))
        found.append(digest.copy().hexdigest())
    return found


def talk_of(one: Recorded, dice: Callable[[str], Below]) -> Talk:
    """The request as a conversation of one turn: with its own text where that was recorded, else with made-up text."""
    n_answer = one.n_output or one.max_tokens or _USUAL_ANSWER
    if one.body is not None and isinstance(one.body.get("messages"), list):
        return Talk((Turn(tuple(one.body["messages"]), n_answer),))
    whole = "".join(_made(block, dice) for block in one.blocks)
    messages, at = [], 0
    for said in one.messages:
        messages.append({"role": said.role, "content": whole[at : at + said.chars]})
        at += said.chars
    return Talk((Turn(tuple(messages), n_answer),))


def profiles_of(records: Sequence[Recorded]) -> list[str]:
    """Which profiles were asked, the most asked first."""
    names = [one.profile for one in records]
    return sorted(set(names), key=names.count, reverse=True)


def _made(block: str, dice: Callable[[str], Below]) -> str:
    text = ""
    for word in texts.prose(dice(block)):
        text += word
        if len(text) >= BLOCK_CHARS:
            break
    return text[:BLOCK_CHARS]


def _text_of(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = [str(part.get("text", "")) for part in content if isinstance(part, Mapping)]
        return "".join(parts)
    calls = message.get("tool_calls")
    return msgspec.json.encode(calls).decode() if calls else ""
