"""Signs of life for streaming clients that wait, in the words of each API. Pure."""

from __future__ import annotations

import msgspec

from garra.apis.routes import Api
from garra.spec import Phase
from garra.traffic import WaitNews


def content_type(api: Api) -> str:
    """Of a stream."""
    return "application/x-ndjson" if api is Api.OLLAMA else "text/event-stream"


def heartbeat(api: Api, model: str) -> bytes:
    """An event that says nothing, for clients whose patience ignores comments."""
    match api:
        case Api.TEXT:
            choice = {"index": 0, "text": "", "finish_reason": None}
            kind = "text_completion"
        case Api.RESPONSES:
            response = {"object": "response", "status": "in_progress", "model": model, "output": []}
            event = {"type": "response.in_progress", "sequence_number": 0, "response": response}
            return b"event: response.in_progress\ndata: " + msgspec.json.encode(event) + b"\n\n"
        case Api.MESSAGES:
            return b'event: ping\ndata: {"type":"ping"}\n\n'
        case Api.ENGINE:
            return b'data: {"index":0,"content":"","tokens":[],"stop":false}\n\n'
        case Api.OLLAMA:
            message = {"role": "assistant", "content": ""}
            told = {"model": model, "created_at": "1970-01-01T00:00:00Z", "message": message, "response": ""}
            return msgspec.json.encode({**told, "done": False}) + b"\n"
        case Api.CHAT | Api.OPENAI:
            choice = {"index": 0, "delta": {}, "finish_reason": None}
            kind = "chat.completion.chunk"
    chunk = {"id": "garra-waiting", "object": kind, "created": 0, "model": model, "choices": [choice]}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def comment(news: WaitNews, api: Api = Api.CHAT) -> bytes:
    """How the waiting goes, as a comment: `: garra queued position=3`. Lines of JSON know no comments."""
    if api is Api.OLLAMA:
        return b""
    if news.position == 0:
        said = "prefill"
    elif news.phase is Phase.LOADING:
        said = f"loading progress={news.load_fraction or 0:.2f} position={news.position}"
    else:
        said = f"queued position={news.position}"
    return f": garra {said}\n\n".encode("ascii")
