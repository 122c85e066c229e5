"""Architectures as headers and tensor tables: dense llama, gemma-style sliding window, qwen35 hybrid, MoE, MLA."""

from __future__ import annotations

from typing import Any

from tests.tiny_gguf import Model

Shape = tuple[int, ...]


def llama(
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_ff: int = 128,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_vocab: int = 512,
    n_ctx: int = 32_768,
    tied: bool = False,
    kind: str = "Q4_K",
) -> Model:
    """Full attention in every layer."""
    head = n_embd // n_head
    tensors = _outer(n_vocab, n_embd, tied)
    for layer in range(n_layer):
        tensors |= _block(layer, _attention(n_embd, n_head, n_head_kv, head) | _dense(n_embd, n_ff))
    values: dict[str, Any] = _common(n_layer, n_embd, n_ff, n_head, n_head_kv, n_ctx) | {"rope.dimension_count": head}
    return Model("llama", n_vocab, values, tensors, kind=kind)


def gemma3(
    *,
    n_layer: int = 6,
    n_embd: int = 64,
    n_ff: int = 128,
    n_head: int = 4,
    n_head_kv: int = 1,
    head: int = 32,
    window: int = 256,
    n_vocab: int = 512,
    n_ctx: int = 131_072,
    kind: str = "Q4_K",
) -> Model:
    """Five layers of six see a window only; tied embedding."""
    tensors = _outer(n_vocab, n_embd, tied=True)
    for layer in range(n_layer):
        block = _attention(n_embd, n_head, n_head_kv, head) | _dense(n_embd, n_ff) | _qk_norms(head)
        block |= {"post_attention_norm": (n_embd,), "post_ffw_norm": (n_embd,)}
        tensors |= _block(layer, block)
    values: dict[str, Any] = _common(n_layer, n_embd, n_ff, n_head, n_head_kv, n_ctx) | {
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.sliding_window": window,
    }
    return Model("gemma3", n_vocab, values, tensors, kind=kind)


def qwen3moe(
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_ff_exp: int = 64,
    n_expert: int = 8,
    n_expert_used: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    head: int = 32,
    n_vocab: int = 512,
    n_ctx: int = 32_768,
    kind: str = "Q4_K",
) -> Model:
    """A mixture of experts in every layer."""
    tensors = _outer(n_vocab, n_embd, tied=False)
    for layer in range(n_layer):
        block = _attention(n_embd, n_head, n_head_kv, head) | _qk_norms(head)
        tensors |= _block(layer, block | _experts(n_embd, n_ff_exp, n_expert))
    values: dict[str, Any] = _common(n_layer, n_embd, n_ff_exp * n_expert_used, n_head, n_head_kv, n_ctx) | {
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.dimension_count": head,
        "expert_count": n_expert,
        "expert_used_count": n_expert_used,
        "expert_feed_forward_length": n_ff_exp,
    }
    return Model("qwen3moe", n_vocab, values, tensors, kind=kind)


def deepseek2(
    *,
    n_layer: int = 2,
    n_embd: int = 64,
    n_ff: int = 128,
    n_ff_exp: int = 64,
    n_expert: int = 8,
    n_head: int = 4,
    q_rank: int = 64,
    kv_rank: int = 64,
    rope: int = 16,
    nope: int = 32,
    value: int = 32,
    n_vocab: int = 512,
    n_ctx: int = 32_768,
    kind: str = "Q4_K",
) -> Model:
    """Multi-head latent attention; the first layer is dense, the others mix experts."""
    tensors = _outer(n_vocab, n_embd, tied=False)
    for layer in range(n_layer):
        block: dict[str, Shape] = {
            "attn_norm": (n_embd,),
            "attn_q_a": (q_rank, n_embd),
            "attn_q_a_norm": (q_rank,),
            "attn_q_b": (n_head * (nope + rope), q_rank),
            "attn_kv_a_mqa": (kv_rank + rope, n_embd),
            "attn_kv_a_norm": (kv_rank,),
            "attn_k_b": (n_head, kv_rank, nope),
            "attn_v_b": (n_head, value, kv_rank),
            "attn_output": (n_embd, n_head * value),
        }
        if layer == 0:
            block |= _dense(n_embd, n_ff)
        else:
            block |= _experts(n_embd, n_ff_exp, n_expert)
            block |= {f"ffn_{name}_shexp": (n_ff_exp, n_embd) for name in ("gate", "up")}
            block |= {"ffn_down_shexp": (n_embd, n_ff_exp)}
        tensors |= _block(layer, block)
    values: dict[str, Any] = _common(n_layer, n_embd, n_ff, n_head, 1, n_ctx) | {
        "attention.q_lora_rank": q_rank,
        "attention.kv_lora_rank": kv_rank,
        "attention.key_length": kv_rank + rope,
        "attention.value_length": kv_rank,
        "attention.key_length_mla": nope + rope,
        "attention.value_length_mla": value,
        "rope.dimension_count": rope,
        "leading_dense_block_count": 1,
        "expert_count": n_expert,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_feed_forward_length": n_ff_exp,
    }
    odd = {name: "Q8_0" for name in tensors if "attn_k_b" in name or "attn_v_b" in name}  # their rows are short
    return Model("deepseek2", n_vocab, values, tensors, kinds=odd, kind=kind)


def qwen35(
    *,
    n_layer: int = 4,
    n_embd: int = 64,
    n_ff: int = 128,
    n_head: int = 4,
    n_head_kv: int = 2,
    head: int = 32,
    n_value_heads: int = 4,
    n_key_heads: int = 2,
    state: int = 16,
    n_vocab: int = 512,
    n_ctx: int = 262_144,
    tied: bool = True,
    mtp: bool = False,
    kind: str = "Q4_K",
) -> Model:
    """Gated delta net with full attention in every fourth layer; `mtp` adds one layer that drafts."""
    every, conv = 4, 4
    keys, values_width = n_key_heads * state, n_value_heads * state
    tensors = _outer(n_vocab, n_embd, tied)
    for layer in range(n_layer + mtp):
        block: dict[str, Shape] = {"post_attention_norm": (n_embd,), **_dense(n_embd, n_ff)}
        del block["ffn_norm"]
        if layer == n_layer or (layer + 1) % every == 0:
            block |= _attention(n_embd, n_head, n_head_kv, head) | _qk_norms(head)
            block["attn_q"] = (2 * n_head * head, n_embd)  # query and gate
        else:
            block |= {
                "attn_norm": (n_embd,),
                "attn_qkv": (2 * keys + values_width, n_embd),
                "attn_gate": (values_width, n_embd),
                "ssm_conv1d": (2 * keys + values_width, conv),
                "ssm_beta": (n_value_heads, n_embd),
                "ssm_alpha": (n_value_heads, n_embd),
                "ssm_norm": (state,),
                "ssm_out": (n_embd, values_width),
            }
            tensors |= {f"blk.{layer}.ssm_dt.bias": (n_value_heads,), f"blk.{layer}.ssm_a": (n_value_heads,)}
        if layer == n_layer:
            block |= {"nextn.eh_proj": (n_embd, 2 * n_embd)}
            block |= {f"nextn.{name}": (n_embd,) for name in ("enorm", "hnorm", "shared_head_norm")}
        tensors |= _block(layer, block)
    rotary = head // 4
    section = (rotary // 2 + 2) // 3
    values: dict[str, Any] = _common(n_layer + mtp, n_embd, n_ff, n_head, n_head_kv, n_ctx) | {
        "attention.key_length": head,
        "attention.value_length": head,
        "rope.freq_base": 1e7,
        "rope.dimension_count": rotary,
        "rope.dimension_sections": [section, section, rotary // 2 - 2 * section, 0],
        "ssm.conv_kernel": conv,
        "ssm.inner_size": values_width,
        "ssm.state_size": state,
        "ssm.time_step_rank": n_value_heads,
        "ssm.group_count": n_key_heads,
        "full_attention_interval": every,
    }
    if mtp:
        values["nextn_predict_layers"] = 1
    kinds = {"token_embd.weight": "Q6_K"} if kind == "Q4_K" else {}
    return Model("qwen35", n_vocab, values, tensors, kinds=kinds, kind=kind)


def qwen35_2b() -> Model:
    """Qwen3.5-2B, as its public configuration gives it."""
    return qwen35(n_layer=24, n_embd=2048, n_ff=6144, n_head=8, n_head_kv=2, head=256, n_value_heads=16,
                  n_key_heads=16, state=128, n_vocab=248_320)  # fmt: skip


def qwen35_4b(*, mtp: bool = True) -> Model:
    """Qwen3.5-4B, as its public configuration gives it."""
    return qwen35(n_layer=32, n_embd=2560, n_ff=9216, n_head=16, n_head_kv=4, head=256, n_value_heads=32,
                  n_key_heads=16, state=128, n_vocab=248_320, mtp=mtp)  # fmt: skip


def qwen35_9b(*, mtp: bool = True) -> Model:
    """Qwen3.5-9B, as its public configuration gives it."""
    return qwen35(n_layer=32, n_embd=4096, n_ff=12288, n_head=16, n_head_kv=4, head=256, n_value_heads=32,
                  n_key_heads=16, state=128, n_vocab=248_320, tied=False, mtp=mtp)  # fmt: skip


def _common(n_layer: int, n_embd: int, n_ff: int, n_head: int, n_head_kv: int, n_ctx: int) -> dict[str, Any]:
    return {
        "block_count": n_layer,
        "context_length": n_ctx,
        "embedding_length": n_embd,
        "feed_forward_length": n_ff,
        "attention.head_count": n_head,
        "attention.head_count_kv": n_head_kv,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }


def _outer(n_vocab: int, n_embd: int, tied: bool) -> dict[str, Shape]:
    outer: dict[str, Shape] = {"token_embd.weight": (n_vocab, n_embd), "output_norm.weight": (n_embd,)}
    return outer if tied else outer | {"output.weight": (n_vocab, n_embd)}


def _block(layer: int, parts: dict[str, Shape]) -> dict[str, Shape]:
    return {f"blk.{layer}.{name}.weight": shape for name, shape in parts.items()}


def _attention(n_embd: int, n_head: int, n_head_kv: int, head: int) -> dict[str, Shape]:
    return {
        "attn_norm": (n_embd,),
        "attn_q": (n_head * head, n_embd),
        "attn_k": (n_head_kv * head, n_embd),
        "attn_v": (n_head_kv * head, n_embd),
        "attn_output": (n_embd, n_head * head),
    }


def _qk_norms(head: int) -> dict[str, Shape]:
    return {"attn_q_norm": (head,), "attn_k_norm": (head,)}


def _dense(n_embd: int, n_ff: int) -> dict[str, Shape]:
    return {"ffn_norm": (n_embd,), "ffn_gate": (n_ff, n_embd), "ffn_up": (n_ff, n_embd), "ffn_down": (n_embd, n_ff)}


def _experts(n_embd: int, n_ff: int, n_expert: int) -> dict[str, Shape]:
    return {
        "ffn_norm": (n_embd,),
        "ffn_gate_inp": (n_expert, n_embd),
        "ffn_gate_exps": (n_expert, n_ff, n_embd),
        "ffn_up_exps": (n_expert, n_ff, n_embd),
        "ffn_down_exps": (n_expert, n_embd, n_ff),
    }
