"""Prompts over swaps, with real engines: what comes back is found, and says what an engine says that never left."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from garra.engine import smoke
from tests import shapes
from tests.engine.conftest import Make
from tests.support import Garra, eventually, words
from tests.tiny_gguf import write

SYSTEM = words(150)
"""Some 750 tokens."""


def table(name: str, model: str, persist: str) -> str:
    return f"""
[profiles.{name}]
model = "{model}"
context = 4096
slots = 2
threads = 1
memory_mib = 600
min_resident_s = 0
persist_prompts = "{persist}"
"""


def two(model: str, noise: Path, persist: str = "swap") -> Garra:
    """`a` and `b`, of which one fits."""
    top = "memory_budget_mib = 1000\n"
    return Garra().configure(top + table("a", model, persist) + table("b", f"file:{noise}", "off"))


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return smoke.write_noise_model(tmp_path_factory.mktemp("noise") / "noise.gguf")


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Large enough for a prefill that is worth keeping."""
    model = shapes.qwen35(n_layer=8, n_embd=512, n_ff=2048, kind="F32")
    return f"file:{write(tmp_path_factory.mktemp('hybrid') / 'h.gguf', model, seed=3)}"


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> str:
    """In full precision: however a prompt is cut into batches, its logits are the same in three places."""
    model = shapes.llama(n_layer=8, n_embd=512, n_ff=2048, n_head=8, n_head_kv=4, kind="F32")
    return f"file:{write(tmp_path_factory.mktemp('dense') / 'd.gguf', model, seed=3)}"


@pytest.fixture(scope="module")
def smol() -> str:
    from garra import config

    return config.load().profiles["demo"].model


class Talk:
    """A conversation with one profile, at temperature 0."""

    def __init__(self, garra: Garra, model: str, system: str = SYSTEM, n: int = 16) -> None:
        self.garra = garra
        self.model = model
        self.n = n
        self.messages = [{"role": "system", "content": system}]

    def say(self, text: str) -> tuple[int, int, str]:
        """Tokens found, tokens computed, the answer."""
        self.messages.append({"role": "user", "content": text})
        more = {"temperature": 0, "max_tokens": self.n, "ignore_eos": True}
        reply = httpx.post(
            f"{self.garra.url}/v1/chat/completions",
            json={"model": self.model, "messages": self.messages, **more},
            timeout=180,
        )
        assert reply.status_code == 200, reply.text
        told = reply.json()
        said = str(told["choices"][0]["message"]["content"])
        self.messages.append({"role": "assistant", "content": said})
        return told["timings"]["cache_n"], told["timings"]["prompt_n"], said


def swap(garra: Garra) -> None:
    """`b` takes the place of `a`, and answers something."""
    body = {"model": "b", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180).status_code == 200
    assert garra.engine("a")["phase"] == "cold"


def counted(garra: Garra, event: str, profile: str = "a") -> float:
    text = httpx.get(f"{garra.url}/metrics").text
    line = next(one for one in text.splitlines() if f'event="{event}",profile="{profile}"' in one)
    return float(line.rpartition(" ")[2])


@pytest.fixture
def serve() -> Iterator[Any]:
    made: list[Garra] = []

    def make(garra: Garra, profile: str = "a") -> Garra:
        made.append(garra)
        return garra.up(profile)

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("kind", ["smol", "hybrid"])
def test_the_next_turn_after_a_swap_is_as_if_there_had_been_none(
    serve: Any, noise: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    garra = serve(two(model, noise))
    talk, twin = Talk(garra, "a"), Talk(serve(two(model, noise)), "a")
    assert talk.say("What is the first number?")[2] == twin.say("What is the first number?")[2]
    for turn in ("And the second?", "And the third?"):
        swap(garra)
        found, computed, said = talk.say(turn)
        assert found > 600, (found, computed)
        assert said == twin.say(turn)[2]
    assert counted(garra, "saved") >= 2
    assert counted(garra, "restored") >= 2
    eventually(lambda: counted(garra, "verified") >= 2)
    assert counted(garra, "missed") == counted(garra, "failed") == 0
    assert garra.engine("a")["prompts"] == ""


def test_a_turn_that_leaves_part_of_the_last_one_out(serve: Any, noise: Path, hybrid: str) -> None:
    """As templates of thinking models do: the prompt is cut back to a checkpoint, which came with the slot."""
    garra = serve(two(hybrid, noise))
    talk, twin = Talk(garra, "a", n=40), Talk(serve(two(hybrid, noise)), "a", n=40)
    for one in (talk, twin):
        one.say("What is the first number?")
        one.messages[-1]["content"] = "short"
    swap(garra)
    found, _, said = talk.say("And the second?")
    assert found > 600
    assert said == twin.say("And the second?")[2]


def files(garra: Garra) -> list[Path]:
    return sorted((Path(garra.env["XDG_CACHE_HOME"]) / "garra" / "prompts").glob("*/*"))


@pytest.mark.parametrize(("persist", "found"), [("swap", False), ("always", True), ("off", False)])
def test_only_always_outlives_garra(serve: Any, noise: Path, smol: str, persist: str, found: bool) -> None:
    garra = serve(two(smol, noise, persist))
    talk = Talk(garra, "a")
    talk.say("What is the first number?")
    swap(garra)
    assert bool(files(garra)) == (persist != "off")
    assert {path.stat().st_mode & 0o777 for path in files(garra)} <= {0o600}
    talk.say("And the second?")
    garra.stop()
    assert bool(files(garra)) == found
    garra.process = None
    garra.up("a")
    assert (talk.say("And the third?")[0] > 600) == found


def test_a_damaged_file_costs_a_prefill(serve: Any, noise: Path, smol: str) -> None:
    garra = serve(two(smol, noise))
    talk, twin = Talk(garra, "a"), Talk(serve(two(smol, noise)), "a")
    for one in (talk, twin):
        one.say("What is the first number?")
    for spoil in ("flipped", "cut"):
        swap(garra)
        eventually(lambda: [path for path in files(garra) if path.suffix == ".json"])
        (file,) = (path for path in files(garra) if path.suffix == ".slot")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data if spoil == "flipped" else data[:-1000])
        found, _, said = talk.say("Once more?")
        assert found < 100
        assert said
        assert garra.engine("a")["restarts"] == 0, "it never reached the engine"
    assert counted(garra, "failed") >= 1


def test_another_setting_wipes(serve: Any, noise: Path, smol: str) -> None:
    garra = serve(two(smol, noise))
    talk = Talk(garra, "a")
    talk.say("What is the first number?")
    swap(garra)
    before = [path for path in files(garra) if path.suffix == ".slot"]
    assert before
    config = Path(garra.env["XDG_CONFIG_HOME"]) / "garra" / "profiles.toml"
    config.write_text(config.read_text().replace("context = 4096", "context = 2048", 1))
    garra.run("reload", check=True)
    assert talk.say("And the second?")[0] < 100
    assert not set(before) & set(files(garra))


def test_warmed_beginnings_come_first_and_stay(serve: Any, noise: Path, smol: str, tmp_path: Path) -> None:
    garra = serve(two(smol, noise))
    prompt = tmp_path / "agent.txt"
    prompt.write_text(SYSTEM)
    told = json.loads(garra.run("cache", "warm", "a", str(prompt), "--json", check=True).stdout)
    assert told["n_tokens"] > 600
    assert told["label"] == "agent"
    listed = garra.run("cache", "list").stdout
    assert "agent" in listed
    assert garra.run("cache", "show", "agent").returncode == 0
    swap(garra)
    found, computed, _ = Talk(garra, "a").say("What is the first number?")
    assert found > 600
    assert computed < 60
    swap(garra)
    assert Talk(garra, "a").say("Something else?")[0] > 600, "also for a conversation nobody had before"
    assert garra.run("cache", "clear", "a").returncode == 0
    assert json.loads(garra.run("cache", "list", "--json").stdout) == []
    assert garra.run("cache", "show", "agent").returncode == 4


def test_a_stub_that_saves_nothing_is_swapped_all_the_same(stubbed: Make) -> None:
    """It knows no slot files: a line in the log, and nothing else."""
    garra = stubbed("late").up("demo")
    assert garra.run("unload", "demo").returncode == 0
    eventually(lambda: garra.engine()["phase"] == "cold")
    assert garra.run("load", "demo").returncode == 0


def test_random_interleavings_never_change_an_answer(
    serve: Any, noise: Path, dense: str, hybrid: str, soak: bool
) -> None:
    """Two conversations, swaps, crashes, changed settings, damaged files, a full store, against a twin that was never
    stopped. Where a prompt must be computed anew its logits differ in the last places: the first token's logprobs are
    compared then."""
    seed = int(os.environ.get("GARRA_TEST_SEED") or random.randrange(1 << 30))
    print("seed", seed)
    chance = random.Random(seed)
    for model in (dense, hybrid):
        garra, twin = serve(two(model, noise)), serve(two(model, noise))
        ours = [Talk(garra, "a", words(120, n * 5000), n=8) for n in range(2)]
        theirs = [Talk(twin, "a", words(120, n * 5000), n=8) for n in range(2)]
        for step in range(100 if soak else 6):
            happened = chance.choice(["swap", "swap", "crash", "spoil", "full", "none"])
            match happened:
                case "swap":
                    swap(garra)
                case "crash":
                    crash(garra)
                case "spoil":
                    swap(garra)
                    spoil(garra, chance)
                case "full":
                    (Path(garra.env["XDG_CACHE_HOME"]) / "garra" / "prompts" / "a").mkdir(parents=True, exist_ok=True)
                    settings(garra, f"prompt_store_mib = {chance.choice([0, 5, 4096])}")
            n = chance.randrange(2)
            if len(ours[n].messages) > 12:
                ours[n].messages, theirs[n].messages = ours[n].messages[:1], theirs[n].messages[:1]
            compare(ours[n], theirs[n], f"Question {step}?", happened)
        assert garra.engine("a")["prompts"] == "", "nothing was missed"


def compare(ours: Talk, theirs: Talk, text: str, happened: str) -> None:
    """The same answer, and logprobs that agree in five places. Where more had to be computed anew, in other batches
    than the twin did before: the first token's logprob within 0.05, and then both compute it all anew, and agree."""
    answers = [first_token(talk, text) for talk in (ours, theirs)]
    (first, said, found), (other, also, found_there) = answers
    apart = max((abs(first[token] - other[token]) for token in list(other)[:1] if token in first), default=0.0)
    print(text, happened, f"found {found} and {found_there}, {apart:.4f} apart", "" if said == also else "DIFFERENT")
    assert apart < 0.05
    if found < found_there:
        (first, said, _), (other, also, _) = (first_token(talk, text, anew=True) for talk in (ours, theirs))
    assert said == also
    assert all(abs(first[token] - other[token]) < 1e-5 for token in first)
    for talk in (ours, theirs):
        talk.messages += [{"role": "user", "content": text}, {"role": "assistant", "content": also}]


def first_token(talk: Talk, text: str, *, anew: bool = False) -> tuple[dict[int, float], str, int]:
    """Logprobs of the likeliest first tokens, the answer, and how many tokens of the prompt were found."""
    body = {
        "model": talk.model,
        "messages": [*talk.messages, {"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": talk.n,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 10,
        "cache_prompt": not anew,
    }
    reply = httpx.post(f"{talk.garra.url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    told = reply.json()
    choice = told["choices"][0]
    tokens = (choice.get("logprobs") or {}).get("content") or [{"top_logprobs": []}]  # none, where it said no text
    likely = {one["id"]: one["logprob"] for one in tokens[0]["top_logprobs"]}  # many tokens look alike
    return likely, choice["message"]["content"] or "", told["timings"]["cache_n"]


def crash(garra: Garra) -> None:
    for file in garra.engine_files():
        os.kill(file["pid"], 9)
    eventually(lambda: all(row["engine"]["phase"] != "ready" for row in garra.status()["profiles"]))


def spoil(garra: Garra, chance: random.Random) -> None:
    found = [path for path in files(garra) if path.stat().st_size]
    if found:
        file = chance.choice(found)
        data = bytearray(file.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data[: chance.choice([len(data), len(data) // 2])])


def settings(garra: Garra, line: str) -> None:
    file = Path(garra.env["XDG_CONFIG_HOME"]) / "garra" / "profiles.toml"
    rest = [one for one in file.read_text().splitlines() if not one.startswith("prompt_store_mib")]
    file.write_text("\n".join([line, *rest]))
    garra.run("reload", check=True)
