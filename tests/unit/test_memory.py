"""Bytes by formula: what the engine is known to allocate, for every architecture planning knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from garra.bill import HOST
from garra.parts import shipped_card
from garra.planner.memory import Knobs, bill, checkpoint_bytes, kv_bytes, row_fits
from garra.registry import gguf
from garra.registry.card import ModelCard, of_header
from garra.spec import MIB, KvType
from tests import shapes
from tests.tiny_gguf import Model, write

KIB = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cards")


def card_of(folder: Path, model: Model) -> ModelCard:
    return of_header(gguf.read(write(folder / "one.gguf", model)))


@pytest.fixture(scope="module")
def qwen4b(folder: Path) -> ModelCard:
    return card_of(folder, shapes.qwen35_4b())


def kv_mib(card: ModelCard, knobs: Knobs) -> float:
    return sum(kv_bytes(card, layer, knobs) for layer in card.layers if not layer.drafts) / MIB


@pytest.mark.parametrize(
    ("kv_type", "context", "mib"),
    [("f16", 8192, 256), ("f16", 131072, 4096), ("q8_0", 32768, 544), ("q4_0", 131072, 1152), ("q4_0", 8192, 72)],
)
def test_qwen_keeps_a_cache_in_every_fourth_layer_only(
    qwen4b: ModelCard, kv_type: KvType, context: int, mib: float
) -> None:
    assert kv_mib(qwen4b, Knobs(context, 1, 512, kv_type, kv_type)) == mib
    assert kv_mib(qwen4b, Knobs(context // 4, 4, 512, kv_type, kv_type)) == mib, "split over four slots"


def test_recurrent_state_is_per_slot_and_per_drafted_token(qwen4b: ModelCard) -> None:
    def state_mib(slots: int, depth: int = 0) -> float:
        return bill(qwen4b, Knobs(1024, slots, 512, draft_depth=depth)).parts[HOST]["recurrent state"] / MIB

    assert state_mib(1) == 50.25
    assert state_mib(4) == 201
    assert state_mib(1, 3) == 201
    assert state_mib(2, 2) == 301.5


def test_a_9b_has_the_caches_of_a_4b_and_its_own_weights(folder: Path, qwen4b: ModelCard) -> None:
    nine = card_of(folder, shapes.qwen35_9b())
    knobs = Knobs(32768, 1, 512)
    assert kv_mib(nine, knobs) == kv_mib(qwen4b, knobs)
    assert (qwen4b.tied, nine.tied) == (True, False)
    four = bill(card_of(folder, shapes.qwen35_4b(mtp=False)), knobs).parts[HOST]
    assert four["weights"] / MIB == pytest.approx(2415.6, abs=0.1)
    assert four["compute buffer"] / MIB == pytest.approx(111, abs=1)


def test_the_drafting_layer_is_there_only_for_drafting(qwen4b: ModelCard) -> None:
    without, drafting = bill(qwen4b, Knobs(32768, 1, 512)), bill(qwen4b, Knobs(32768, 1, 512, draft_depth=2))
    assert "draft KV cache" not in without.parts[HOST]
    assert drafting.parts[HOST]["draft KV cache"] == 128 * MIB
    assert (drafting.parts[HOST]["weights"] - without.parts[HOST]["weights"]) / MIB == pytest.approx(64.8, abs=0.1)


def test_a_window_bounds_the_cache_of_its_layers(folder: Path) -> None:
    card = card_of(
        folder, shapes.gemma3(n_layer=12, n_embd=640, n_head=4, n_head_kv=1, head=256, window=512, kind="F16")
    )
    assert [layer.kind for layer in card.layers].count("window") == 10
    per_cell = 2 * 256 * 2
    knobs = Knobs(32768, 2, 512)
    assert sum(kv_bytes(card, layer, knobs) for layer in card.layers) == 2 * per_cell * (2 * 32768 + 10 * 1024)
    shared = replace(knobs, unified=True)
    assert sum(kv_bytes(card, layer, shared) for layer in card.layers) == per_cell * (2 * 65536 + 10 * 1536)


def test_latent_attention_keeps_one_narrow_cache(folder: Path) -> None:
    card = card_of(folder, shapes.deepseek2(n_embd=256, kv_rank=512, rope=64, n_head=16, kind="Q8_0", q_rank=256))
    assert kv_bytes(card, card.layers[0], Knobs(1024, 1, 512)) == 1024 * (512 + 64) * 2, "V is a view of K"


def test_without_flash_attention_scores_are_kept(qwen4b: ModelCard) -> None:
    on, off = bill(qwen4b, Knobs(8192, 1, 512)), bill(qwen4b, Knobs(8192, 1, 512, flash=False))
    assert off.parts[HOST]["compute buffer"] > 3 * on.parts[HOST]["compute buffer"]


def test_what_is_offloaded_leaves_the_host(qwen4b: ModelCard) -> None:
    knobs = Knobs(8192, 1, 512)
    cpu, whole = bill(qwen4b, knobs), bill(qwen4b, replace(knobs, gpu_layers=999), "CUDA0", context_bytes=320 * MIB)
    assert cpu.devices == ()
    assert whole.parts[HOST]["weights"] == qwen4b.input_bytes, "looking up tokens stays on the host"
    assert whole.parts["CUDA0"]["weights"] == cpu.parts[HOST]["weights"], "a tied embedding is there twice"
    assert whole.parts["CUDA0"]["device context"] == 320 * MIB
    assert "KV cache" not in whole.parts[HOST]
    ten = bill(qwen4b, replace(knobs, gpu_layers=10), "CUDA0")
    weights = ten.parts["CUDA0"]["weights"] + ten.parts[HOST]["weights"]
    assert weights == cpu.parts[HOST]["weights"] + qwen4b.input_bytes
    assert 0 < ten.parts["CUDA0"]["weights"] < whole.parts["CUDA0"]["weights"]


def test_experts_can_stay_on_the_host(folder: Path) -> None:
    card = card_of(folder, shapes.qwen3moe(n_layer=4, n_embd=256, n_ff_exp=256, kind="Q8_0"))
    knobs = Knobs(1024, 1, 512, gpu_layers=999)
    all_on, half = bill(card, knobs, "CUDA0"), bill(card, replace(knobs, experts_on_host=2), "CUDA0")
    moved = all_on.parts["CUDA0"]["weights"] - half.parts["CUDA0"]["weights"]
    assert moved == sum(layer.expert_bytes for layer in card.layers[:2])
    assert half.parts[HOST]["weights"] == all_on.parts[HOST]["weights"] + moved


def test_snapshots_of_a_hybrid_are_counted_apart(qwen4b: ModelCard) -> None:
    plain = Knobs(32768, 2, 512, cache_ram_mib=512, checkpoints=8)
    assert bill(qwen4b, plain).grows == {"prompt cache": 512 * MIB, "context checkpoints": int(50.25 * 16 * MIB)}
    assert checkpoint_bytes(qwen4b, replace(plain, draft_depth=2)) == int((50.25 + 128) * MIB), "with its draft's cache"
    assert bill(qwen4b, plain).total(HOST) == sum(bill(qwen4b, plain).parts[HOST].values())


def test_a_quantised_cache_needs_whole_blocks(folder: Path) -> None:
    odd = card_of(folder, shapes.llama(n_embd=48, n_head=4, n_head_kv=1, kind="F16"))
    assert row_fits(odd, "f16")
    assert not row_fits(odd, "q8_0")


@pytest.mark.parametrize("name", ["turbo_4b", "balanced_9b", "cpu_fallback", "demo"])
def test_shipped_cards_agree_with_their_shape(name: str) -> None:
    from garra import config

    card = shipped_card(config.load().profiles[name].model)
    assert card is not None
    assert card.weight_bytes == pytest.approx(card.file_bytes, rel=0.01)
    assert card.origin.endswith("(2026-11-29)")
    made = {"turbo_4b": shapes.qwen35_4b(), "balanced_9b": shapes.qwen35_9b()}.get(name)
    if made is not None:
        assert card.drafts
        assert (card.n_vocab, card.n_embd) == (made.n_vocab, made.values["embedding_length"])
        assert card.n_layer == made.values["block_count"] - 1
