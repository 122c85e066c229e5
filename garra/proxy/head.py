"""The first bytes of what is passed on: the engine's head as the client gets it, and what garra adds to it."""

from __future__ import annotations

import email.utils
import functools
import time
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus

from garra.proxy.wire import Framing, ResponseHead, frame
from garra.traffic import Waited

# Hop by hop, or garra's own to say.
_DROPPED = frozenset(
    "connection keep-alive proxy-connection transfer-encoding content-length te trailer upgrade server date".split()
)
_COMMENTS = {"Server-Timing": b"timing", "X-Garra-Truncated": b"truncated", "X-Garra-Mended": b"mended"}
_COMMENTS |= {"X-Garra-Profile": b"profile", "X-Garra-Context": b"context"}


def request_head(method: str, path: str, content_type: str, length: int) -> bytes:
    """Only what the engine needs: credentials, cookies and browser headers stay here."""
    return _request_lines(method, path, content_type) + b"%d\r\n\r\n" % length


@functools.lru_cache(maxsize=256)
def _request_lines(method: str, path: str, content_type: str) -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: {content_type}\r\nContent-Length: "
    return lines.encode("latin-1", "replace")


@functools.lru_cache(maxsize=256)
def is_stream(head: ResponseHead) -> bool:
    return head.status == HTTPStatus.OK and head.headers.get("content-type", "").startswith("text/event-stream")


@functools.lru_cache(maxsize=256)
def translated(head: ResponseHead, content_type: str, length: int | None) -> ResponseHead:
    """The head of the same answer in other words; `length` None: a stream."""
    framing = Framing.CHUNKED if length is None else Framing.LENGTH
    headers = {**head.headers, "content-type": content_type}
    return replace(head, headers=headers, framing=framing, length=length or 0)


@functools.lru_cache(maxsize=256)
def head_bytes(head: ResponseHead, chunked: bool, closing: bool) -> bytes:
    """The head for the client, all but its date and the empty line."""
    lines = [f"HTTP/1.1 {head.status} {_phrase(head.status)}"]
    lines += [
        f"{name.title()}: {value}"
        for name, value in head.headers.items()
        if name not in _DROPPED and not name.startswith("access-control-")
    ]
    if head.headers.get("content-type", "").startswith(("text/event-stream", "application/x-ndjson")):
        lines = [line for line in lines if not line.startswith(("Cache-Control:", "X-Accel-Buffering:"))]
        lines += ["Cache-Control: no-store", "X-Accel-Buffering: no"]
    if chunked:
        lines.append("Transfer-Encoding: chunked")
    elif head.framing is Framing.LENGTH:
        lines.append(f"Content-Length: {head.length}")
    if closing:
        lines.append("Connection: close")
    return "\r\n".join([*lines, ""]).encode("latin-1", "replace")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"


def server_timing(waited: Waited) -> bytes:
    """The parts of the wait in milliseconds, as browsers and `garra bench` read them."""
    return b"queue;dur=%.1f, load;dur=%.1f" % (waited.queue_s * 1e3, waited.load_s * 1e3)


def as_headers(told: Mapping[str, bytes]) -> bytes:
    return b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in told.items())


def as_comments(told: Mapping[str, bytes], chunked: bool) -> bytes:
    """The same for a client whose headers are out already."""
    said = b"".join(b": garra %b %b\n\n" % (_COMMENTS[name], told[name]) for name in told if name in _COMMENTS)
    return frame(said) if said and chunked else said


def date() -> bytes:
    return _date_of(int(time.monotonic()))


@functools.lru_cache(maxsize=1)
def _date_of(second: int) -> bytes:
    """The date header and the empty line that ends the head, made once a second."""
    return f"Date: {email.utils.formatdate(usegmt=True)}\r\n\r\n".encode("ascii")
