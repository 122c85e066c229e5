"""What is recorded of live traffic and what is written down of requests: shapes and figures, never a word."""

from __future__ import annotations

import json
import logging

import pytest

from garra.bench.session import dice
from garra.bench.traffic import BLOCK_CHARS, Recorded, Said, blocks_of, shape_of, talk_of
from garra.errors import QueueFull
from garra.logs import JsonLines
from garra.proxy import journal
from garra.traffic import Wish


def body(*texts: str, **more: object) -> bytes:
    messages = [{"role": "user" if n % 2 else "system", "content": text} for n, text in enumerate(texts)]
    return json.dumps({"model": "m", "messages": messages, **more}).encode()


def made(asked: bytes) -> str:
    messages, blocks, wanted = shape_of(asked)
    talk = talk_of(Recorded(0.0, "m", "/", wanted, messages, blocks), dice(1))
    return "".join(str(message["content"]) for message in talk.turns[0].new)


def test_a_shape_has_lengths_and_no_text() -> None:
    messages, blocks, wanted = shape_of(body("secret " * 100, "hello", max_tokens=7))
    assert messages == [Said("system", 700), Said("user", 5)]
    assert (len(blocks), wanted) == (3, 7)
    assert "secret" not in str((messages, blocks))
    assert shape_of(b'{"model":"m","prompt":"abc"}')[0] == [Said("user", 3)]
    assert shape_of(b"not json") == ([], [], None)
    parts = [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:..."}}]
    assert shape_of(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode())[0] == [Said("user", 3)]


def test_what_shared_a_beginning_shares_one_again() -> None:
    handbook = "the handbook " * 60
    one, other, third = (
        made(body(handbook, "who?")),
        made(body(handbook, "why is that so?")),
        made(body("x" * 900, "?")),
    )
    shared = len(handbook) // BLOCK_CHARS * BLOCK_CHARS
    assert one[:shared] == other[:shared]
    assert one[:20] != third[:20]
    assert len(one) == len(handbook) + 4
    assert "handbook" not in one
    assert blocks_of("a" * 300)[0] == blocks_of("a" * 256 + "b")[0]


def test_a_request_is_one_line_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "garra.requests")
    journal.take_down("id-1", "/v1/chat/completions", Wish("demo", "key ci"), None, 0.5, QueueFull("full", fix="wait"))
    (record,) = caplog.records
    told = json.loads(JsonLines().format(record))
    assert told["request_id"] == "id-1"
    assert (told["profile"], told["client"], told["error"], told["e2e_ms"]) == ("demo", "key ci", "queue_full", 500.0)
    assert told["level"] == "info"


def test_an_id_of_the_clients_own_is_kept_if_it_is_sane() -> None:
    assert journal.identify({"X-Request-Id": "abc-1.2:3"}) == "abc-1.2:3"
    first, second = journal.identify({}), journal.identify({"X-Request-Id": "evil\r\nSet-Cookie: x"})
    assert first != second
    assert "\r" not in second
    assert len(journal.identify({"X-Request-Id": "x" * 65})) < 65
