"""A garra whose models say nonsense: one chats, with tools and a picky template, one gives vectors, one scores."""

from __future__ import annotations

from pathlib import Path

from garra.engine import smoke
from tests import shapes
from tests.engine.test_surface import PICKY
from tests.support import Garra
from tests.tiny_gguf import write


def three_kinds(folder: Path, settings: str) -> Garra:
    """`demo`, `vectors` and `scores`, all READY; `settings` are lines of each of their tables."""
    picky = write(folder / "picky.gguf", shapes.qwen35(n_layer=4, kind="F32"), seed=3, template=PICKY)
    noise = smoke.write_noise_model(folder / "noise.gguf")
    one = Garra().configure(
        f'[profiles.demo]\nmodel = "file:{picky}"\n{settings}'
        f'[profiles.vectors]\nmodel = "file:{noise}"\nkind = "embedding"\npooling = "mean"\n{settings}'
        f'[profiles.scores]\nmodel = "file:{noise}"\nkind = "rerank"\n{settings}'
    )
    one.up("demo")
    for name in ("vectors", "scores"):
        one.run("load", name, check=True)
    return one
