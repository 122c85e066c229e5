"""What a GGUF header holds, as nouns with safe accessors. Pure; `gguf.py` reads it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from garra.registry.ggml import TensorType

Number = int | float | bool


@dataclass(frozen=True, slots=True)
class Array:
    """An array in the header; `items` holds short arrays of numbers, of others only the length is known."""

    length: int
    items: tuple[Number, ...] | None = None


Value = Number | str | Array


@dataclass(frozen=True, slots=True)
class Tensor:
    """One entry of the tensor table."""

    name: str
    shape: tuple[int, ...]
    """Innermost dimension first, as the file has it."""
    kind: TensorType
    n_bytes: int
    offset: int
    """From the start of the data."""


@dataclass(frozen=True, slots=True)
class Header:
    """What a file says of itself."""

    path: PurePath
    version: int
    values: Mapping[str, Value]
    tensors: tuple[Tensor, ...]
    file_bytes: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of all tensors, without padding."""
        return sum(tensor.n_bytes for tensor in self.tensors)

    @property
    def n_parameters(self) -> int:
        """Numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        return value if isinstance(value, str) else default

    def number(self, key: str, default: int = 0) -> int:
        """A whole number; `default` when the key is absent or something else."""
        value = self.values.get(key)
        return value if isinstance(value, int) else default

    def numbers(self, key: str, count: int, default: int = 0) -> tuple[int, ...]:
        """`count` whole numbers: one for all, or one for each. Too short an array is filled up with `default`."""
        value = self.values.get(key)
        if isinstance(value, Array) and value.items is not None:
            items = tuple(int(item) for item in value.items[:count] if item == item)  # noqa: PLR0124 - NaN is no count
            return items + (default,) * (count - len(items))
        return (self.number(key, default),) * count

    def length(self, key: str) -> int:
        """Of an array; 0 when there is none."""
        value = self.values.get(key)
        return value.length if isinstance(value, Array) else 0
