"""What each API's clients expect where garra itself speaks: errors, errors inside a stream, signs of life. Pure."""

from __future__ import annotations

import enum
import re

import msgspec

from garra.errors import GarraError
from garra.spec import Phase
from garra.traffic import Usage, WaitNews


class Api(enum.Enum):
    """The APIs whose answers the engine gives itself, by path."""

    CHAT = "/v1/chat/completions"
    TEXT = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"


class ErrorBody(msgspec.Struct):
    """OpenAI's error object."""

    message: str
    type: str
    code: str | None = None
    param: str | None = None


class _Envelope(msgspec.Struct):
    error: ErrorBody


class _EngineError(msgspec.Struct):
    message: str = ""


class _EngineEnvelope(msgspec.Struct):
    error: _EngineError


class EngineRefused(GarraError):
    """The engine answered with an error after its client was told to wait: it can only be told inside the stream."""

    code = "engine_refused"

    def __init__(self, status: int, body: bytes) -> None:
        try:
            what = msgspec.json.decode(body, type=_EngineEnvelope).error.message
        except msgspec.DecodeError:
            what = body[:200].decode("utf-8", "replace")
        super().__init__(what or f"the engine answered with status {status}")
        self.http_status = status


_ANTHROPIC_TYPES = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
_ANTHROPIC_TYPES |= {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}


def error_body(error: GarraError, api: Api = Api.CHAT) -> bytes:
    """The error as this API's clients expect it in an answer's body."""
    message = f"{error.what}. Fix: {error.fix}" if error.fix else error.what
    if api is Api.MESSAGES:
        kind = _ANTHROPIC_TYPES.get(error.http_status, "api_error")
        return msgspec.json.encode({"type": "error", "error": {"type": kind, "message": message}})
    kind = "invalid_request_error" if error.http_status < 500 else "server_error"
    return msgspec.json.encode(_Envelope(ErrorBody(message, kind, error.code)))


def error_event(error: GarraError, api: Api = Api.CHAT) -> bytes:
    """The same as a server-sent event; it first ends whatever event was under way.

    Anthropic's SDKs read errors only from events of that name. For responses both kinds are sent that clients know:
    some show the one, some raise at the other.
    """
    body = error_body(error, api)
    if api is Api.MESSAGES:
        return b"\n\nevent: error\ndata: " + body + b"\n\n"
    if api is Api.RESPONSES:
        told = {"code": error.code, "message": error.what}
        failed = {"type": "response.failed", "response": {"status": "failed", "error": told, "output": []}}
        return b"\n\nevent: response.failed\ndata: " + msgspec.json.encode(failed) + b"\n\ndata: " + body + b"\n\n"
    return b"\n\ndata: " + body + b"\n\n"


def heartbeat(api: Api, model: str) -> bytes:
    """An event that says nothing, for clients whose patience ignores comments."""
    match api:
        case Api.CHAT:
            choice = {"index": 0, "delta": {}, "finish_reason": None}
            kind = "chat.completion.chunk"
        case Api.TEXT:
            choice = {"index": 0, "text": "", "finish_reason": None}
            kind = "text_completion"
        case Api.RESPONSES:
            response = {"object": "response", "status": "in_progress", "model": model, "output": []}
            event = {"type": "response.in_progress", "sequence_number": 0, "response": response}
            return b"event: response.in_progress\ndata: " + msgspec.json.encode(event) + b"\n\n"
        case Api.MESSAGES:
            return b'event: ping\ndata: {"type":"ping"}\n\n'
    chunk = {"id": "garra-waiting", "object": kind, "created": 0, "model": model, "choices": [choice]}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def comment(news: WaitNews) -> bytes:
    """How the waiting goes, as a comment: `: garra queued position=3`."""
    if news.position == 0:
        said = "prefill"
    elif news.phase is Phase.LOADING:
        said = f"loading progress={news.load_fraction or 0:.2f} position={news.position}"
    else:
        said = f"queued position={news.position}"
    return f": garra {said}\n\n".encode("ascii")


_TIMINGS = re.compile(
    rb'(?:"cache_n":(\d+),)?"prompt_n":(\d+).*?"prompt_ms":([0-9.]+).*?"predicted_n":(\d+)(?:,"predicted_ms":([0-9.]+))?'
    rb'(?:[^}]*"draft_n":(\d+),"draft_n_accepted":(\d+))?',
    re.DOTALL,
)
_USAGES = (
    re.compile(rb'"completion_tokens":(\d+).*?"prompt_tokens":(\d+)', re.DOTALL),
    re.compile(rb'"input_tokens":(\d+).*?"output_tokens":(\d+)', re.DOTALL),
)


def usage_of(tail: bytes) -> Usage | None:
    """What an answer took, read from its last bytes: the engine's timings, else the API's usage; None without both.

    A search, not a parse: this is done for every answer.
    """
    at = tail.rfind(b'"timings":')
    if at >= 0 and (found := _TIMINGS.search(tail, at)) is not None:
        cached, prompt, prompt_ms, decoded, decode_ms, drafted, accepted = found.groups(b"0")
        return Usage(
            int(prompt), int(decoded), float(prompt_ms), float(decode_ms), int(cached), int(drafted), int(accepted)
        )
    for pattern in _USAGES:
        if (found := pattern.search(tail)) is not None:
            return Usage(int(found[1]), int(found[2]), 0.0)  # only their sum counts
    return None
