"""The header reader: it agrees with the `gguf` package on good files, and has a message for every bad one."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf as package
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from garra.engine.smoke import write_noise_model
from garra.errors import BadModel
from garra.registry import ggml, gguf
from garra.registry.header import Array, Header
from tests import hostile, shapes
from tests.tiny_gguf import write

MODELS = {
    "llama": shapes.llama(kind="F16"),
    "gemma3": shapes.gemma3(kind="Q8_0"),
    "qwen3moe": shapes.qwen3moe(kind="Q5_0"),
    "deepseek2": shapes.deepseek2(kind="Q8_0"),
    "qwen35": shapes.qwen35(mtp=True, kind="IQ4_NL"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


@pytest.fixture(scope="module")
def good(folder: Path) -> bytes:
    return write_noise_model(folder / "good.gguf").read_bytes()


def read(folder: Path, content: bytes) -> Header:
    path = folder / "file.gguf"
    path.write_bytes(content)
    return gguf.read(path)


def message(folder: Path, content: bytes) -> str:
    with pytest.raises(BadModel) as caught:
        read(folder, content)
    assert caught.value.fix
    return caught.value.what


@pytest.mark.parametrize("name", MODELS)
def test_it_agrees_with_the_gguf_package(folder: Path, name: str) -> None:
    path = write(folder / f"{name}.gguf", MODELS[name])
    ours, theirs = gguf.read(path), package.GGUFReader(path)
    mine = {tensor.name: tensor for tensor in ours.tensors}
    assert list(mine) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        one = mine[tensor.name]
        assert (list(one.shape), one.n_bytes, one.kind.name) == (
            [int(side) for side in tensor.shape],
            tensor.n_bytes,
            tensor.tensor_type.name,
        )
    for key, field in theirs.fields.items():
        if key.startswith("GGUF."):
            continue
        value, other = ours.values[key], field.contents()
        if isinstance(value, Array):
            assert value.length == len(other)
            if value.items is not None and value.length:
                assert list(value.items) == pytest.approx(other)
        else:
            assert value == pytest.approx(other) if isinstance(value, float) else value == other


def test_the_type_table_is_the_packages(folder: Path) -> None:
    for kind, (block, size) in package.GGML_QUANT_SIZES.items():
        assert ggml.TYPES[int(kind)] == ggml.TensorType(kind.name, block, size)


def test_a_vocabulary_of_248k_costs_no_memory(folder: Path) -> None:
    path = write(folder / "full.gguf", shapes.qwen35_4b())
    tracemalloc.start()
    header = gguf.read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert header.length("tokenizer.ggml.tokens") == 248_320
    assert peak < 2 * 1024 * 1024
    path.unlink()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"GGUF", "is cut short"),
        (b"GGUF\x00\x00\x00\x03" + bytes(16), "big-endian"),
        (b"GGUF\x01\x00\x00\x00" + bytes(16), "version 1"),
        (b"GGUF\x04\x00\x00\x00" + bytes(16), "version 4"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"lmgg\x01\x00\x00\x00", "older GGML format"),
        (b"PK\x03\x04 and so on", "ZIP or PyTorch"),
        (struct.pack("<Q", 80) + b'{"__metadata__":{}}', "safetensors"),
        (b"hello world", "begins with b'hell'"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**40, 1), "more than any model has"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**40), "more than any model has"),
    ],
)
def test_what_is_no_gguf_is_named(folder: Path, content: bytes, says: str) -> None:
    assert says in message(folder, content)


def kv(key: bytes, kind: int, payload: bytes) -> bytes:
    return struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + payload


def tensor(name: bytes, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return struct.pack("<Q", len(name)) + name + dimensions + struct.pack("<IQ", kind, offset)


def gguf_of(values: list[bytes], tensors: list[bytes], data: int = 0) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(data)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (gguf_of([kv(b"a", 4, bytes(4))] * 2, []), 'the key "a" twice'),
        (gguf_of([kv(b"a", 77, bytes(4))], []), "unknown type 77"),
        (gguf_of([kv(b"a", 8, struct.pack("<Q", 2**63))], []), "cut short"),
        (gguf_of([kv(b"a", 9, struct.pack("<IQ", 4, 2**62))], []), "cut short"),
        (gguf_of([kv(b"a", 9, struct.pack("<IQ", 8, 2**60))], []), "cut short"),
        (gguf_of([kv(b"a", 9, struct.pack("<IQ", 9, 1) * 4 + bytes(64))], []), "nested too deep"),
        (gguf_of([kv(b"general.alignment", 4, struct.pack("<I", 24))], []), "not a power of two"),
        (gguf_of([struct.pack("<Q", 70_000) + bytes(70_000)], []), "a key of 70000 bytes"),
        (gguf_of([], [tensor(b"t", (32,), 0, 0)] * 2, 256), 'the tensor "t" twice'),
        (gguf_of([], [tensor(b"t", (1,) * 5, 0, 0)], 256), "5 dimensions"),
        (gguf_of([], [tensor(b"t", (32,), 5, 0)], 256), "unknown type 5"),
        (gguf_of([], [tensor(b"t", (2**40, 2**40), 0, 0)], 256), "impossible shape"),
        (gguf_of([], [tensor(b"t", (33,), 8, 0)], 256), "which Q8_0 cannot hold"),
        (gguf_of([], [tensor(b"t", (), 8, 0)], 256), "rows of 1 elements"),
        (gguf_of([], [tensor(b"t", (32,), 0, 8)], 256), "unaligned"),
        (gguf_of([], [tensor(b"t", (32,), 0, 0), tensor(b"u", (32,), 0, 64)], 256), "overlapping another"),
        (gguf_of([], [tensor(b"t", (1024,), 0, 0)], 100), "3996 of"),
    ],
)
def test_a_lying_header_is_found_out(folder: Path, content: bytes, says: str) -> None:
    assert says in message(folder, content)


def test_a_name_that_is_no_text_is_shown_safely(folder: Path) -> None:
    said = message(folder, gguf_of([kv(b"\x1b[31m\xff" * 30, 77, b"")], []))
    assert "\x1b" not in said
    assert len(said) < 300


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_says_so(folder: Path, good: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(5, len(good) - 40))
    assert "cut short" in message(folder, good[:cut])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_hostile_files_get_a_message_or_are_read(folder: Path, good: bytes, data: st.DataObject) -> None:
    header_end = good.index(b"output_norm.weight") + 60
    content = bytearray(good)
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(4, header_end))
        content[place] = data.draw(st.integers(0, 255))
    hostile.check(bytes(content), folder / "hostile.gguf")


def header(**values: Any) -> Header:
    return Header(Path("x.gguf"), 3, values, (), 0)


def test_accessors_survive_wrong_types() -> None:
    told = header(a="text", b=3, c=Array(2, (1, 2)), d=Array(9))
    assert told.text("b") == ""
    assert told.number("a", 7) == 7
    assert told.numbers("b", 2) == (3, 3)
    assert told.numbers("c", 3) == (1, 2, 0)
    assert told.numbers("d", 2) == (0, 0)
    assert told.length("b") == 0
