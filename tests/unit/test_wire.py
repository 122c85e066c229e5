"""Response heads and chunk framing, cut at every possible place."""

from __future__ import annotations

import random

import pytest

from garra.proxy.wire import ChunkReader, Framing, WireError, frame, parse_head, unframe


def test_heads_are_read() -> None:
    head = parse_head(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked")
    assert (head.status, head.framing, head.keep_alive) == (200, Framing.CHUNKED, True)
    assert head.headers["content-type"] == "text/event-stream"
    head = parse_head(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 12\r\nConnection: close")
    assert (head.status, head.framing, head.length, head.keep_alive) == (400, Framing.LENGTH, 12, False)
    head = parse_head(b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin:\r\nKeep-Alive: timeout=5")
    assert (head.framing, head.keep_alive) == (Framing.UNTIL_CLOSE, False)


@pytest.mark.parametrize(
    "block",
    [b"SSH-2.0-x", b"HTTP/1.1 abc", b"HTTP/1.1 200 OK\r\nno colon here", b"HTTP/1.1 200 OK\r\nContent-Length: -1", b""],
)
def test_what_is_no_head_is_refused(block: bytes) -> None:
    with pytest.raises(WireError):
        parse_head(block)


def test_random_cuts_give_whole_chunks_only(soak: bool) -> None:
    rng = random.Random(7)
    for _ in range(20_000 if soak else 1_500):
        payloads = [
            rng.choice(
                [
                    b"data: x\n\n",
                    b"0\r\n\r\n",
                    b"\r\n" * 3,
                    bytes(rng.randrange(256) for _ in range(rng.randrange(1, 90))),
                ]
            )
            for _ in range(rng.randrange(0, 7))
        ]
        framed = [frame(payload) for payload in payloads]
        borders = {sum(map(len, framed[:n])) for n in range(len(framed) + 1)}
        wire = b"".join(framed) + b"0\r\n\r\n"
        cuts = sorted(rng.randrange(len(wire)) for _ in range(rng.randrange(0, 12)))
        reader, passed = ChunkReader(), b""
        for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            assert not reader.ended
            passed += reader.feed(wire[start:end])
            assert len(passed) in borders
        assert reader.ended
        assert passed == b"".join(framed)
        assert unframe(passed) == b"".join(payloads)


def test_one_byte_at_a_time() -> None:
    wire = frame(b"a" * 20) + frame(b"b") + b"0\r\n\r\n"
    reader = ChunkReader()
    passed = b"".join(reader.feed(wire[n : n + 1]) for n in range(len(wire)))
    assert passed == wire[:-5]
    assert reader.ended


def test_chunk_extensions_are_passed_over() -> None:
    reader = ChunkReader()
    assert unframe(reader.feed(b"3;name=value\r\nabc\r\n")) == b"abc"


@pytest.mark.parametrize(
    "wire", [b"xyz\r\nabc\r\n", b"3\r\nabcdef", b"-3\r\nabc\r\n", b"ffffffffff\r\n", b"1" * 300, b"\r\n"]
)
def test_what_is_no_chunk_is_refused(wire: bytes) -> None:
    with pytest.raises(WireError):
        ChunkReader().feed(wire)
