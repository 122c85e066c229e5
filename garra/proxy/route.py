"""What a request wants and who asks, read from as little of it as possible. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from multidict import istr

from garra.apis.bodies import decoded
from garra.errors import BadRequest
from garra.traffic import ClientKey, Priority, Wish

_PRIORITY, _CLIENT = istr("X-Garra-Priority"), istr("X-Garra-Client")  # found faster than plain text
_CLAUDE_CODE, _CODEX = istr("X-Claude-Code-Session-Id"), istr("session-id")
_OPENCODE, _AFFINITY = istr("x-session-id"), istr("x-session-affinity")
_NORMAL = Priority.NORMAL
_TOKEN_BYTES = 4.0
_USUAL_ANSWER_TOKENS = 256.0
_SHARE_LENGTH = 64


class CallHead(msgspec.Struct):
    """The only fields of a body that routing needs; the rest is not even decoded."""

    model: str | None = None
    stream: bool | None = None
    prompt_cache_key: Any = None


_head_decoder = msgspec.json.Decoder(CallHead)


def read_call(body: bytes) -> CallHead:
    """Model and stream flag of a completion request. Raises BadRequest."""
    try:
        head = _head_decoder.decode(body)
    except (msgspec.DecodeError, RecursionError):
        head = decoded(body, CallHead)  # says what is wrong
    if not head.model:
        raise BadRequest('the request names no "model"', fix='add "model": "NAME"; GET /v1/models lists them')
    return head


def wish_of(
    profile: str,
    headers: Mapping[str, str],
    address: str,
    length: int,
    key: ClientKey | None,
    keyless: Priority,
) -> Wish:
    """The wish of a request with these headers from this address. Raises BadRequest.

    A client is its key, else its address; `X-Garra-Client` only divides that share. `X-Garra-Priority` asks for a
    class; the key's, or `keyless_priority`, is the best it gets.
    """
    client, best = (address, keyless) if key is None else (f"key {key.name}", key.priority)
    asked = headers.get(_PRIORITY)
    if asked is None:
        priority = best if best > _NORMAL else _NORMAL
    elif asked.upper() in Priority.__members__:
        priority = max(Priority[asked.upper()], best)
    else:
        classes = ", ".join(name.lower() for name in Priority.__members__)
        raise BadRequest(f'X-Garra-Priority "{asked[:40]}" is no class', fix=f"one of: {classes}")
    share = headers.get(_CLIENT, "")[:_SHARE_LENGTH]
    return Wish(profile, client, share, priority, length / _TOKEN_BYTES + _USUAL_ANSWER_TOKENS)


_LONGEST_SESSION = 200


def session_of(headers: Mapping[str, str], head: CallHead, client: str) -> bytes | None:
    """The conversation a request belongs to, where its client tells: Claude Code, Codex and opencode do in headers,
    others by OpenAI's `prompt_cache_key`."""
    get = headers.get
    told = get(_CLAUDE_CODE) or get(_CODEX) or get(_OPENCODE) or get(_AFFINITY)
    told = told or head.prompt_cache_key
    if not isinstance(told, str) or not told or len(told) > _LONGEST_SESSION:
        return None
    return hashlib.blake2b(f"{client}\0{told}".encode("utf-8", "replace"), digest_size=8).hexdigest().encode()


def spliced(body: bytes, *, drafts: bool, session: bytes | None) -> bytes:
    """The same request with what the engine is told by garra alone; a wish of the client's own stands after it and
    wins."""
    said = b"" if drafts else b'"speculate":false,'
    if session is not None:
        said += b'"session":"%b",' % session
    return b"{" + said + body.lstrip()[1:]


def fingerprint(path: str, body: bytes) -> bytes:
    """The identity of what is asked; equal for the same request sent again."""
    return hashlib.blake2b(path.encode() + b"\0" + body, digest_size=16).digest()
