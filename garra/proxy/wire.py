"""HTTP/1.1 responses as the engine sends them: the head, and chunked framing that is passed on, not decoded. Pure."""

from __future__ import annotations

import enum
import functools
from dataclasses import dataclass

MAX_HEAD_BYTES = 64 * 1024
MAX_CHUNK_BYTES = 64 * 1024 * 1024
_MAX_SIZE_LINE = 256


class WireError(ValueError):
    """Bytes that are not HTTP as we know it."""


class Framing(enum.Enum):
    """How the end of a body is known."""

    CHUNKED = enum.auto()
    LENGTH = enum.auto()
    UNTIL_CLOSE = enum.auto()


@dataclass(frozen=True, slots=True, eq=False)
class ResponseHead:
    """Status line and headers; header names in lower case. Equal heads are one object: it can be a cache's key."""

    status: int
    headers: dict[str, str]
    framing: Framing
    length: int
    """Body bytes, for LENGTH."""
    keep_alive: bool


@functools.lru_cache(maxsize=256)  # an engine's heads differ in their Content-Length alone
def parse_head(block: bytes) -> ResponseHead:
    """The head in `block`, which ends before the empty line. Raises WireError."""
    first, *lines = block.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
        raise WireError(f"not an HTTP status line: {first[:80]!r}")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name[0] in " \t":
            raise WireError(f"not a header: {line[:80]!r}")
        headers[name.lower()] = value.strip()
    framing, length = Framing.UNTIL_CLOSE, 0
    if "chunked" in headers.get("transfer-encoding", "").lower():
        framing = Framing.CHUNKED
    elif (given := headers.get("content-length")) is not None:
        if not given.isdigit():
            raise WireError(f"not a length: {given[:40]!r}")
        framing, length = Framing.LENGTH, int(given)
    closing = "close" in headers.get("connection", "").lower() or framing is Framing.UNTIL_CLOSE
    return ResponseHead(int(rest[:3]), headers, framing, length, keep_alive=not closing)


class ChunkReader:
    """Cuts a chunked body at chunk borders, so that what is passed on is always whole chunks.

    A chunk of the engine is one event (or a few): an incomplete one is of no use to a client, and when the engine dies
    an error event can follow without breaking the framing. The terminal chunk is withheld: whoever owns the client's
    connection writes its own.
    """

    __slots__ = ("_needed", "_pending", "ended")

    def __init__(self) -> None:
        self._pending = b""
        self._needed = 0
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        """The whole chunks, still framed, that `data` completes. Raises WireError. May be empty."""
        if self._pending:
            data = self._pending + data
            if len(data) < self._needed:
                self._pending = data
                return b""
        position, size = 0, len(data)
        while position < size:
            line_end = data.find(b"\r\n", position, position + _MAX_SIZE_LINE)
            if line_end < 0:
                if size - position >= _MAX_SIZE_LINE:
                    raise WireError("a chunk's size line does not end")
                self._needed = 0
                break
            try:
                length = int(data[position:line_end], 16)
            except ValueError:
                length = _extended_length(data[position:line_end])
            if not 0 <= length <= MAX_CHUNK_BYTES:
                raise WireError(f"a chunk of {length} bytes")
            chunk_end = line_end + 4 + length
            if chunk_end > size:
                self._needed = chunk_end - position
                break
            if data[chunk_end - 2 : chunk_end] != b"\r\n":
                raise WireError("a chunk is longer than it said")
            if length == 0:
                self.ended = True
                self._pending = b""
                return data[:position]
            position = chunk_end
        self._pending = data[position:] if position else data
        if position == size:
            self._pending = b""
            return data
        return data[:position]


def _extended_length(line: bytes) -> int:
    """The length in a size line that carries an extension."""
    word = line.split(b";")[0].strip()
    if not word or not all(byte in b"0123456789abcdefABCDEF" for byte in word):
        raise WireError(f"not a chunk size: {line[:40]!r}")
    return int(word, 16)


class StrippingReader:
    """The payload of a chunked body, for HTTP/1.0 clients."""

    __slots__ = ("_chunks", "ended")

    def __init__(self) -> None:
        self._chunks = ChunkReader()
        self.ended = False

    def feed(self, data: bytes) -> bytes:
        payload = unframe(self._chunks.feed(data))
        self.ended = self._chunks.ended
        return payload


class LengthReader:
    """A body of known length."""

    __slots__ = ("_left", "ended")

    def __init__(self, length: int) -> None:
        self._left = length
        self.ended = not length

    def feed(self, data: bytes) -> bytes:
        data = data[: self._left]
        self._left -= len(data)
        self.ended = not self._left
        return data


class CloseReader:
    """A body that ends with the connection."""

    __slots__ = ()
    ended = False

    def feed(self, data: bytes) -> bytes:
        return data


BodyReader = ChunkReader | StrippingReader | LengthReader | CloseReader


def body_reader(head: ResponseHead, *, strip: bool) -> BodyReader:
    """What finds the end of the body that follows `head`. `strip` takes chunk framing off."""
    match head.framing:
        case Framing.CHUNKED:
            return StrippingReader() if strip else ChunkReader()
        case Framing.LENGTH:
            return LengthReader(head.length)
        case Framing.UNTIL_CLOSE:
            return CloseReader()


def unframe(chunks: bytes) -> bytes:
    """The payload of whole chunks."""
    payload, position = [], 0
    while position < len(chunks):
        line_end = chunks.index(b"\r\n", position)
        length = int(chunks[position:line_end].split(b";")[0], 16)
        payload.append(chunks[line_end + 2 : line_end + 2 + length])
        position = line_end + 4 + length
    return b"".join(payload)


def frame(payload: bytes) -> bytes:
    """`payload` as one chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)
