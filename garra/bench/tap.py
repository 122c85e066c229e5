"""One streamed answer, read as its bytes arrive: when tokens came, what the server counted, how it ended. Pure."""

from __future__ import annotations

import re
from typing import Any

import msgspec

_SERVER_TIMING = re.compile(r"(\w+);dur=([0-9.]+)")


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class _Choice(msgspec.Struct):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Timings(msgspec.Struct):
    prompt_n: int | None = None
    cache_n: int | None = None
    prompt_ms: float | None = None
    predicted_n: int | None = None
    predicted_ms: float | None = None
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    timings: _Timings | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Chunk)


class Tap:
    """Fed with the body's bytes and the time each piece came at."""

    def __init__(self) -> None:
        self._pending = b""
        self.stamps_s: list[float] = []
        """When each token-bearing chunk came: content, reasoning or a tool call; a role alone is none."""
        self.text: list[str] = []
        self.usage: _Usage | None = None
        self.timings: _Timings | None = None
        self.finish = ""
        self.error = ""
        self.done = False
        """The stream said itself that it is whole."""
        self.queue_s: float | None = None
        self.load_s: float | None = None

    def feed(self, data: bytes, at_s: float) -> None:
        """The next piece of the body, and when it came."""
        lines = (self._pending + data).split(b"\n")
        self._pending = lines.pop()
        for line in lines:
            if line.startswith(b"data:"):
                self._event(line[5:].strip(), at_s)
            elif line.startswith(b": garra timing "):
                self.server_timing(line.decode("latin-1"))

    def server_timing(self, header: str) -> None:
        """The parts of the wait, from a `Server-Timing` header (or the comment that stands for it)."""
        told = {name: float(value) / 1e3 for name, value in _SERVER_TIMING.findall(header)}
        self.queue_s = told.get("queue", self.queue_s)
        self.load_s = told.get("load", self.load_s)

    def _event(self, payload: bytes, at_s: float) -> None:
        if payload == b"[DONE]":
            self.done = True
            return
        try:
            chunk = _decoder.decode(payload)
        except msgspec.DecodeError as error:
            self.error = self.error or f"an event that cannot be read: {error}"
            return
        if chunk.error is not None:
            told = chunk.error.get("message") if isinstance(chunk.error, dict) else chunk.error
            self.error = self.error or str(told)[:300]
        for choice in chunk.choices[:1]:
            said, bears = _tokens_of(choice)
            if bears:
                self.stamps_s.append(at_s)
                self.text.append(said)
            self.finish = choice.finish_reason or self.finish
        self.usage = chunk.usage or self.usage
        self.timings = chunk.timings or self.timings

    @property
    def n_prompt(self) -> int | None:
        if self.usage is not None and self.usage.prompt_tokens is not None:
            return self.usage.prompt_tokens
        if self.timings is not None and self.timings.prompt_n is not None:
            return self.timings.prompt_n + (self.timings.cache_n or 0)
        return None

    @property
    def n_cached(self) -> int | None:
        if self.timings is not None and self.timings.cache_n is not None:
            return self.timings.cache_n
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return details.cached_tokens if details is not None else None

    @property
    def n_output(self) -> int | None:
        if self.usage is not None and self.usage.completion_tokens is not None:
            return self.usage.completion_tokens
        return self.timings.predicted_n if self.timings is not None else None

    @property
    def prefill_s(self) -> float | None:
        told = self.timings.prompt_ms if self.timings is not None else None
        return told / 1e3 if told is not None else None


def _tokens_of(choice: _Choice) -> tuple[str, bool]:
    """The text of a chunk, and whether it holds a token at all."""
    if choice.text is not None:
        return choice.text, bool(choice.text)
    delta = choice.delta
    if delta is None:
        return "", False
    said = delta.content or ""
    return said, bool(said or delta.reasoning_content or delta.reasoning or delta.tool_calls)
