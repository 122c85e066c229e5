"""A conversation that outgrew its slot, made to fit: what was said in the middle is left out. Pure.

System messages and the last turns stay. What is dropped is dropped in whole turns, from a user's message to the next
one, so that no tool's result loses its call. A single message too long for all of it loses the middle of its text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

_ANSWER_PART = 4
"""At most so much of the context is kept free for the answer: a quarter."""
_USUAL_ANSWER = 512
_CUT = "\n[... {n} characters left out ...]\n"
_SAFE = 0.97
"""Characters are only nearly proportional to tokens."""
_LEADING = ("system", "developer")


class _Told(msgspec.Struct):
    type: str = ""
    message: str = ""
    n_prompt_tokens: int = 0
    n_ctx: int = 0


class _Refusal(msgspec.Struct):
    error: _Told


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much a prompt is too long."""

    n_prompt: int
    n_ctx: int


@dataclass(frozen=True, slots=True)
class Shortened:
    """A body that should fit, and what was left out of it."""

    body: bytes
    n_messages: int
    n_chars: int


def excess_of(refusal: bytes) -> Excess | None:
    """What the engine's 400 says, if it is about the context."""
    try:
        told = msgspec.json.decode(refusal, type=_Refusal).error
    except msgspec.DecodeError:
        return None
    if told.type != "exceed_context_size_error" or told.n_ctx <= 0 or told.n_prompt_tokens <= 0:
        return None
    return Excess(told.n_prompt_tokens, told.n_ctx)


def shortened(body: bytes, excess: Excess) -> Shortened | None:
    """The chat without its middle; None where nothing more can be left out, or it is no chat."""
    try:
        asked = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError:
        return None
    messages = asked.get("messages")
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages) or not messages:
        return None
    n_lead = next((n for n, one in enumerate(messages) if one.get("role") not in _LEADING), len(messages))
    lead, turns = messages[:n_lead], _turns(messages[n_lead:])
    if not turns:
        return None
    weights = [sum(_chars(one) for one in turn) for turn in turns]
    whole = sum(map(_chars, lead)) + sum(weights)
    too_many = _chars_over(asked, excess, whole)
    n_dropped, saved = 0, 0
    while saved < too_many and n_dropped < len(turns) - 1:
        saved += weights[n_dropped]
        n_dropped += 1
    kept = [*lead, *(one for turn in turns[n_dropped:] for one in turn)]
    n_cut = 0
    if saved < too_many:
        kept, n_cut = _cut_longest(kept, too_many - saved)
    if not n_dropped and not n_cut:
        return None
    asked["messages"] = kept
    n_messages = sum(len(turn) for turn in turns[:n_dropped])
    return Shortened(msgspec.json.encode(asked), n_messages, saved + n_cut)


def _turns(messages: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Each from a user's message to before the next one."""
    turns: list[list[dict[str, Any]]] = []
    for one in messages:
        if one.get("role") == "user" or not turns:
            turns.append([])
        turns[-1].append(one)
    return turns


def _chars(message: dict[str, Any]) -> int:
    """What it weighs: its text and its calls, as JSON."""
    return len(msgspec.json.encode(message))


def _chars_over(asked: dict[str, Any], excess: Excess, whole: int) -> int:
    """Characters to be saved, so that prompt and answer fit."""
    wanted = asked.get("max_completion_tokens") or asked.get("max_tokens")
    answer = wanted if isinstance(wanted, int) and wanted > 0 else _USUAL_ANSWER
    room = excess.n_ctx - min(answer, excess.n_ctx // _ANSWER_PART)
    return max(1, whole - int(whole * room / excess.n_prompt * _SAFE))


def _cut_longest(messages: list[dict[str, Any]], n_chars: int) -> tuple[list[dict[str, Any]], int]:
    """The longest text without its middle; how many characters that saved."""
    texts = [one["content"] if isinstance(one.get("content"), str) else "" for one in messages]
    place = max(range(len(texts)), key=lambda n: len(texts[n]))
    text = texts[place]
    n_kept = len(text) - n_chars - len(_CUT)
    if n_kept < len(text) // 20:
        return messages, 0  # nothing of it would be left
    n_cut = len(text) - n_kept
    cut = text[: n_kept // 2] + _CUT.format(n=n_cut) + text[len(text) - (n_kept - n_kept // 2) :]
    changed = {**messages[place], "content": cut}
    return [*messages[:place], changed, *messages[place + 1 :]], n_cut
