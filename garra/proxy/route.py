"""What a request wants, read from as little of it as possible. Pure."""

from __future__ import annotations

import msgspec

from garra.errors import BadRequest, GarraError

FORWARDED = ("/v1/chat/completions", "/v1/completions")
"""Paths the engine answers itself; bodies and answers pass unchanged."""


class CallHead(msgspec.Struct):
    """The only fields of a body that routing needs; the rest is not even decoded."""

    model: str | None = None
    stream: bool | None = None


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None


_head_decoder = msgspec.json.Decoder(CallHead)


def read_call(body: bytes) -> CallHead:
    """Model and stream flag of a completion request. Raises BadRequest."""
    try:
        head = _head_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"the request body is not usable: {error}") from None
    if not head.model:
        raise BadRequest('the request names no "model"', fix='add "model": "NAME"; GET /v1/models lists them')
    return head


def error_body(error: GarraError) -> bytes:
    """The error as OpenAI's clients expect it."""
    message = f"{error.what}. Fix: {error.fix}" if error.fix else error.what
    kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    return msgspec.json.encode({"error": ErrorBody(message, kind, error.code)})


def error_event(error: GarraError) -> bytes:
    """The same as a server-sent event, for a stream that has begun; it first ends whatever event was under way."""
    return b"\n\ndata: " + error_body(error) + b"\n\n"
