"""Answers as their bytes arrive: what counts as a token, and what the server told."""

from __future__ import annotations

import pytest

from garra.bench.tap import Tap
from garra.bench.words import Sample, Slo

ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":null}}]}\n\n'
LAST = (
    b'data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5,"prompt_tokens_details":'
    b'{"cached_tokens":7}},"timings":{"cache_n":7,"prompt_n":23,"prompt_ms":46.0,"predicted_n":5,"predicted_ms":40.0,'
    b'"draft_n":8,"draft_n_accepted":6}}\n\ndata: [DONE]\n\n'
)


def token(text: str, field: str = "content") -> bytes:
    return f'data: {{"choices":[{{"delta":{{"{field}":"{text}"}}}}]}}\n\n'.encode()


def test_only_chunks_that_bear_tokens_are_stamped() -> None:
    tap = Tap()
    tap.feed(b": garra queued position=1\n\n" + ROLE, 0.1)
    tap.feed(token("A"), 0.2)
    tap.feed(token("hm", "reasoning_content"), 0.3)
    tap.feed(token(""), 0.4)
    tap.feed(b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n' + LAST, 0.5)
    assert tap.stamps_s == [0.2, 0.3]
    assert (tap.n_prompt, tap.n_cached, tap.n_output, tap.prefill_s) == (30, 7, 5, 0.046)
    assert (tap.finish, tap.done, tap.error) == ("stop", True, "")


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_pieces_may_be_cut_anywhere(size: int) -> None:
    whole, tap = ROLE + token("A") + token("B") + LAST, Tap()
    for begin in range(0, len(whole), size):
        tap.feed(whole[begin : begin + size], float(begin))
    assert len(tap.stamps_s) == 2
    assert "".join(tap.text) == "AB"
    assert tap.done


def test_an_error_inside_the_stream_is_the_answers_error() -> None:
    tap = Tap()
    tap.feed(b'data: {"error":{"message":"the engine died","type":"server_error"}}\n\n', 1.0)
    assert tap.error == "the engine died"
    garbage = Tap()
    garbage.feed(b"data: {nonsense}\n\n", 1.0)
    assert "cannot be read" in garbage.error


def test_the_wait_is_told_in_a_header_or_in_a_comment() -> None:
    header, comment = Tap(), Tap()
    header.server_timing("queue;dur=12.5, load;dur=300.0")
    comment.feed(b": garra timing queue;dur=12.5, load;dur=300.0\n\n", 0.1)
    assert (header.queue_s, header.load_s) == (comment.queue_s, comment.load_s) == (0.0125, 0.3)


def sample(stamps: tuple[float, ...], n_output: int | None, e2e_s: float = 1.0) -> Sample:
    return Sample("chat", "c1", 0, 0.0, stamps, e2e_s, "ok", n_output=n_output)


def test_tpot_counts_tokens_and_itl_chunks() -> None:
    """Two tokens in one chunk, as drafting gives them, are one gap and two tokens."""
    drafted = sample((0.5, 0.6, 0.7), n_output=5)
    assert drafted.ttft_s == 0.5
    assert drafted.tpot_s == pytest.approx(0.05)
    assert drafted.itls_s == pytest.approx([0.1, 0.1])
    assert sample((0.5,), 1).tpot_s is None
    assert sample((), None).ttft_s is None


def test_goodput_wants_every_limit_kept() -> None:
    one = sample((0.2, 0.3), 2, e2e_s=0.4)
    assert Slo(ttft_ms=200, tpot_ms=100, e2el_ms=400).kept_by(one)
    assert not Slo(ttft_ms=199).kept_by(one)
    assert not Slo(tpot_ms=99).kept_by(one)
