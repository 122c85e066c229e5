"""Every way to speculate on a real engine, a request that goes without, and conversations too long for their slot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import shapes
from tests.support import Garra, words
from tests.tiny_gguf import write


def ask(garra: Garra, text: str, *, n: int = 48, **more: Any) -> dict[str, Any]:
    body = {"model": "demo", "max_tokens": n, "temperature": 0, "messages": [{"role": "user", "content": text}], **more}
    reply = httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    told: dict[str, Any] = reply.json()
    return told


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small hybrid with an MTP layer, of random weights."""
    model = shapes.qwen35(mtp=True, kind="F32")
    return write(tmp_path_factory.mktemp("tiny") / "tiny.gguf", model, seed=7)


def test_a_model_that_drafts_for_itself_is_nearly_always_right(garra: Garra, demo_model: Path) -> None:
    settings = (
        f'speculation = "draft"\ndraft_model = "file:{demo_model}"\ncontext = 2048\nsampling.repeat_penalty = 1.0'
    )
    garra.configure(f"[profiles.demo]\n{settings}").up("demo")
    timings = ask(garra, "Tell me about the sea.")["timings"]
    assert timings["draft_n"] > 10
    assert timings["draft_n_accepted"] / timings["draft_n"] > 0.9
    assert "accepted" in garra.engine()["drafting"]
    plain = ask(garra, "Tell me about the hills.", speculate=False)["timings"]
    assert plain.get("draft_n", 0) == 0  # garra's patch 0003


def test_mtp_runs_on_a_model_that_has_the_layer(garra: Garra, tiny: Path) -> None:
    garra.configure(f'[profiles.demo]\nmodel = "file:{tiny}"\nspeculation = "mtp"\ncontext = 2048\nmax_tokens = 32').up(
        "demo"
    )
    told = ask(garra, "abc", ignore_eos=True)
    assert told["usage"]["completion_tokens"] == 48
    assert told["timings"]["draft_n"] > 0


@pytest.mark.parametrize("kind", ["mod", "map-k"])
def test_ngrams_draft_what_was_seen(garra: Garra, kind: str) -> None:
    settings = f'speculation = "ngram"\nngram = "{kind}"\nngram_match = 6\nngram_draft = 16\ncontext = 2048'
    garra.configure(f"[profiles.demo]\n{settings}").up("demo")
    text = "one two three four five six seven eight nine ten. " * 12
    drafted = [ask(garra, f"{n}. Repeat: {text}", n=96)["timings"].get("draft_n", 0) for n in range(4)]
    assert any(drafted)


def chat(n_turns: int, filler: str) -> list[dict[str, str]]:
    turns = [
        {"role": role, "content": f"{role} {n}: {filler}"} for n in range(n_turns) for role in ("user", "assistant")
    ]
    return [{"role": "system", "content": "You are brief."}, *turns, {"role": "user", "content": "Say hello."}]


def test_a_conversation_that_outgrows_its_slot_is_refused_with_counts(garra: Garra) -> None:
    garra.configure("[profiles.demo]\ncontext = 512").up("demo")
    body = {"model": "demo", "max_tokens": 8, "messages": chat(12, words(20)), "stream": True}
    reply = httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180)
    error = reply.json()["error"]
    assert reply.status_code == 400
    assert error["n_prompt_tokens"] > error["n_ctx"] == 512


@pytest.mark.parametrize("stream", [False, True])
def test_or_loses_its_middle_and_says_so(garra: Garra, stream: bool) -> None:
    garra.configure('[profiles.demo]\ncontext = 512\noverflow = "truncate_middle"').up("demo")
    body = {"model": "demo", "max_tokens": 8, "messages": chat(12, words(20)), "stream": stream}
    reply = httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180)
    assert reply.status_code == 200, reply.text
    told = reply.headers["X-Garra-Truncated"]
    assert told.startswith("messages=")
    assert int(told.split("=")[1].split(",")[0]) >= 8
    assert ("[DONE]" in reply.text) is stream
    metrics = httpx.get(f"{garra.url}/metrics").text
    assert 'garra_truncated_total{profile="demo"} 1.0' in metrics
    hopeless = {"model": "demo", "messages": [{"role": "system", "content": words(900)}]}
    assert httpx.post(f"{garra.url}/v1/chat/completions", json=hopeless, timeout=180).status_code == 400
    assert garra.engine()["leases"] == 0


def test_drafting_that_loses_is_turned_off_while_it_serves(garra: Garra, demo_model: Path) -> None:
    """A model that drafts for itself is always right and always twice as slow: on a CPU that loses beyond doubt."""
    settings = f'speculation = "draft"\ndraft_model = "file:{demo_model}"\ncontext = 1024\nslots = 1'
    garra.configure(f"[profiles.demo]\n{settings}").up("demo")
    drafted = [ask(garra, f"Story {n}.", n=24, ignore_eos=True)["timings"].get("draft_n", 0) > 0 for n in range(20)]
    assert 7 <= sum(drafted) <= 13  # both kinds while it learns
    assert "off: it loses" in garra.engine()["drafting"]
    assert "drafting off: it loses" in garra.run("status").stdout
    later = [ask(garra, f"Tale {n}.", n=24, ignore_eos=True)["timings"].get("draft_n", 0) > 0 for n in range(8)]
    assert sum(later) <= 1
