"""Streams that are not passed on byte by byte: what an engine leaves out or says in other words. Pure.

A passage gets the payload of a stream in pieces of whole events and gives what its client is to read. Bytes it does not
understand go on as they came.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from garra.apis.errors import EngineRefused, error_event
from garra.apis.routes import Api

_END = b"\n\n"


class Passage(Protocol):
    """One answer on its way."""

    content_type: str
    """Of a stream."""

    def feed(self, payload: bytes) -> bytes:
        """What `payload` is to the client; may be empty."""
        ...

    def end(self) -> bytes:
        """What is left to say when the stream has ended."""
        ...

    def whole(self, body: bytes) -> bytes:
        """The same for an answer that is no stream."""
        ...


class EventPassage:
    """Cuts a stream into its events; what is done with one, subclasses say."""

    content_type = "text/event-stream"

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, payload: bytes) -> bytes:
        *events, self._rest = (self._rest + payload).split(_END)
        return b"".join(self._passed(event) for event in events)

    def end(self) -> bytes:
        rest, self._rest = self._rest, b""
        return self._passed(rest) if rest.strip() else b""

    def whole(self, body: bytes) -> bytes:
        return body

    def _passed(self, event: bytes) -> bytes:
        """One event, given without and returned with the empty line that ends it."""
        raise NotImplementedError


def data_of(event: bytes) -> dict[str, Any] | None:
    """The JSON object an event carries, if it does."""
    at = event.find(b"data: ")
    if at < 0 or (at and event[at - 1 : at] != b"\n"):
        return None
    try:
        return msgspec.json.decode(event[at + 6 :], type=dict[str, Any])
    except msgspec.DecodeError:
        return None


def told_error(data: dict[str, Any], api: Api) -> bytes | None:
    """An error the engine tells inside a stream, in the words of this API."""
    if "error" not in data or "type" in data:
        return None
    told = data["error"]
    status = told.get("code") if isinstance(told, dict) else None
    refused = EngineRefused(status if isinstance(status, int) else 500, msgspec.json.encode(data))
    return error_event(refused, api).lstrip(b"\n")


class MessagesPassage(EventPassage):
    """Anthropic's stream: engines tell errors in OpenAI's form, which its SDKs take for the end of a good answer."""

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event) if event.startswith(b"data: ") else None
        said = told_error(data, Api.MESSAGES) if data is not None else None
        return said or event + _END


_RESPONSE: dict[str, Any] = {
    "error": None, "incomplete_details": None, "instructions": None, "metadata": {}, "output": [],
    "parallel_tool_calls": True, "temperature": None, "tool_choice": "auto", "tools": [], "top_p": None,
}  # fmt: skip
_TEXT_PART = {"type": "output_text", "annotations": [], "logprobs": []}
_OF_A_PART = ("response.content_part.", "response.output_text.", "response.reasoning_text.")


class ResponsesPassage(EventPassage):
    """OpenAI's responses with the numbers and fields that its SDKs' helpers build on.

    Source: the field lists of OpenAI's streaming events; llama-server leaves out the ones filled in here.
    """

    def __init__(self, model: str) -> None:
        super().__init__()
        self._model = model
        self._number = 0
        self._places: dict[str, int] = {}
        """Index in the output of each item."""
        self._created: dict[str, Any] = {}
        self._spoken: dict[str, str] = {}
        """Texts of items that are given in pieces without being closed by the engine."""

    def whole(self, body: bytes) -> bytes:
        try:
            answer = msgspec.json.decode(body, type=dict[str, Any])
        except msgspec.DecodeError:
            return body
        return msgspec.json.encode(self._filled(answer)) if answer.get("object") == "response" else body

    def _passed(self, event: bytes) -> bytes:
        data = data_of(event)
        if data is None:
            return event + _END
        if (said := told_error(data, Api.RESPONSES)) is not None:
            return said
        kind = data.get("type")
        if not isinstance(kind, str):
            return event + _END
        return b"".join(self._numbered(one) for one in (*self._before(kind, data), self._complete(kind, data)))

    def _numbered(self, data: dict[str, Any]) -> bytes:
        numbered = {"type": data["type"], "sequence_number": self._number, **data}
        self._number += 1
        name: str = data["type"]
        return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(numbered) + _END

    def _complete(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        if isinstance(response := data.get("response"), dict):
            data["response"] = self._filled(response)
        item = data.get("item")
        ident = item.get("id") if isinstance(item, dict) else data.get("item_id")
        if isinstance(ident, str):
            data["output_index"] = self._places.setdefault(ident, len(self._places))
        if kind.startswith(_OF_A_PART):
            data["content_index"] = 0
            data.setdefault("logprobs", [])
        if isinstance(part := data.get("part"), dict) and part.get("type") == "output_text":
            data["part"] = {**_TEXT_PART, **part}
        if kind in ("response.reasoning_text.delta", "response.function_call_arguments.delta"):
            self._spoken[str(ident)] = self._spoken.get(str(ident), "") + str(data.get("delta", ""))
        return data

    def _before(self, kind: str, data: dict[str, Any]) -> list[dict[str, Any]]:
        """Events that close what the engine leaves open."""
        item = data.get("item")
        if kind != "response.output_item.done" or not isinstance(item, dict):
            return []
        ident, place = str(item.get("id")), {"output_index": self._places.get(str(item.get("id")), len(self._places))}
        match item.get("type"):
            case "function_call":
                told = {"arguments": item.get("arguments", ""), "name": item.get("name", "")}
                return [{"type": "response.function_call_arguments.done", "item_id": ident, **place, **told}]
            case "reasoning" if ident in self._spoken:
                told = {"content_index": 0, "text": self._spoken[ident]}
                return [{"type": "response.reasoning_text.done", "item_id": ident, **place, **told}]
        return []

    def _filled(self, response: dict[str, Any]) -> dict[str, Any]:
        for key in ("id", "created_at", "model"):  # the first event lacks some, the last has all
            if key in response:
                self._created.setdefault(key, response[key])
        usage = response.get("usage")
        if isinstance(usage, dict):
            usage.setdefault("input_tokens_details", {"cached_tokens": 0})
            usage.setdefault("output_tokens_details", {"reasoning_tokens": 0})
        return {**_RESPONSE, "created_at": 0, "model": self._model, **self._created, **response}
