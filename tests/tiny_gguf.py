"""GGUF files without real weights: full-shape ones with holes instead of data, which start like the real thing and take
a few MB of disk, and small random ones that really run. What the architectures look like is in `shapes.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_SMALL = ("conv1d", "norm", "bias", "ffn_gate_inp")
"""Parts of names of tensors that are never quantised, besides those of one dimension."""


@dataclass(frozen=True)
class Model:
    """A model's header and tensor table."""

    arch: str
    n_vocab: int
    values: Mapping[str, Any]
    """Key-values, without the architecture's name before them."""
    tensors: Mapping[str, tuple[int, ...]]
    """Rows first, as numpy counts."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Types of single tensors."""
    kind: str = "Q4_K"
    """Of all other matrices."""

    def kind_of(self, name: str) -> Any:
        small = len(self.tensors[name]) == 1 or any(part in name for part in _SMALL)
        return gguf.GGMLQuantizationType["F32" if small else self.kinds.get(name, self.kind)]


def write(path: Path, model: Model, *, seed: int | None = None, template: str = CHATML) -> Path:
    """The file; its weights are holes, or noise when there is a seed (then `kind` must be F32)."""
    writer = gguf.GGUFWriter(str(path), model.arch)
    writer.add_name(f"{model.arch} without real weights")
    _values(writer, model)
    _vocabulary(writer, model.n_vocab, template)
    return _finish(writer, path, model, list(model.tensors), seed)


def write_shards(path: Path, model: Model, *, seed: int) -> list[Path]:
    """The same as two files: half of the tensors each, the key-values in the first."""
    names = list(model.tensors)
    halves = (names[: len(names) // 2], names[len(names) // 2 :])
    paths = []
    for number, half in enumerate(halves):
        shard = path.with_name(f"{path.stem}-{number + 1:05}-of-00002.gguf")
        writer = gguf.GGUFWriter(str(shard), model.arch)
        if number == 0:
            writer.add_name(f"{model.arch} in two files")
            _values(writer, model)
            _vocabulary(writer, model.n_vocab, CHATML)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", len(names))
        paths.append(_finish(writer, shard, model, half, seed + number))
    return paths


def _finish(writer: Any, path: Path, model: Model, names: list[str], seed: int | None) -> Path:
    total = 0
    for name in names:
        shape = model.tensors[name]
        kind = model.kind_of(name)
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(shape, dtype=np.int64)) // per_block * block_bytes
        writer.add_tensor_info(name, list(shape), np.dtype(np.float32), n_bytes, raw_dtype=kind)
        total += gguf.GGUFWriter.ggml_pad(n_bytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file: Any = writer.fout[0]
    writer.write_padding(file, file.tell())
    if seed is None:
        file.truncate(file.tell() + total)
    else:
        noise = np.random.default_rng(seed)
        for name in names:
            shape = model.tensors[name]
            data = np.ones(shape) if "norm" in name else noise.normal(0, 0.1, shape)
            if name.endswith("ssm_a"):  # it is -exp(A): a state that decays; else it grows until it is no number
                data = -np.exp(data)
            file.write(data.astype(np.float32).tobytes())
            writer.write_padding(file, data.size * 4)
    writer.close()
    return path


def _values(writer: Any, model: Model) -> None:
    for key, value in model.values.items():
        name = f"{model.arch}.{key}"
        match value:
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case _:
                writer.add_array(name, list(value))


def _vocabulary(writer: Any, n_vocab: int, template: str) -> None:
    """256 bytes in the byte-level alphabet, fillers, and the chat tokens."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    tokens = [chr(code) for code in printable] + [chr(256 + n) for n in range(256 - len(printable))]
    tokens.append("\u0120\u0120")
    n_real = len(tokens)
    tokens += [f"[unused{n}]" for n in range(n_real, n_vocab - len(_SPECIAL))] + _SPECIAL
    kinds = [gguf.TokenType.NORMAL] * n_real
    kinds += [gguf.TokenType.UNUSED] * (n_vocab - n_real - len(_SPECIAL)) + [gguf.TokenType.CONTROL] * len(_SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen35")
    writer.add_token_list(tokens)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges(["\u0120 \u0120"])
    writer.add_eos_token_id(n_vocab - 1)
    writer.add_pad_token_id(n_vocab - 3)
    writer.add_add_bos_token(False)
    writer.add_chat_template(template)
