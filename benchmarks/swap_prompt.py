"""What a swap costs an agent: A with a long prompt, then B, then A's next turn, with and without kept prompts.

Two real engines share a budget that holds one of them. A is asked with a prefix of about 1,500 tokens, B with a word,
and A again with one more turn: its TTFT counts from the request to the first token, the end of B's engine and the start
of A's included. With `persist_prompts = "swap"` and `"off"`, interleaved, in one run; with SmolLM2 and with a hybrid of
noise, whose recurrent state cannot be cut. The answer to A's second turn, at temperature 0, is compared with that of an
engine that was never stopped and got the same requests.

    python benchmarks/swap_prompt.py [--rounds N] [--check]

`--check` fails when a target is missed. The last line is one JSON object; ratios are medians over rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from garra import config  # noqa: E402
from garra.engine import smoke  # noqa: E402
from tests import shapes  # noqa: E402
from tests.support import Garra, words  # noqa: E402
from tests.tiny_gguf import write  # noqa: E402

TARGETS = {"ttft_ratio": 0.12}
N_ANSWER = 24
N_WORDS = 190
"""Some 1,500 tokens."""


@dataclass
class Pass:
    """A, B, A again."""

    ttft_s: float
    """Of A's second turn."""
    cached: int
    text: str


def settings(model: str, noise: Path, persist: str, budget_mib: int) -> str:
    return f"""
memory_budget_mib = {budget_mib}
[profiles.a]
model = "{model}"
context = 4096
slots = 1
batch = 128
ubatch = 128
memory_mib = 600
min_resident_s = 0
persist_prompts = "{persist}"
[profiles.b]
model = "file:{noise}"
context = 512
slots = 1
memory_mib = 600
min_resident_s = 0
"""


def ask(client: httpx.Client, model: str, messages: list[dict[str, str]]) -> tuple[float, int, str]:
    """Seconds to the first token, tokens found in the cache, the text."""
    body: dict[str, Any] = {
        "model": model,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
        "max_tokens": N_ANSWER,
        "messages": messages,
    }
    began, first, cached, text = time.monotonic(), None, 0, ""
    with client.stream("POST", "/v1/chat/completions", json=body) as reply:
        for line in reply.iter_lines():
            if not line.startswith("data: {"):
                continue
            event = json.loads(line[6:])
            delta = event["choices"][0]["delta"].get("content") if event["choices"] else None
            if delta:
                first = first or time.monotonic()
                text += delta
            cached = event.get("timings", {}).get("cache_n", cached)
    return (first or time.monotonic()) - began, cached, text


def run(model: str, noise: Path, persist: str, n_words: int, seed: int, *, swap: bool) -> Pass:
    """`swap`: B comes in between, and there is room for one of them only."""
    garra = Garra().configure(settings(model, noise, persist, 1000 if swap else 4000)).up("a")
    try:
        with httpx.Client(base_url=garra.url, timeout=300) as client:
            messages = [
                {"role": "system", "content": words(n_words, (seed + 1) * 10_000)},
                {"role": "user", "content": "What is the first number?"},
            ]
            _, _, said = ask(client, "a", messages)
            ask(client, "b", [{"role": "user", "content": "hi"}])
            messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "And the second?"}]
            return Pass(*ask(client, "a", messages))
    finally:
        garra.close()


def compare(title: str, model: str, noise: Path, n_words: int, rounds: int) -> tuple[float, bool]:
    """The ratio with to without, and whether every answer is that of the engine that was never stopped."""
    ratios, identical = [], True
    for number in range(rounds):
        both: dict[str, Pass] = {}
        for persist in ("swap", "off")[:: 1 if number % 2 else -1]:
            both[persist] = run(model, noise, persist, n_words, number, swap=True)
        twin = run(model, noise, "swap", n_words, number, swap=False)
        identical = identical and both["swap"].text == twin.text
        ratios.append(both["swap"].ttft_s / both["off"].ttft_s)
        print(f"{title}: with {both['swap']}, without {both['off']}, never stopped {twin}", file=sys.stderr)
    return statistics.median(ratios), identical


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--rounds", type=int, default=5)
    options = options_parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gb-") as name:
        folder = Path(name)
        noise = smoke.write_noise_model(folder / "noise.gguf")
        hybrid = write(folder / "hybrid.gguf", shapes.qwen35(n_layer=8, n_embd=512, n_ff=2048, kind="F32"), seed=3)
        ratio, identical = compare("SmolLM2", config.load().profiles["demo"].model, noise, N_WORDS, options.rounds)
        hybrid_ratio, same = compare("hybrid", f"file:{hybrid}", noise, N_WORDS, options.rounds)
    result = {
        "ttft_ratio": round(ratio, 3),
        "hybrid_ttft_ratio": round(hybrid_ratio, 3),
        "identical": identical and same,
    }
    missed = [f"{key} {result[key]} > {most}" for key, most in TARGETS.items() if result[key] > most]
    missed += [] if result["identical"] else ["an answer is not that of an engine that was never stopped"]
    return conclude(result, missed, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
