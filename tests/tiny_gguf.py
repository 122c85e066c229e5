"""GGUF files of the `qwen35` architecture without real weights: full-shape ones with holes instead of data, which start
like the real thing and take a few MB of disk, and tiny random ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

FULL_ATTENTION_EVERY = 4
CONV_KERNEL = 4
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@dataclass(frozen=True)
class Shape:
    """One model's dimensions."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_value_heads: int
    n_key_heads: int
    state: int
    n_vocab: int
    n_ctx: int
    tied: bool = True
    mtp: bool = False


QWEN35_4B = Shape(32, 2560, 9216, 16, 4, 256, 32, 16, 128, 248_320, 262_144, mtp=True)
"""Qwen3.5-4B with its MTP layer, as its public configuration gives it."""


def tensors_of(s: Shape) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes (rows first, as numpy counts) in file order."""
    keys, values = s.n_key_heads * s.state, s.n_value_heads * s.state
    yield "token_embd.weight", (s.n_vocab, s.n_embd)
    yield "output_norm.weight", (s.n_embd,)
    if not s.tied:
        yield "output.weight", (s.n_vocab, s.n_embd)
    for layer in range(s.n_layer + s.mtp):
        block = {
            "attn_norm": (s.n_embd,),
            "post_attention_norm": (s.n_embd,),
            "ffn_gate": (s.n_ff, s.n_embd),
            "ffn_up": (s.n_ff, s.n_embd),
            "ffn_down": (s.n_embd, s.n_ff),
        }
        if layer == s.n_layer or (layer + 1) % FULL_ATTENTION_EVERY == 0:
            block |= {
                "attn_q": (2 * s.n_head * s.head_dim, s.n_embd),  # query and gate
                "attn_k": (s.n_head_kv * s.head_dim, s.n_embd),
                "attn_v": (s.n_head_kv * s.head_dim, s.n_embd),
                "attn_output": (s.n_embd, s.n_head * s.head_dim),
                "attn_q_norm": (s.head_dim,),
                "attn_k_norm": (s.head_dim,),
            }
        else:
            block |= {
                "attn_qkv": (2 * keys + values, s.n_embd),
                "attn_gate": (values, s.n_embd),
                "ssm_conv1d": (2 * keys + values, CONV_KERNEL),
                "ssm_beta": (s.n_value_heads, s.n_embd),
                "ssm_alpha": (s.n_value_heads, s.n_embd),
                "ssm_norm": (s.state,),
                "ssm_out": (s.n_embd, values),
            }
            yield f"blk.{layer}.ssm_dt.bias", (s.n_value_heads,)
            yield f"blk.{layer}.ssm_a", (s.n_value_heads,)
        if layer == s.n_layer:
            block |= {"nextn.eh_proj": (s.n_embd, 2 * s.n_embd)}
            block |= {f"nextn.{name}": (s.n_embd,) for name in ("enorm", "hnorm", "shared_head_norm")}
        for name, shape in block.items():
            yield f"blk.{layer}.{name}.weight", shape


def write_sparse(path: Path, s: Shape) -> Path:
    """A Q4_K file (embedding Q6_K, small tensors F32) whose weights are holes."""
    writer = gguf.GGUFWriter(str(path), "qwen35")
    _header(writer, s)
    _vocabulary(writer, s.n_vocab)
    total = 0
    for name, shape in tensors_of(s):
        small = len(shape) == 1 or "conv1d" in name
        kind = gguf.GGMLQuantizationType.F32 if small else gguf.GGMLQuantizationType.Q4_K
        if name == "token_embd.weight":
            kind = gguf.GGMLQuantizationType.Q6_K
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        n_bytes = int(np.prod(shape, dtype=np.int64)) // per_block * block_bytes
        writer.add_tensor_info(name, list(shape), np.dtype(np.float32), n_bytes, raw_dtype=kind)
        total += gguf.GGUFWriter.ggml_pad(n_bytes, writer.data_alignment)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    file: Any = writer.fout[0]
    writer.write_padding(file, file.tell())
    file.truncate(file.tell() + total)
    writer.close()
    return path


def _header(writer: Any, s: Shape) -> None:
    rotary = s.head_dim // 4
    section = (rotary // 2 + 2) // 3
    writer.add_name("full-shape qwen35 without weights")
    writer.add_block_count(s.n_layer + s.mtp)
    writer.add_context_length(s.n_ctx)
    writer.add_embedding_length(s.n_embd)
    writer.add_feed_forward_length(s.n_ff)
    writer.add_head_count(s.n_head)
    writer.add_head_count_kv(s.n_head_kv)
    writer.add_key_length(s.head_dim)
    writer.add_value_length(s.head_dim)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(rotary)
    writer.add_rope_dimension_sections([section, section, rotary // 2 - 2 * section, 0])
    writer.add_ssm_conv_kernel(CONV_KERNEL)
    writer.add_ssm_inner_size(s.n_value_heads * s.state)
    writer.add_ssm_state_size(s.state)
    writer.add_ssm_time_step_rank(s.n_value_heads)
    writer.add_ssm_group_count(s.n_key_heads)
    writer.add_full_attention_interval(FULL_ATTENTION_EVERY)
    if s.mtp:
        writer.add_nextn_predict_layers(1)


def _vocabulary(writer: Any, n_vocab: int) -> None:
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
    writer.add_chat_template(CHATML)
