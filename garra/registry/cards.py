"""What there is to tell about a profile's model before it is loaded, from its file's header; read once per file."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from garra.dialogue import Traits
from garra.errors import BadModel
from garra.registry import gguf, store
from garra.registry.names import quant_of
from garra.registry.template import traits_of


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model file."""

    path: Path
    n_bytes: int
    modified: datetime
    architecture: str
    name: str
    quantisation: str
    n_parameters: int
    n_ctx_train: int
    n_embd: int
    template: str
    traits: Traits
    fills_in: bool
    """It knows tokens for what stands before and after a gap."""


class Cards:
    """Facts by file; a file that changed is read again. Thread-safe."""

    def __init__(self, locate: Callable[[str], Path | None]) -> None:
        self._locate = locate
        self._known: dict[tuple[Path, int, int], ModelFacts] = {}
        self._lock = threading.Lock()

    async def of(self, model: str) -> ModelFacts | None:
        """The facts of the model under this reference; None where it is not here, or no model."""
        path = self._locate(model)
        if path is None:
            return None
        try:
            stat = path.stat()
        except OSError:
            return None
        key = (path, stat.st_size, stat.st_mtime_ns)
        if (known := self._known.get(key)) is not None:
            return known
        return await asyncio.to_thread(self._read, key)

    def _read(self, key: tuple[Path, int, int]) -> ModelFacts | None:
        path, n_bytes, mtime_ns = key
        with self._lock:  # a header of a large vocabulary takes a tenth of a second: once is enough
            if key in self._known:
                return self._known[key]
            try:
                header = gguf.read_model(path)
            except BadModel:
                return None
            arch = header.text("general.architecture")
            template = header.text("tokenizer.chat_template")
            facts = self._known[key] = ModelFacts(
                path=path,
                n_bytes=n_bytes,
                modified=datetime.fromtimestamp(mtime_ns / 1e9, UTC),
                architecture=arch,
                name=header.text("general.name")[:200],
                quantisation=quant_of(path.name) or "",
                n_parameters=header.n_parameters,
                n_ctx_train=header.number(f"{arch}.context_length"),
                n_embd=header.number(f"{arch}.embedding_length"),
                template=template,
                traits=traits_of(template),
                fills_in=any(f"tokenizer.ggml.{key}" in header.values for key in _FILL_IN),
            )
            return facts


def facts_of_model(model: str) -> ModelFacts | None:
    """The same once, for commands."""
    return asyncio.run(Cards(store.locate).of(model))


_FILL_IN = ("fim_pre_token_id", "prefix_token_id")
