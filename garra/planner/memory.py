"""Bytes an engine allocates, by formula: card + knobs -> a bill per device. Pure.

The fallback where no engine is at hand to do its own accounting (`engine/accounting.py`), and what `garra plan` uses
for machines that are only described. Sources: the pinned engine's allocation of KV cache (llama-kv-cache.cpp,
llama-kv-cache-iswa.cpp), recurrent state (llama-memory-recurrent.cpp) and weights (llama-model.cpp); the compute buffer
was read off the engine's own accounting for eleven shapes, term by term. `make plan-accuracy` holds all of it to the
engine's log.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass

from garra.bill import HOST, Bill
from garra.registry.card import Layer, ModelCard
from garra.registry.ggml import BY_NAME
from garra.spec import MIB, KvType

CHECKPOINTS = 32
"""Snapshots of the recurrent state the engine may keep per slot, in host memory (its own default)."""
_PAD = 256
_CHUNK = 64  # tokens of one sequence a recurrent layer takes at once
_F32 = 4
_PER_TOKEN = 16 * _F32  # positions, ids, indices


@dataclass(frozen=True, slots=True)
class Knobs:
    """What of a launch decides memory."""

    context: int
    """Tokens per slot."""
    slots: int
    ubatch: int
    cache_type_k: KvType = "f16"
    cache_type_v: KvType = "f16"
    flash: bool = True
    unified: bool = False
    gpu_layers: int = 0
    """Of the model's layers, those that draft and the output included; more than it has: all."""
    experts_on_host: int = 0
    """How many layers, from the first, keep their experts in host memory."""
    draft_depth: int = 0
    """Tokens a multi-token-prediction layer drafts; 0: none."""
    longest_draft: int = 0
    """Tokens drafted at a time at most, whatever drafts them."""
    cache_ram_mib: int = 0
    checkpoints: int = CHECKPOINTS
    repack: bool = True
    """Weights on the CPU are rearranged for it, where their type can be."""

    @property
    def outputs(self) -> int:
        """Tokens whose logits are kept at once: one per slot, and as many as may be drafted."""
        return self.slots * (1 + max(self.longest_draft, self.draft_depth))

    @property
    def streams(self) -> int:
        """Separate caches."""
        return 1 if self.unified else self.slots

    @property
    def cells(self) -> int:
        """Of one stream's cache."""
        return _padded(self.context * (self.slots if self.unified else 1))


def bill(
    card: ModelCard,
    knobs: Knobs,
    device: str = "gpu",
    *,
    context_bytes: int = 0,
    beside: Mapping[str, int] = types.MappingProxyType({}),
) -> Bill:
    """The bill of one engine with at most one GPU. `context_bytes`: what the driver takes for a process on it.

    `beside`: bytes of what is loaded besides the model, where it computes: a projector, a draft model.
    """
    loaded = [layer for layer in card.layers if knobs.draft_depth or not layer.drafts]
    on_gpu = _offloaded(card, knobs)
    gpu: dict[str, int] = {}
    host: dict[str, int] = {}
    for number, layer in enumerate(loaded):
        here = gpu if number in on_gpu else host
        experts = layer.expert_bytes if number < knobs.experts_on_host else 0
        _add(here, "weights", layer.weight_bytes - experts)
        _add(host, "weights", experts)
        _add(here, "draft KV cache" if layer.drafts else "KV cache", kv_bytes(card, layer, knobs))
        _add(here, "recurrent state", layer.state_bytes * knobs.slots * (1 + knobs.draft_depth))
    _add(host, "weights", card.input_bytes)
    if knobs.gpu_layers:  # the output is the first to go there
        _add(gpu, "weights", card.output_bytes or card.input_bytes)  # a tied embedding is there twice
    else:
        _add(host, "weights", card.output_bytes or card.input_bytes * (card.input_repacks and knobs.repack))
    computing = gpu if knobs.gpu_layers else host
    _add(computing, "compute buffer", compute_bytes(card, knobs))
    if computing is gpu:
        _add(host, "compute buffer", _inputs(card, knobs, 4))
        if len(on_gpu) < len(card.layers):  # what crosses over between host and GPU is there on both sides
            _add(gpu, "compute buffer", _inputs(card, knobs, 4))
    if knobs.draft_depth and card.drafts:
        _add(computing, "draft compute buffer", draft_compute_bytes(card, knobs))
        if computing is gpu:
            _add(host, "draft compute buffer", _inputs(card, knobs, 2))
    _add(host, "output buffer", _F32 * card.n_vocab * knobs.outputs)
    for name, n_bytes in beside.items():
        _add(computing, name, n_bytes)
    if gpu:
        _add(gpu, "device context", context_bytes)
    return Bill({**({device: gpu} if gpu else {}), HOST: host}, _growing(card, knobs))


def kv_bytes(card: ModelCard, layer: Layer, knobs: Knobs) -> int:
    """Bytes of one layer's KV cache, all slots; 0 for a recurrent layer.

    Shape: streams x cells x (K width x K type + V width x V type). A window's cache has as many cells as the window of
    every slot that shares it plus one ubatch, padded to 256. Source: llama_kv_cache and llama_kv_cache_iswa.
    """
    cells = knobs.cells
    if layer.kind == "window":
        shared = knobs.slots if knobs.unified else 1
        cells = _padded(min(cells, card.window * shared + knobs.ubatch))
    v_width = layer.v_width
    if not knobs.flash and v_width:  # transposed: all layers get the width of the widest
        v_width = max(one.v_width for one in card.layers)
    k_type: KvType = "f16" if layer.drafts else knobs.cache_type_k  # a draft has its own default
    v_type: KvType = "f16" if layer.drafts else knobs.cache_type_v
    row = _row_bytes(layer.k_width, k_type) + _row_bytes(v_width, v_type)
    return knobs.streams * cells * row


def compute_bytes(card: ModelCard, knobs: Knobs) -> int:
    """Bytes of the compute buffer: the largest set of tensors that is alive at one time, while a whole ubatch runs.

    E, F, Q, C, V: widths of embedding, feed-forward, query, convolution and recurrent values. Alive at once besides the
    mask: 3F + 5E in a dense feed-forward part; with u experts of width f, 3uf + 5E, and uE more where that does not fit
    into what 2uf left free; in attention 5E + 2Q + K + V (a gate: one Q more), without flash attention a score per head
    and cell; in a recurrent layer 5E + 2C + V (2V in more than one chunk) per token, and two states, one more per
    drafted token, per slot.
    """
    e, q, ub = card.n_embd, card.query_width, knobs.ubatch
    attention = max((layer for layer in card.layers if layer.k_width), key=lambda one: one.k_width, default=None)
    alive = [3 * max((layer.n_ff for layer in card.layers if not layer.expert_bytes), default=0) + 5 * e]
    if card.n_expert_used:
        used, f = card.n_expert_used, card.expert_width
        alive.append(3 * used * f + 5 * e + (used * e if e > 2 * f else 0))
    cells = _mask_cells(card, knobs)
    if attention is not None:
        scores = 0 if knobs.flash else card.n_head * max(cells)
        if card.latent_width:
            alive.append(6 * e + q + card.latent_width + scores)
        else:
            alive.append(5 * e + (2 + card.gated) * q + attention.k_width + attention.v_width + scores)
    elements = max(alive) * ub
    if card.recurrent and (knobs.draft_depth or ub <= _CHUNK * knobs.slots):  # else it is less than the others
        elements = max(elements, _recurrent_elements(card, knobs))
    elements = max(elements, card.n_vocab * knobs.outputs)
    mask = sum(cells) * (2 if knobs.flash else 4) * ub
    return _F32 * elements + mask + _PER_TOKEN * ub


def draft_compute_bytes(card: ModelCard, knobs: Knobs) -> int:
    """Bytes of the second compute buffer: a multi-token-prediction layer runs in a context of its own."""
    f = max((layer.n_ff for layer in card.layers if layer.drafts), default=0)
    mask = 2 * knobs.cells * knobs.ubatch
    return (3 * f + 2 * card.n_embd) * _F32 * knobs.ubatch + mask + _PER_TOKEN * knobs.ubatch


def checkpoint_bytes(card: ModelCard, knobs: Knobs) -> int:
    """Bytes of one snapshot of a slot at its longest: its recurrent state, and the drafting layer's cache."""
    state = sum(layer.state_bytes for layer in card.layers)
    drafting = sum(kv_bytes(card, layer, knobs) for layer in card.layers if layer.drafts) if knobs.draft_depth else 0
    return state + drafting // knobs.slots


def row_fits(card: ModelCard, kv_type: KvType) -> bool:
    """Whether this cache type can hold the model's heads: quantised types store whole blocks."""
    kind = BY_NAME[kv_type.upper()]
    return all(layer.k_width % kind.block == 0 and layer.v_width % kind.block == 0 for layer in card.layers)


def _recurrent_elements(card: ModelCard, knobs: Knobs) -> int:
    state = max(layer.state_bytes for layer in card.layers) // _F32
    conv = 3 * card.conv_width  # a convolution of 4 keeps 3
    per_slot = (2 + knobs.draft_depth) * (state - conv) + conv
    values = 2 if knobs.ubatch > _CHUNK * knobs.slots else 1
    per_token = 5 * card.n_embd + 2 * card.conv_width + values * card.inner_width
    return knobs.slots * per_slot + knobs.ubatch * per_token


def _mask_cells(card: ModelCard, knobs: Knobs) -> list[int]:
    """Cells of each mask: one for full attention, one for windows."""
    kinds = {layer.kind for layer in card.layers}
    cells = [knobs.cells] if "attention" in kinds else []
    if "window" in kinds:
        shared = knobs.slots if knobs.unified else 1
        cells.append(_padded(min(knobs.cells, card.window * shared + knobs.ubatch)))
    return cells or [0]


def _inputs(card: ModelCard, knobs: Knobs, n_copies: int) -> int:
    """Bytes of the host's part of the work when a GPU computes: copies of the embedding's rows, mask, positions."""
    mask = sum(_mask_cells(card, knobs)) * (2 if knobs.flash else 4) * knobs.ubatch
    return n_copies * card.n_embd * _F32 * knobs.ubatch + mask + _PER_TOKEN * knobs.ubatch


def _offloaded(card: ModelCard, knobs: Knobs) -> range:
    """Numbers of the layers on the GPU: the last ones. The output counts as one more layer (llama-model.cpp)."""
    n_all = len(card.layers)
    return range(max(n_all + 1 - knobs.gpu_layers, 0), n_all if knobs.gpu_layers else 0)


def _growing(card: ModelCard, knobs: Knobs) -> dict[str, int]:
    """Host memory that fills up in use: prompts that left their slot, and snapshots for models that cannot rewind."""
    growing = {"prompt cache": knobs.cache_ram_mib * MIB}
    if card.recurrent:
        growing["context checkpoints"] = checkpoint_bytes(card, knobs) * knobs.checkpoints * knobs.slots
    return {name: n_bytes for name, n_bytes in growing.items() if n_bytes}


def _row_bytes(width: int, kv_type: KvType) -> int:
    kind = BY_NAME[kv_type.upper()]
    return -(-width // kind.block) * kind.block_bytes


def _padded(cells: int) -> int:
    return -(-cells // _PAD) * _PAD


def _add(parts: dict[str, int], name: str, n_bytes: int) -> None:
    if n_bytes > 0:
        parts[name] = parts.get(name, 0) + n_bytes
