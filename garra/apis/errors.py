"""Errors in the words of each API: as the body of an answer, and as an event inside a stream. Pure."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import Any

import msgspec

from garra.apis.routes import Api
from garra.errors import GarraError


class _Told(msgspec.Struct):
    """What llama-server says of an error; other engines leave most of it out."""

    message: str = ""
    type: str | None = None
    code: int | str | None = None
    n_prompt_tokens: int | None = None
    n_ctx: int | None = None


class _Envelope(msgspec.Struct):
    error: _Told | str


_CODES = {
    "exceed_context_size_error": "context_length_exceeded",
    "not_supported_error": "not_supported",
    "unavailable_error": "engine_unavailable",
    "invalid_request_error": "invalid_request",
    "not_found_error": "not_found",
}
"""llama-server's types, as OpenAI's clients know them by their code."""
_TEMPLATE_ERROR = re.compile(r"Jinja Exception: *(.+)|While executing .*?Error: *(.+)", re.DOTALL)
_CLIENTS_MISTAKE = re.compile(r"^'\w+' is required|json\.exception|^Failed to parse messages")
_LONGEST = 1000


class EngineRefused(GarraError):
    """The engine answered with an error.

    A template that rejects the conversation is the client's affair, and so is a missing field: where the engine calls
    them a 500, clients would repeat them for ever.
    """

    code = "engine_refused"

    def __init__(self, status: int, body: bytes, *, template_errors: bool = True) -> None:
        told = _read(body)
        self.told = told
        self.raw = body
        """The engine's own words, for clients of its own API."""
        self.of_template = False
        self.as_told = True
        """What the engine said stands; else it was put better."""
        what, self.http_status = told.message, status
        if template_errors and (cause := template_error(what)):
            self.of_template, self.as_told = True, False
            self.http_status, self.code = HTTPStatus.BAD_REQUEST, "template_error"
            what = f"the model's chat template rejects this conversation: {cause}"
        elif status == HTTPStatus.INTERNAL_SERVER_ERROR and _CLIENTS_MISTAKE.search(what):
            self.http_status, self.code, self.as_told = HTTPStatus.BAD_REQUEST, "invalid_request", False
        elif told.type is not None:
            self.code = _CODES.get(told.type, self.code)
        elif isinstance(told.code, str):
            self.code = told.code
        super().__init__(what[:_LONGEST] or f"the engine answered with status {status}")


def _read(body: bytes) -> _Told:
    try:
        told = msgspec.json.decode(body, type=_Envelope).error
    except msgspec.DecodeError:
        return _Told(body[:200].decode("utf-8", "replace"))
    return told if isinstance(told, _Told) else _Told(told)


def template_error(message: str) -> str | None:
    """What a chat template complains about, if that is what the engine's message is."""
    found = _TEMPLATE_ERROR.search(message)
    if found is None:
        return None
    return (found[1] or found[2]).strip().splitlines()[0]


_ANTHROPIC_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_ANTHROPIC_TYPES |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}
_OPENAI_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_ENGINE_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
}
_ENGINE_TYPES |= {503: "unavailable_error"}


def error_body(error: GarraError, api: Api = Api.CHAT) -> bytes:
    """The error as this API's clients expect it in an answer's body."""
    message = _writable(f"{error.what}. Fix: {error.fix}" if error.fix else error.what)
    status = error.http_status
    match api:
        case Api.OLLAMA:
            return msgspec.json.encode({"error": message})
        case Api.ENGINE:
            if isinstance(error, EngineRefused) and error.as_told and error.raw.startswith(b"{"):
                return error.raw
            kind = _ENGINE_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
            return msgspec.json.encode({"error": {"code": status, "message": message, "type": kind}})
        case Api.MESSAGES:
            kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
            return msgspec.json.encode(
                {"type": "error", "error": {"type": kind, "message": _anthropic(error, message)}}
            )
    kind = _OPENAI_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    told: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": error.code}
    if isinstance(error, EngineRefused) and error.told.n_ctx is not None:
        told |= {"n_prompt_tokens": error.told.n_prompt_tokens, "n_ctx": error.told.n_ctx}
    return msgspec.json.encode({"error": told})


def _writable(text: str) -> str:
    """Without what UTF-8 cannot say: a path may be quoted whose bytes are none."""
    return text.encode("utf-8", "replace").decode()


def _anthropic(error: GarraError, message: str) -> str:
    """Claude Code shortens a conversation when it reads of the length in Anthropic's own words."""
    if isinstance(error, EngineRefused) and error.told.n_ctx is not None and error.told.n_prompt_tokens is not None:
        return f"prompt is too long: {error.told.n_prompt_tokens} tokens > {error.told.n_ctx} maximum"
    return message


def error_event(error: GarraError, api: Api = Api.CHAT) -> bytes:
    """The same as a piece of a stream; it first ends whatever event was under way.

    Anthropic's SDKs read errors only from events of that name. For responses both kinds are sent that clients know:
    some show the one, some raise at the other.
    """
    body = error_body(error, api)
    match api:
        case Api.OLLAMA:
            return body + b"\n"
        case Api.MESSAGES:
            return b"\n\nevent: error\ndata: " + body + b"\n\n"
        case Api.RESPONSES:
            told = {"code": error.code, "message": _writable(error.what)}
            failed = {"type": "response.failed", "response": {"status": "failed", "error": told, "output": []}}
            return b"\n\nevent: response.failed\ndata: " + msgspec.json.encode(failed) + b"\n\ndata: " + body + b"\n\n"
    return b"\n\ndata: " + body + b"\n\n"
