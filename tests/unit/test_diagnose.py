"""Last words of real engines, and what they mean."""

from __future__ import annotations

import pytest

from garra.spec import Cause
from garra.supervisor.diagnose import LogRing, explain

NOISE = "0.00.021.004 E srv  llama_server: exiting due to model loading error"


@pytest.mark.parametrize(
    ("lines", "code", "cause", "said"),
    [
        (["error: invalid argument: --nope"], 1, Cause.BAD_FLAG, "invalid argument: --nope"),
        (['error while handling argument "-ctk": Unsupported cache type: q9', "usage"], 1, Cause.BAD_FLAG, "q9"),
        (
            [
                "0.00.020.000 E gguf_init_from_reader: invalid magic characters: 'hell', expected 'GGUF'",
                "0.00.020.500 E llama_model_load: error loading model: failed to load",
                NOISE,
            ],
            1,
            Cause.BAD_MODEL,
            "invalid magic",
        ),
        (
            [
                "0.00.033.000 E llama_model_load: error loading model: tensor 'blk.9.ffn_up.weight' data is not "
                "within the file bounds, model is corrupted or incomplete",
                NOISE,
            ],
            1,
            Cause.BAD_MODEL,
            "download it again",
        ),
        (
            ["0.00.046.000 E x: error loading model: unknown model architecture: 'llamx'"],
            1,
            Cause.BAD_MODEL,
            "does not know",
        ),
        (
            ["0.1 E x: rope.dimension_sections expected 4, got 3: error loading model"],
            1,
            Cause.BAD_MODEL,
            "newer conversion",
        ),
        (
            [
                "0.00.088.000 E ggml_aligned_malloc: insufficient memory (attempted to allocate 4398.75 MB)",
                "0.00.089.000 E llama_model_load: error loading model: unable to allocate CPU buffer",
            ],
            1,
            Cause.OOM,
            "insufficient memory",
        ),
        (["0.00.017.000 E srv start: couldn't bind HTTP server socket, hostname: X"], 1, Cause.CRASH, "couldn't bind"),
        (["0.00.017.000 I srv  all fine"], 3, Cause.CRASH, "all fine"),
        ([], 3, Cause.CRASH, "exit status 3"),
    ],
)
def test_the_line_that_names_the_cause_is_found(lines: list[str], code: int, cause: Cause, said: str) -> None:
    gone = explain(code, None, lines)
    assert gone.cause is cause
    assert said in str(gone)
    assert NOISE not in str(gone)


def test_a_signal_is_named() -> None:
    assert str(explain(None, 9, ["0.1 I srv  all fine"])) == "ended by SIGKILL"


def test_the_ring_is_bounded_whatever_comes() -> None:
    ring = LogRing()
    ring.feed(b"x" * 10_000_000)
    ring.feed(b"tail\nlast \xff line")
    lines = ring.lines()
    assert len(lines[0]) == LogRing.MAX_LINE_BYTES
    assert lines[-1] == "last \ufffd line"
    for number in range(1000):
        ring.feed(b"%d\r\n" % number)
    assert len(ring.lines()) == LogRing.MAX_LINES
    assert ring.lines()[-1] == "999"
