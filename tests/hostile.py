"""What holds for any file whatever: a header and a card, or a message; little memory, little time.

    python -m tests.hostile SECONDS [SEED]      fuzz with atheris, from the corpus of good files

CI runs it for a minute.
"""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from garra.engine.smoke import write_noise_model
from garra.errors import BadModel
from garra.registry import card, gguf
from garra.registry.header import Header

LIMIT_BYTES = 64 * 1024 * 1024
LIMIT_S = 10.0


def check(
    content: bytes,
    path: Path,
    read: Callable[[Path], Header] = gguf.read,
    card_of: Callable[[Header], object] = card.of_header,
) -> None:
    """Raises AssertionError where the reader breaks its promise; anything but BadModel passes through."""
    path.write_bytes(content)
    tracemalloc.start()
    began = time.monotonic()
    told: tuple[str, str | None] = ("a header", "and a card")
    try:
        card_of(read(path))
    except BadModel as error:
        told = (error.what, error.fix)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert all(told), "a message with a fix"
    assert peak < LIMIT_BYTES, f"{peak} bytes"
    assert time.monotonic() - began < LIMIT_S, "a hang"


def seeds(folder: Path) -> None:
    """Good files of every kind, small: without weights where they would be long."""
    from tests import shapes
    from tests.tiny_gguf import write

    write_noise_model(folder / "noise.gguf")
    for name in ("llama", "gemma3", "qwen3moe", "deepseek2", "qwen35"):
        path = write(folder / f"{name}.gguf", getattr(shapes, name)(kind="F32"))
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 8])  # a header and no more


def main() -> None:
    import atheris  # type: ignore[import-untyped]

    for name in [name for name in sys.modules if name.startswith("garra.registry")]:
        del sys.modules[name]  # imported anew below, with the counters a fuzzer steers by
    with atheris.instrument_imports(include=["garra.registry"]):
        import garra.registry.card
        import garra.registry.gguf

    def one_input(content: bytes) -> None:
        check(content, target, garra.registry.gguf.read, garra.registry.card.of_header)

    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory(prefix="gguf-fuzz-") as folder:
        corpus = Path(folder) / "corpus"
        corpus.mkdir()
        seeds(corpus)
        target = Path(folder) / "file.gguf"
        words = [
            sys.argv[0],
            f"-max_total_time={seconds}",
            "-max_len=65536",
            f"-timeout={int(LIMIT_S)}",
            "-verbosity=0",
        ]
        words += ["-rss_limit_mb=1024", f"-artifact_prefix={Path.cwd()}/", "-print_final_stats=1"]
        words += [f"-seed={sys.argv[2]}"] if len(sys.argv) > 2 else []
        words.append(str(corpus))
        atheris.Setup(words, one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
