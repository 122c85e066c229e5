"""A GGUF file's header: key-values and tensor table, never the weights. The file is not trusted.

Every length is checked against the file and against a limit before anything is allocated or walked. Arrays of text (a
vocabulary of 248k tokens) are walked over and not kept: the header of such a file costs some 30 ms.

Layout (version 2 and 3, little-endian): magic, version, counts of tensors and of key-values, the key-values, the tensor
table, padding, then the data of the tensors one after the other.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

from garra.errors import BadModel
from garra.registry import names
from garra.registry.ggml import TYPES
from garra.registry.header import Array, Header, Number, Tensor, Value

MAX_VALUES = 4_096
MAX_TENSORS = 65_536
MAX_NAME_BYTES = 65_535
MAX_TEXT_BYTES = 8 * 1024 * 1024
"""Of all texts together that are kept."""
MAX_KEPT_ITEMS = 4_096
"""Longer arrays of numbers are known by their length alone."""
MAX_WALKED = 4_000_000
"""Texts in arrays, all together: what is walked over one by one."""
MAX_DEPTH = 3
_MAX_DIMENSIONS = 4
_WINDOW = 256 * 1024
_TEXT, _ARRAY = 8, 9
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_NEWEST = 3


def read(path: Path) -> Header:
    """The header. Raises BadModel, whose message says what is wrong with the file."""
    try:
        with path.open("rb", buffering=0) as file:
            return _read(path, file.fileno())
    except OSError as error:
        raise BadModel(f"cannot read {path}: {error.strerror}", fix="check the path in the profile's model") from None


def read_model(path: Path) -> Header:
    """The header of a whole model: with the tensors of all its shards, where `path` is the first of several."""
    first = read(path)
    others = [read(shard) for shard in _others(first)]
    if not others:
        return first
    tensors = first.tensors + tuple(tensor for header in others for tensor in header.tensors)
    if len(tensors) > MAX_TENSORS:
        raise BadModel(f"the shards of {path.name} have {len(tensors)} tensors: more than any model has")
    n_bytes = first.file_bytes + sum(header.file_bytes for header in others)
    return Header(first.path, first.version, first.values, tensors, n_bytes)


def shards(path: Path) -> tuple[Path, ...]:
    """All files of the model whose first one this is, in order. Raises BadModel."""
    return (path, *_others(read(path)))


def _others(first: Header) -> list[Path]:
    """The other shards of a model, there or not."""
    path, count = Path(first.path), first.number("split.count", 1)
    shard = names.shard_of(path.name)
    if count <= 1 and shard is None:
        return []
    if shard is None or shard != (1, count):
        raise BadModel(
            f"{path.name} is part of a model of {count} files, and not called like the first of them",
            fix="point the profile at the file that ends in -00001-of-....gguf, with the others beside it",
        )
    return [path.with_name(names.shard_name(path.name, number)) for number in range(2, count + 1)]


def _read(path: Path, descriptor: int) -> Header:
    cursor = _Cursor(path, descriptor)
    version = _version(cursor)
    n_tensors, n_values = cursor.take("<QQ")
    if n_values > MAX_VALUES or n_tensors > MAX_TENSORS:
        raise cursor.bad(f"claims {n_tensors} tensors and {n_values} key-values: more than any model has")
    values: dict[str, Value] = {}
    for _ in range(n_values):
        key = cursor.name("a key")
        if key in values:
            raise cursor.bad(f'has the key "{_shown(key)}" twice')
        (kind,) = cursor.take("<I")
        values[key] = _value(cursor, kind, key)
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.bad(f"has an alignment of {_shown(alignment)}: not a power of two")
    tensors = _tensors(cursor, n_tensors)
    data = -(-cursor.position // alignment) * alignment
    _check_extents(cursor, tensors, data, alignment)
    return Header(path, version, values, tensors, cursor.size)


def _version(cursor: _Cursor) -> int:
    if cursor.size == 0:
        raise cursor.bad("is empty")
    magic = cursor.peek(64)
    if magic[:4] != b"GGUF":
        raise cursor.bad(f"is not a GGUF file: {_guess(magic)}")
    if cursor.size < 8:
        raise cursor.cut()
    cursor.skip(4)
    (version,) = cursor.take("<I")
    if version & 0xFFFF == 0 and version:
        raise cursor.bad("is a big-endian GGUF file: it was converted for another kind of CPU")
    if version > _NEWEST:
        raise cursor.bad(f"is of GGUF version {version}; this garra reads up to {_NEWEST}", fix="update garra")
    if version < 2:
        raise cursor.bad(
            f"is of GGUF version {version}, which engines no longer load", fix="download a newer conversion"
        )
    return int(version)


def _guess(magic: bytes) -> str:
    """What a file may be instead, by its first bytes."""
    if magic.startswith(b"version https://git-lfs"):
        return "it is a Git LFS pointer, the file itself was not fetched"
    if magic.lstrip()[:1] == b"<":
        return "it is a web page, perhaps an error page saved in its place"
    if magic[:4] in (b"lmgg", b"tjgg", b"fmgg"):
        return "it is of the older GGML format"
    if magic[:4] == b"PK\x03\x04":
        return "it is a ZIP or PyTorch file"
    if magic[8:9] == b"{":
        return "it looks like safetensors: convert it first"
    return f"it begins with {magic[:4]!r}"


def _value(cursor: _Cursor, kind: int, key: str) -> Value:
    if kind in _NUMBERS:
        (number,) = cursor.take(_NUMBERS[kind])
        value: Number = number
        return value
    if kind == _TEXT:
        return cursor.text(f'the value of "{_shown(key)}"')
    if kind == _ARRAY:
        return _array(cursor, key, 1)
    raise cursor.bad(f'gives "{_shown(key)}" the unknown type {kind}')


def _array(cursor: _Cursor, key: str, depth: int) -> Array:
    kind, length = cursor.take("<IQ")
    if kind in _NUMBERS:
        form = _NUMBERS[kind]
        size = length * struct.calcsize(form)
        cursor.need(size)
        if length > MAX_KEPT_ITEMS:
            cursor.skip(size)
            return Array(length)
        return Array(length, struct.unpack(f"<{length}{form[1]}", cursor.bytes(size)))
    if kind == _TEXT:
        cursor.need(length * 8)
        cursor.walk_texts(length)
        return Array(length)
    if kind == _ARRAY and depth < MAX_DEPTH:
        cursor.need(length * 12)
        cursor.count(length)
        for _ in range(length):
            _array(cursor, key, depth + 1)
        return Array(length)
    raise cursor.bad(f'has an array under "{_shown(key)}" that is nested too deep or of the unknown type {kind}')


def _tensors(cursor: _Cursor, count: int) -> tuple[Tensor, ...]:
    cursor.need(count * 24)
    tensors: dict[str, Tensor] = {}
    for _ in range(count):
        name = cursor.name("a tensor's name")
        shown = _shown(name)
        if name in tensors:
            raise cursor.bad(f'has the tensor "{shown}" twice')
        (n_dimensions,) = cursor.take("<I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise cursor.bad(f'gives the tensor "{shown}" {n_dimensions} dimensions')
        shape = cursor.take(f"<{n_dimensions}Q")
        kind, offset = cursor.take("<IQ")
        if kind not in TYPES:
            raise cursor.bad(f'gives the tensor "{shown}" the unknown type {kind}', fix="update garra and its engine")
        form, total = TYPES[kind], 1
        for side in shape:
            total *= side
        if total >= 1 << 63:
            raise cursor.bad(f'gives the tensor "{shown}" the impossible shape {shape}')
        row = shape[0] if shape else 1
        if row % form.block:
            raise cursor.bad(f'has rows of {row} elements in "{shown}", which {form.name} cannot hold')
        tensors[name] = Tensor(name, shape, form, form.row_bytes(total), offset)
    return tuple(tensors.values())


def _check_extents(cursor: _Cursor, tensors: tuple[Tensor, ...], data: int, alignment: int) -> None:
    """Tensors lie one after the other, aligned, within the file."""
    expected = 0
    for tensor in sorted(tensors, key=lambda one: (one.offset, one.n_bytes)):
        if tensor.offset % alignment:
            raise cursor.bad(f'has the tensor "{_shown(tensor.name)}" at an unaligned place')
        if tensor.offset < expected:
            raise cursor.bad(f'has the tensor "{_shown(tensor.name)}" overlapping another')
        expected = tensor.offset + tensor.n_bytes
    missing = data + expected - cursor.size if tensors else 0
    if missing > 0:
        raise cursor.cut(missing)


def _shown(value: object) -> str:
    """A name of the file's, safe to print."""
    text = str(value)
    return "".join(letter if letter.isprintable() else "?" for letter in text[:60]) + ("..." if len(text) > 60 else "")


@dataclass(slots=True)
class _Cursor:
    """Reads a file through a window; nothing is read that was not checked to be there."""

    path: Path
    descriptor: int
    position: int = 0
    size: int = 0
    _window: bytes = b""
    _start: int = 0
    _kept: int = 0
    _walked: int = 0
    _numbers: dict[str, struct.Struct] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.size = os.fstat(self.descriptor).st_size

    def bad(self, what: str, fix: str = "download it again, or point the profile at another .gguf file") -> BadModel:
        return BadModel(f"{self.path.name} {what}", fix=fix)

    def cut(self, missing: int | None = None) -> BadModel:
        much = f": {missing} of {self.size + missing} bytes are missing" if missing else " within its header"
        return self.bad(f"is cut short{much}", fix="download it again: garra pull resumes")

    def need(self, n_bytes: int) -> None:
        if n_bytes > self.size - self.position:
            raise self.cut()

    def peek(self, n_bytes: int) -> bytes:
        return os.pread(self.descriptor, n_bytes, self.position)

    def skip(self, n_bytes: int) -> None:
        self.need(n_bytes)
        self.position += n_bytes

    def bytes(self, n_bytes: int) -> bytes:
        """The next bytes. The caller has checked that they are not many."""
        self.need(n_bytes)
        start = self.position - self._start
        if start < 0 or start + n_bytes > len(self._window):
            self._window = os.pread(self.descriptor, max(n_bytes, _WINDOW), self.position)
            self._start, start = self.position, 0
            if len(self._window) < n_bytes:
                raise self.cut()  # it shrank while we read
        self.position += n_bytes
        return self._window[start : start + n_bytes]

    def take(self, form: str) -> tuple[int, ...]:
        reader = self._numbers.get(form) or self._numbers.setdefault(form, struct.Struct(form))
        return reader.unpack(self.bytes(reader.size))

    def name(self, what: str) -> str:
        (length,) = self.take("<Q")
        if length > MAX_NAME_BYTES:
            raise self.bad(f"has {what} of {length} bytes")
        return self._text(length)

    def text(self, what: str) -> str:
        (length,) = self.take("<Q")
        self.need(length)
        if length > MAX_TEXT_BYTES:
            raise self.bad(f"holds {length} bytes of text as {what}")
        return self._text(length)

    def _text(self, length: int) -> str:
        self._kept += length
        if self._kept > MAX_TEXT_BYTES:
            raise self.bad(f"holds more than {MAX_TEXT_BYTES >> 20} MiB of text")
        return self.bytes(length).decode("utf-8", "replace")

    def count(self, n: int) -> None:
        self._walked += n
        if self._walked > MAX_WALKED:
            raise self.bad(f"holds arrays of more than {MAX_WALKED} texts")

    def walk_texts(self, n: int) -> None:
        """Go past `n` texts, each behind its length."""
        self.count(n)
        length_at = struct.Struct("<Q").unpack_from
        window, here, end = self._window, self.position - self._start, len(self._window) - 8
        for _ in range(n):
            if not 0 <= here <= end:
                self.position = self._start + here
                self.bytes(8)
                window, here, end = self._window, self.position - 8 - self._start, len(self._window) - 8
            here += 8 + length_at(window, here)[0]
        self.position = self._start + here
        if self.position > self.size:
            raise self.cut()
