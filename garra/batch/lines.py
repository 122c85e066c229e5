"""Lines of OpenAI's batch files: what is asked, and how an answer or a failure is written down. Pure.

In:  {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
Out: {"id": ..., "custom_id": "a", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from garra.errors import BadRequest

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")


class Asked(msgspec.Struct, frozen=True):
    """One line of the input."""

    custom_id: str
    body: msgspec.Raw
    url: str = PATHS[0]
    method: str = "POST"


class Ident(msgspec.Struct):
    """All that a first look at a line needs."""

    custom_id: str


_decoder = msgspec.json.Decoder(Asked)
_ident = msgspec.json.Decoder(Ident)
_body = msgspec.json.Decoder(dict[str, Any])


def read(line: bytes, number: int) -> Asked:
    """The request of a line. Raises BadRequest naming the line."""
    try:
        asked = _decoder.decode(line)
        _body.decode(asked.body)
    except msgspec.DecodeError as error:
        raise BadRequest(f"line {number} is not a batch request: {error}", fix=_EXAMPLE) from None
    if asked.url not in PATHS or asked.method != "POST":
        raise BadRequest(
            f"line {number} ({asked.custom_id}) asks {asked.method} {asked.url}", fix=f"POST one of: {', '.join(PATHS)}"
        )
    return asked


def custom_id(line: bytes) -> str | None:
    """Whose answer a line of the output is; None where it is no whole line."""
    try:
        return _ident.decode(line).custom_id
    except msgspec.DecodeError:
        return None


def body_for(asked: Asked, model: str | None) -> bytes:
    """What is sent: the body as it is, or for another model. A stream is asked for whole."""
    body = _body.decode(asked.body)
    if model is not None:
        body["model"] = model
    body.pop("stream", None)
    body.pop("stream_options", None)
    return msgspec.json.encode(body)


def answered(asked: Asked, status: int, request_id: str, body: bytes) -> bytes:
    """The output line of an answer that came."""
    try:
        content: Any = msgspec.Raw(body) if msgspec.json.decode(body) is not None else None
    except msgspec.DecodeError:
        content = body.decode("utf-8", "replace")
    response = {"status_code": status, "request_id": request_id, "body": content}
    return _line(asked, response, None)


def failed(asked: Asked, code: str, message: str) -> bytes:
    """The output line of a request that got no answer."""
    return _line(asked, None, {"code": code, "message": message[:2000]})


def _line(asked: Asked, response: dict[str, Any] | None, error: dict[str, Any] | None) -> bytes:
    name = hashlib.blake2b(asked.custom_id.encode(), digest_size=8).hexdigest()
    told = {"id": f"batch_req_{name}", "custom_id": asked.custom_id, "response": response, "error": error}
    return msgspec.json.encode(told).replace(b"\n", b" ") + b"\n"


_EXAMPLE = (
    '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "demo", "messages": [...]}}'
)
