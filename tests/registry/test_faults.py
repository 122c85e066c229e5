"""A hundred downloads, each with its own troubles: every one ends in a verified file or in a clear error."""

from __future__ import annotations

import hashlib
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from garra.errors import GarraError
from garra.registry.courier import Courier
from tests.fake_hub import API_FAULTS, DEADLY, FILE_FAULTS, FakeHub, Repo
from tests.registry.conftest import cache, gguf_bytes, visible

N_DOWNLOADS, N_AT_ONCE = 100, 4
HARMLESS = {"cut", "reset", "503", "429", "resolve-503", "stall", "slow"}
"""After these nothing that has come need be fetched again."""


def troubles(draw: random.Random) -> Repo:
    """A repository with a model, perhaps in shards, perhaps with a projector, and what goes wrong with it."""
    number = draw.randrange(1 << 40)
    files = {f"M{number}-Q4_K_M.gguf": gguf_bytes(number)}
    if draw.random() < 0.2:
        files[f"mmproj-{number}-F16.gguf"] = gguf_bytes(number + 1)
    repo = Repo(files, plain=tuple(files) if draw.random() < 0.1 else ())
    repo.api_faults = draw.sample(API_FAULTS, draw.choice((0, 0, 1)))
    repo.file_faults = draw.choices(FILE_FAULTS, k=draw.choice((0, 1, 2, 3)))
    repo.always = draw.choice(DEADLY) if draw.random() < 0.12 else None
    return repo


def test_a_hundred_downloads_with_random_faults(hub: FakeHub, soak: bool) -> None:
    draw = random.Random(7)
    for n in range(N_DOWNLOADS * (5 if soak else 1)):
        hub.repos[f"o/r{n}"] = troubles(draw)
    faults = {name: list(repo.file_faults) for name, repo in hub.repos.items()}

    def pull_some(names: list[str]) -> dict[str, Path | GarraError]:
        outcomes: dict[str, Path | GarraError] = {}
        with Courier() as courier:
            for name in names:
                try:
                    outcomes[name] = Path(courier.ask("pull", ref=f"hf:{name}:Q4_K_M")["path"])
                except GarraError as error:
                    outcomes[name] = error
        return outcomes

    names = list(hub.repos)
    with ThreadPoolExecutor(N_AT_ONCE) as pool:
        shares = pool.map(pull_some, [names[n::N_AT_ONCE] for n in range(N_AT_ONCE)])
        outcomes = {name: outcome for share in shares for name, outcome in share.items()}

    assert hub.leaked == [], "a token or cookie never reaches the second origin"
    contents = {hashlib.sha256(content).hexdigest() for repo in hub.repos.values() for content in repo.files.values()}
    for path in visible():
        assert hashlib.sha256(path.read_bytes()).hexdigest() in contents, f"{path} is visible and was not verified"
    n_failed = 0
    for name, outcome in outcomes.items():
        repo = hub.repos[name]
        if isinstance(outcome, GarraError):
            n_failed += 1
            assert outcome.fix, "every error tells what to do"
            assert len(outcome.what) < 400
            assert repo.always or "wrong-bytes" in faults[name], f"{name} gave up: {outcome} after {faults[name]}"
            assert outcome.code in ("bad_model", "not_offered", "access_denied"), outcome
            continue
        assert repo.always is None
        for file, content in repo.files.items():
            assert (outcome.parent / file).read_bytes() == content
            if set(faults[name]) <= HARMLESS:
                told = hub.sent[file]
                assert hub.bytes_sent(file) == len(content), f"bytes fetched twice: {told} after {faults[name]}"
    assert 0 < n_failed < len(outcomes) / 3
    deadly = [name for name, repo in hub.repos.items() if repo.always]
    assert all(isinstance(outcomes[name], GarraError) for name in deadly)
    for name in deadly:
        hub.repos[name].always = None
    assert all(isinstance(outcome, Path) for outcome in pull_some(deadly[:3]).values()), "and later it works"


@pytest.mark.parametrize("fault", ["always-wrong"])
def test_wrong_bytes_of_the_right_size_are_never_visible(hub: FakeHub, fault: str) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, always=fault)
    with Courier() as courier, pytest.raises(GarraError, match="another checksum than the hub promises"):
        courier.ask("pull", ref="hf:o/r:Q8_0")
    assert visible() == []


def test_what_is_no_gguf_is_given_up_at_its_first_bytes(hub: FakeHub) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": b"<!DOCTYPE html>" + bytes(4 << 20)}, rate=1 << 20)
    with Courier() as courier, pytest.raises(GarraError, match="is no GGUF file: it begins with b'<!DOCTYP'"):
        courier.ask("pull", ref="hf:o/r:Q8_0")
    assert hub.bytes_sent("M-Q8_0.gguf") < 2 << 20
    assert visible() == []


def test_a_verified_file_with_a_broken_header_is_not_published(hub: FakeHub) -> None:
    content = gguf_bytes()
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": content[:200_000]})
    with Courier() as courier, pytest.raises(GarraError, match=r"offers a broken M-Q8_0\.gguf"):
        courier.ask("pull", ref="hf:o/r:Q8_0")
    assert visible() == []


def test_what_another_program_downloaded_is_hashed_before_it_counts(hub: FakeHub) -> None:
    content = gguf_bytes(4)
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": content})
    blob = cache() / "models--o--r" / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir(parents=True)
    blob.write_bytes(content[:-1] + b"?")
    with Courier() as courier:
        with pytest.raises(GarraError, match="does not have the hash it is called after"):
            courier.ask("pull", ref="hf:o/r:Q8_0")
        blob.write_bytes(content)
        assert Path(courier.ask("pull", ref="hf:o/r:Q8_0")["path"]).read_bytes() == content
    assert hub.sent == {}, "nothing was fetched"


def test_many_who_ask_for_one_artifact_get_one_download(hub: FakeHub) -> None:
    content = gguf_bytes(3, more=1 << 20)
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": content}, rate=2 << 20)

    def pull() -> str:
        with Courier() as courier:
            return str(courier.ask("pull", ref="hf:o/r:Q8_0")["path"])

    with ThreadPoolExecutor(4) as pool:
        paths = {future.result() for future in [pool.submit(pull) for _ in range(4)]}
    assert len(paths) == 1
    assert hub.sent["M-Q8_0.gguf"] == [(0, len(content))]
