"""What planning needs to know of a model: per layer, what it keeps per token, per sequence and as weights. Pure.

Which layers attend to everything, to a window, or keep a recurrent state is decided as the pinned engine decides it
(llama-model.cpp, llama-hparams.cpp and models/*.cpp of the pinned sources); tests compare both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Literal

from garra.errors import BadModel
from garra.registry.header import Header

_SWA_EVERY: Mapping[str, tuple[int, bool]] = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2moe": (4, True),
    "exaone-moe": (4, False),
    "exaone4": (4, False),
    "gemma-embedding": (6, False),
    "gemma2": (2, False),
    "gemma3": (6, False),
    "gemma3n": (5, False),
    "gpt-oss": (2, False),
    "laguna": (4, True),
    "llama4": (4, False),
    "mellum": (4, False),
    "modern-bert": (3, True),
    "muse-glimmer": (4, False),
    "olmo2": (4, False),
    "phi3": (1, False),
    "plamo3": (8, False),
    "smallthinker": (4, True),
}
"""One layer in so many attends to everything; the second value: the first of them does, not the last."""
_WINDOW_BY_DEFAULT = {"llama4": 8192}
_RECURRENT = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_INTERVAL = frozenset({"qwen35", "qwen35moe", "qwen3next", "qwen4exp", "minimax-01"})
"""Hybrids with full attention in every `full_attention_interval`-th layer."""
_BY_HEADS = frozenset(
    "jamba plamo2 granitehybrid lfm2 lfm2moe nemotron_h nemotron_h_moe kimi-linear bailingmoe3 kimi-k3 "
    "glm5-next".split()
)
"""Hybrids whose layers without KV heads are recurrent."""
_EXOTIC = frozenset("glm-dsa deepseek32 deepseek4 minimax-m3 hy-v4 dots3note falcon-h1 gemma4 mimo2 step35".split())
"""Architectures whose caches the formulas here do not describe; the engine's own accounting does."""
_REPACKED = frozenset({"Q4_0", "Q4_K", "IQ4_NL", "MXFP4"})
"""Types the engine rearranges for CPUs with AVX2 or NEON, in a buffer of its own."""
_LAYER = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"blk\.\d+\.ffn_(?:gate|up|down|gate_up)_exps\.")

LayerKind = Literal["attention", "window", "recurrent", "none"]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's part in memory."""

    kind: LayerKind
    k_width: int = 0
    """Elements of K per token, all heads."""
    v_width: int = 0
    """Of V; 0 with latent attention, where V is a view of K."""
    state_bytes: int = 0
    """Recurrent state of one sequence, f32."""
    weight_bytes: int = 0
    expert_bytes: int = 0
    """The part of the weights that only some tokens use."""
    n_ff: int = 0
    """Width of a dense feed-forward part."""
    drafts: bool = False
    """A multi-token-prediction layer: loaded, and given a cache, only for drafting."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as far as planning goes."""

    name: str
    arch: str
    n_vocab: int
    n_ctx: int
    """What it was trained on."""
    n_embd: int
    n_head: int
    query_width: int
    """Elements of a token's query, all heads."""
    latent_width: int
    """With latent attention, elements of the absorbed query and of what comes back, all heads; else 0."""
    window: int
    """Tokens a sliding-window layer sees; 0 without any."""
    layers: tuple[Layer, ...]
    input_bytes: int
    """The token embedding: it stays in host memory."""
    output_bytes: int
    """Output matrix and norm; 0 where the embedding serves as output too."""
    input_repacks: bool = False
    """On a CPU a tied embedding of this type is kept twice: as it is for looking up, repacked for the output."""
    conv_width: int = 0
    """Channels of a recurrent layer's convolution."""
    inner_width: int = 0
    """Of a recurrent layer's values."""
    gated: bool = False
    """The query brings a gate of its own width."""
    n_expert_used: int = 0
    expert_width: int = 0
    """Feed-forward width of one expert."""
    file_bytes: int = 0
    origin: str = "file"
    """`file`: from its own header; else where the facts are from, with their date."""
    exact: bool = True
    """False where the formulas are known not to describe this architecture."""

    @property
    def n_layer(self) -> int:
        """Layers that answer; those that only draft aside."""
        return sum(not layer.drafts for layer in self.layers)

    @property
    def drafts(self) -> bool:
        return any(layer.drafts for layer in self.layers)

    @property
    def tied(self) -> bool:
        """Whether the token embedding serves as output too."""
        return not self.output_bytes

    @property
    def weight_bytes(self) -> int:
        """All tensors, the drafting layers' included."""
        return self.input_bytes + self.output_bytes + sum(layer.weight_bytes for layer in self.layers)

    @property
    def recurrent(self) -> bool:
        return any(layer.kind == "recurrent" for layer in self.layers)


def of_header(header: Header) -> ModelCard:
    """The card of a file."""
    card = _of_values(header)
    weights, experts = [0] * len(card.layers), [0] * len(card.layers)
    inside, outside, repacks = 0, 0, False
    for tensor in header.tensors:
        match = _LAYER.match(tensor.name)
        if match and int(match[1]) < len(weights):
            weights[int(match[1])] += tensor.n_bytes
            experts[int(match[1])] += tensor.n_bytes if _EXPERTS.match(tensor.name) else 0
        elif tensor.name.startswith(("token_embd", "per_layer_token_embd", "position_embd", "token_types")):
            inside += tensor.n_bytes
            repacks |= tensor.name == "token_embd.weight" and tensor.kind.name in _REPACKED
        else:
            outside += tensor.n_bytes
    tied = not any(tensor.name == "output.weight" for tensor in header.tensors)
    layers = tuple(
        replace(layer, weight_bytes=weights[n], expert_bytes=experts[n]) for n, layer in enumerate(card.layers)
    )
    if tied and layers:  # the output norm alone is no output: it counts with the last layer
        layers = (*layers[:-1], replace(layers[-1], weight_bytes=layers[-1].weight_bytes + outside))
        outside = 0
    return replace(
        card,
        layers=layers,
        input_bytes=inside,
        output_bytes=outside,
        input_repacks=repacks,
        file_bytes=header.file_bytes,
    )


def of_facts(facts: Mapping[str, Any]) -> ModelCard:
    """The card of a shipped JSON file: the header's key-values and the sizes of its parts.

    Layers are taken to be of equal size: a real file's differ by the types of a few tensors.
    """
    header = Header(PurePath(facts["name"]), 3, facts["values"], (), int(facts["file_bytes"]))
    card = replace(_of_values(header), file_bytes=header.file_bytes)
    drafting = sum(layer.drafts for layer in card.layers)
    mtp = int(facts.get("mtp_bytes", 0))
    rest = card.file_bytes - int(facts["input_bytes"]) - int(facts["output_bytes"]) - mtp * bool(drafting)
    each = rest // max(1, card.n_layer)
    layers = tuple(replace(layer, weight_bytes=mtp // drafting if layer.drafts else each) for layer in card.layers)
    return replace(
        card,
        name=facts["name"],
        layers=layers,
        n_vocab=int(facts["n_vocab"]),
        input_bytes=int(facts["input_bytes"]),
        output_bytes=int(facts["output_bytes"]),
        origin=f"{facts['source']} ({facts['date']})",
    )


_MOST_LAYERS = 1024
_MOST = 1 << 31  # no count or width of a real model comes near


def _of_values(header: Header) -> ModelCard:
    """The card without weights. Raises BadModel where the numbers cannot be a model's."""
    arch = header.text("general.architecture")
    n_all = header.number(f"{arch}.block_count")
    if not arch or not 0 < n_all <= _MOST_LAYERS:
        raise BadModel(
            f"{header.path.name} describes no model: architecture {arch[:40]!r} with {n_all} layers",
            fix="point the profile at a language model's .gguf file",
        )

    def number(key: str, default: int = 0) -> int:
        return max(0, min(_MOST, header.number(f"{arch}.{key}", default)))

    def each(key: str, default: int = 0) -> tuple[int, ...]:
        return tuple(max(0, min(_MOST, n)) for n in header.numbers(f"{arch}.{key}", n_all, default))

    drafting = min(number("nextn_predict_layers"), n_all - 1)
    n_embd = number("embedding_length")
    heads = each("attention.head_count")
    n_head = max(1, *heads)
    kv_heads = each("attention.head_count_kv") if f"{arch}.attention.head_count_kv" in header.values else heads
    width = n_embd // n_head
    k, v = number("attention.key_length", width), number("attention.value_length", width)
    latent = bool(number("attention.key_length_mla"))
    window = number("attention.sliding_window", _WINDOW_BY_DEFAULT.get(arch, 0))
    windowed = _windowed(header, arch, n_all, drafting) if window else (False,) * n_all
    k_window, v_window = number("attention.key_length_swa", k), number("attention.value_length_swa", v)
    n_ff, n_ff_exp = each("feed_forward_length"), each("expert_feed_forward_length")
    used = number("expert_used_count")
    key_width = number("attention.key_length_mla", k)
    shared = number("attention.shared_kv_layers")
    layers = []
    for n in range(n_all):
        kind: LayerKind = "window" if windowed[n] else "attention"
        if _is_recurrent(header, arch, n, n_all - drafting, kv_heads[n]):
            kind = "recurrent"
        elif not kv_heads[n] or n >= n_all - shared:
            kind = "none"
        attends = kind in ("attention", "window")
        layers.append(
            Layer(
                kind=kind,
                k_width=(k_window if windowed[n] else k) * kv_heads[n] * attends,
                v_width=(v_window if windowed[n] else v) * kv_heads[n] * (attends and not latent),
                state_bytes=4 * _state(number, n_embd, n_head) if kind == "recurrent" else 0,
                n_ff=n_ff[n],
                drafts=n >= n_all - drafting,
            )
        )
    return ModelCard(
        name=header.text("general.name") or header.path.stem,
        arch=arch,
        n_vocab=header.length("tokenizer.ggml.tokens") or number("vocab_size"),
        n_ctx=number("context_length"),
        n_embd=n_embd,
        n_head=n_head,
        query_width=n_head * key_width,
        latent_width=n_head * (k + v) if latent else 0,
        window=window,
        layers=tuple(layers),
        input_bytes=0,
        output_bytes=0,
        conv_width=number("ssm.inner_size") + 2 * number("ssm.group_count") * number("ssm.state_size"),
        inner_width=number("ssm.inner_size"),
        gated=arch in _INTERVAL,
        n_expert_used=used if number("expert_count") else 0,
        expert_width=max(n_ff_exp) or max(n_ff) // max(1, used),
        exact=arch not in _EXOTIC,
    )


def _windowed(header: Header, arch: str, n_all: int, drafting: int) -> tuple[bool, ...]:
    """Which layers see a window only: as the file says layer by layer, or by its pattern, or by the architecture's."""
    key = f"{arch}.attention.sliding_window_pattern"
    if header.length(key):
        return tuple(bool(one) for one in header.numbers(key, n_all))
    default = _SWA_EVERY.get(arch)
    if default is None and key not in header.values:
        return (False,) * n_all
    every, dense_first = default or (0, False)
    every = max(0, header.number(key, every))

    def one(layer: int) -> bool:
        if layer >= n_all - drafting:
            return False
        return every == 0 or (layer % every != 0 if dense_first else layer % every < every - 1)

    return tuple(one(layer) for layer in range(n_all))


def _is_recurrent(header: Header, arch: str, layer: int, n_layer: int, n_head_kv: int) -> bool:
    if arch in _RECURRENT:
        return True
    if arch in _BY_HEADS:
        feeds = arch.startswith("nemotron") and header.numbers(f"{arch}.feed_forward_length", layer + 1)[layer]
        return not n_head_kv and not feeds
    if arch in _INTERVAL:
        if header.length(f"{arch}.attention.recurrent_layers"):
            return bool(header.numbers(f"{arch}.attention.recurrent_layers", layer + 1)[layer])
        every = max(1, header.number(f"{arch}.full_attention_interval", 4))
        return layer < n_layer and (layer + 1) % every != 0
    return False


def _state(number: Callable[[str], int], n_embd: int, n_head: int) -> int:
    """Elements a recurrent layer keeps per sequence. Source: llama_hparams::n_embd_r and n_embd_s."""
    if wkv := number("wkv.head_size"):
        return (number("token_shift_count") or 2) * n_embd + n_embd * wkv
    if cache := number("shortconv.l_cache"):
        return n_embd * (cache - 1)
    conv = max(0, number("ssm.conv_kernel") - 1)
    if head := number("kda.head_dim"):
        return 3 * (conv or 3) * n_head * head + head * head * n_head
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    return conv * (inner + 2 * number("ssm.group_count") * state) + inner * state
