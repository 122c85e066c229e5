"""Answers of the engine in Ollama's words: a line of JSON for each piece, durations in nanoseconds. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from garra.apis.passages import EventPassage, data_of

Part = Literal["message", "response"]
"""Where the text stands: in a message for chats, by itself for generations."""

_REASONS = {"stop": "stop", "length": "length", "tool_calls": "stop", "limit": "length"}


class OllamaPassage(EventPassage):
    """One answer, streamed or whole.

    The clock: `now`, the time as RFC 3339 text; `elapsed_ns` since the request came; `load_ns`, what a load took of it.
    """

    content_type = "application/x-ndjson"

    def __init__(
        self,
        model: str,
        part: Part,
        *,
        now: Callable[[], str],
        elapsed_ns: Callable[[], int],
        load_ns: Callable[[], int],
    ) -> None:
        super().__init__()
        self._model = model
        self._part = part
        self._now = now
        self._elapsed_ns = elapsed_ns
        self._load_ns = load_ns
        self._calls: dict[int, dict[str, str]] = {}
        self._reason: str | None = None
        self._timings: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._failed = False

    # -- streams

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None:
            return b""  # comments, [DONE]
        if "error" in data:
            self._failed = True
            return _line({"error": _error_text(data["error"])})
        self._note(data)
        said, thought = self._pieces(data)
        return _line({**self._spoken(said, thought), **_logprobs(data), "done": False}) if said or thought else b""

    def end(self) -> bytes:
        rest = super().end()
        if self._failed or self._reason is None:
            return rest
        calls = b""
        if self._calls:
            calls = _line({**self._spoken("", "", self._whole_calls()), "done": False})
        return rest + calls + _line(self._last(""))

    def _pieces(self, data: dict[str, Any]) -> tuple[str, str]:
        """Text and thought of one event."""
        if "choices" not in data:
            return str(data.get("content", "")), ""
        said = thought = ""
        for choice in data["choices"]:
            delta = choice.get("delta") or {}
            said += delta.get("content") or ""
            thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                self._gather(call)
        return said, thought

    def _note(self, data: dict[str, Any]) -> None:
        self._timings = data.get("timings") or self._timings
        self._usage = data.get("usage") or self._usage
        if data.get("stop") is True:
            self._reason = _REASONS.get(str(data.get("stop_type")), "stop")
        for choice in data.get("choices") or ():
            if reason := choice.get("finish_reason"):
                self._reason = _REASONS.get(reason, str(reason))

    def _gather(self, call: dict[str, Any]) -> None:
        known = self._calls.setdefault(call.get("index", len(self._calls)), {"id": "", "name": "", "arguments": ""})
        function = call.get("function") or {}
        known["id"] = known["id"] or str(call.get("id") or "")
        known["name"] = known["name"] or str(function.get("name") or "")
        known["arguments"] += str(function.get("arguments") or "")

    def _whole_calls(self) -> list[dict[str, Any]]:
        """Arguments are objects here, so a call can only be told when it is complete."""
        return [
            {"id": call["id"], "function": {"index": n, "name": call["name"], "arguments": _parsed(call["arguments"])}}
            for n, call in sorted(self._calls.items())
        ]

    # -- whole answers

    def whole(self, body: bytes) -> bytes:
        try:
            data = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return _line({"error": "the engine's answer is not JSON"})
        self._note(data)
        if "choices" not in data:
            return _line(self._last(str(data.get("content", ""))) | _logprobs(data))
        message = data["choices"][0].get("message") or {}
        for call in message.get("tool_calls") or ():
            self._gather({**call, "index": len(self._calls)})
        return _line(
            self._last(message.get("content") or "", message.get("reasoning_content") or "", self._whole_calls())
            | _logprobs(data)
        )

    # -- lines

    def _spoken(self, said: str, thought: str, calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        told: dict[str, Any] = {"model": self._model, "created_at": self._now()}
        if self._part == "response":
            return told | {"response": said} | ({"thinking": thought} if thought else {})
        message: dict[str, Any] = {"role": "assistant", "content": said}
        message |= {"thinking": thought} if thought else {}
        message |= {"tool_calls": calls} if calls else {}
        return told | {"message": message}

    def _last(self, said: str, thought: str = "", calls: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        """The line that ends an answer, with what it took."""
        return {
            **self._spoken(said, thought, calls),
            "done": True,
            "done_reason": self._reason or "stop",
            **durations(self._elapsed_ns(), self._load_ns(), self._timings, self._usage),
        }


def durations(total_ns: int, load_ns: int, timings: dict[str, Any], usage: dict[str, Any]) -> dict[str, int]:
    """What an answer took, in nanoseconds; the prompt counts with what of it was cached."""
    n_prompt = timings.get("cache_n", 0) + timings.get("prompt_n", 0) or usage.get("prompt_tokens", 0)
    return {
        "total_duration": total_ns,
        "load_duration": load_ns,
        "prompt_eval_count": n_prompt,
        "prompt_eval_duration": int(timings.get("prompt_ms", 0.0) * 1e6),
        "eval_count": timings.get("predicted_n", usage.get("completion_tokens", 0)),
        "eval_duration": int(timings.get("predicted_ms", 0.0) * 1e6),
    }


def loaded(model: str, part: Part, now: str, reason: str) -> dict[str, Any]:
    """The answer to a request for nothing but that the model be loaded, or unloaded."""
    spoken: dict[str, Any] = (
        {"message": {"role": "assistant", "content": ""}} if part == "message" else {"response": ""}
    )
    return {"model": model, "created_at": now, **spoken, "done": True, "done_reason": reason}


def _logprobs(data: dict[str, Any]) -> dict[str, Any]:
    """How likely every token of the event or answer was, where that was asked for."""
    told = data.get("completion_probabilities") or []
    for choice in data.get("choices") or ():
        told = told + ((choice.get("logprobs") or {}).get("content") or [])
    if not told:
        return {}
    return {"logprobs": [_likely(one) | {"top_logprobs": [_likely(top) for top in _tops(one)]} for one in told]}


def _tops(token: dict[str, Any]) -> list[dict[str, Any]]:
    return token.get("top_logprobs") or []


def _likely(token: dict[str, Any]) -> dict[str, Any]:
    return {key: token.get(key) for key in ("token", "logprob", "bytes")}


def _line(told: dict[str, Any]) -> bytes:
    return msgspec.json.encode(told) + b"\n"


def _parsed(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        return {"": arguments}  # what the model wrote is no JSON: its client can still see it


def _error_text(error: Any) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
