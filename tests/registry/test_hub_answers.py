"""What a hub may answer: refusals with their own message each, and answers that make no sense."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.fake_hub import FakeHub, Repo
from tests.registry.conftest import cache, garra, garra_json, gguf_bytes, visible


def test_a_gated_repository_says_whose_terms_and_where(hub: FakeHub) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, gated=True, token="hf_right")
    done = garra("models", "pull", "hf:o/r:Q8_0")
    assert done.returncode == 9
    assert "o/r is gated" in done.stderr
    assert f"open {hub.url}/o/r, accept the terms, then set HF_TOKEN" in done.stderr


def test_a_private_or_missing_repository_says_both(hub: FakeHub) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, token="hf_right")
    done = garra("models", "pull", "hf:o/r:Q8_0")
    assert done.returncode == 9
    assert "it does not exist, or it is private" in done.stderr
    missing = garra("models", "pull", "hf:o/none:Q8_0")
    assert missing.returncode == 4
    assert "there is no o/none on the hub" in missing.stderr


@pytest.mark.parametrize("token", ["hf_right", "any-shape:of-token"])
def test_the_token_opens_it_and_goes_nowhere_else(hub: FakeHub, tmp_path: Path, token: str) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, gated=True, token=token, file_faults=["cut", "cut"])
    done = garra("models", "pull", "hf:o/r:Q8_0", HF_TOKEN=token)
    assert done.returncode == 0, done.stderr
    assert len([one for one in hub.requests if one[0] == "bytes"]) == 3
    assert hub.leaked == []
    written = [path for path in tmp_path.parent.rglob("*") if path.is_file() and token.encode() in path.read_bytes()]
    assert token not in done.stderr
    assert written == []


def test_rate_limits_are_waited_for_and_then_told(hub: FakeHub) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, api_faults=["api-429", "api-500", "api-cut"])
    assert garra("models", "pull", "hf:o/r:Q8_0", "--dry-run").returncode == 0
    hub.repos["o/r"].api_faults = ["api-429"] * 5
    done = garra("models", "pull", "hf:o/r:Q8_0", "--dry-run")
    assert done.returncode == 9
    assert "the hub limits how often it is asked" in done.stderr


@pytest.mark.parametrize(
    "path",
    [
        "../../../evil-Q8_0.gguf",
        "/tmp/evil-Q8_0.gguf",
        "a/../../evil-Q8_0.gguf",
        "x\\evil-Q8_0.gguf",
        "~/evil-Q8_0.gguf",
        "e\nvil-Q8_0.gguf",
    ],
)
def test_names_that_are_tricks_are_not_offered(hub: FakeHub, path: str) -> None:
    hub.repos["o/r"] = Repo({path: gguf_bytes()})
    done = garra("models", "pull", "hf:o/r:Q8_0")
    assert done.returncode == 4
    assert "o/r has no GGUF file" in done.stderr
    assert visible() == []
    assert not [one for one in cache().rglob("*evil*")] if cache().exists() else True


def test_an_absurdly_long_name_is_not_offered(hub: FakeHub) -> None:
    hub.repos["o/r"] = Repo({"x" * 5000 + "-Q8_0.gguf": gguf_bytes(), "b/" * 60 + "m-Q8_0.gguf": gguf_bytes(1)})
    assert garra("models", "pull", "hf:o/r:Q8_0").returncode == 4


def sibling(sha256: str, size: Any) -> dict[str, Any]:
    """A file as the API tells of it."""
    return {
        "rfilename": "M-Q8_0.gguf",
        "size": size,
        "blobId": "x",
        "lfs": {"sha256": sha256, "size": 1, "pointerSize": 1},
    }


def test_links_lead_nowhere(hub: FakeHub, tmp_path: Path) -> None:
    """A repository may hold a symbolic link: the hub sends its target as the content. And the cache may hold one."""
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": b"../../../../etc/passwd"}, plain=("M-Q8_0.gguf",))
    done = garra("models", "pull", "hf:o/r:Q8_0")
    assert done.returncode == 4
    assert "M-Q8_0.gguf is no GGUF file" in done.stderr
    assert visible() == []
    content = gguf_bytes()
    hub.repos["o/s"] = Repo({"M-Q8_0.gguf": content})
    mine = tmp_path / "mine"
    mine.write_bytes(b"precious")
    snapshot = cache() / "models--o--s" / "snapshots" / hub.repos["o/s"].commit / "M-Q8_0.gguf"
    partial = cache() / "models--o--s" / "blobs" / f"{hashlib.sha256(content).hexdigest()}.garra-part"
    for link in (snapshot, partial):
        link.parent.mkdir(parents=True)
        link.symlink_to(mine)
    assert garra("models", "pull", "hf:o/s:Q8_0").returncode == 0
    assert snapshot.read_bytes() == content
    assert mine.read_bytes() == b"precious"


@pytest.mark.parametrize(
    "info",
    [
        {"sha": "../../../etc"},
        {"sha": None},
        {"sha": ["a"]},
        {"siblings": "none"},
        {"siblings": [{"rfilename": 5}]},
        {"siblings": [sibling("../x", size=-1)]},
        {"siblings": [sibling("a" * 64, size=1 << 70)]},
        {"siblings": [sibling("a" * 64, size="many")]},
        {"siblings": [{"rfilename": f"M{n}-Q8_0.gguf", "size": 5, "blobId": "a" * 40} for n in range(20_001)]},
        {"cardData": "text", "tags": {"a": 1}},
        {"id": {"x": [[[[]]]]}, "downloads": "lots", "gated": [1], "tags": [None, 5]},
    ],
    ids=range(11),
)  # fmt: skip
def test_answers_that_make_no_sense_are_errors_and_no_more(hub: FakeHub, info: dict[str, Any]) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, info=info)
    done = garra("models", "pull", "hf:o/r:Q8_0")
    if {"siblings", "sha"} & set(info):
        assert done.returncode in (4, 9)
        assert visible() == []
    assert "Traceback" not in done.stderr
    assert "a bug in garra" not in done.stderr


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"5", b"[]", b"{}", b"[" * 200_000, b'{"a":' * 100_000, b"<html>", b'{"siblings": ',
        b'"' + b"x" * (40 << 20),
    ],
    ids=range(10),
)  # fmt: skip
def test_answers_that_are_not_the_apis_are_errors_and_no_more(hub: FakeHub, raw: bytes) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()}, raw=raw)
    done = garra("models", "pull", "hf:o/r:Q8_0")
    assert done.returncode in (4, 9)
    assert len(done.stderr) < 1000
    assert "Traceback" not in done.stderr
    assert "a bug in garra" not in done.stderr


def test_a_licence_and_a_publisher_are_recorded(hub: FakeHub) -> None:
    info = {"cardData": {"license": "apache-2.0", "base_model": ["Qwen/Qwen3.5-4B"]}}
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes(), "mmproj-F16.gguf": gguf_bytes(1)}, info=info)
    assert garra("models", "pull", "hf:o/r:q8_0").returncode == 0
    shown = garra_json("models", "show", "hf:o/r:Q8_0")
    assert (shown["publisher"], shown["licence"], shown["base_model"]) == ("o", "apache-2.0", "Qwen/Qwen3.5-4B")
    assert shown["revision"] == hub.repos["o/r"].commit
    assert [file["role"] for file in shown["files"]] == ["model", "projector"]
    assert shown["facts"]["architecture"] == "llama"


def test_a_publisher_outside_the_trusted_ones_is_told(hub: FakeHub, private_folders: Path) -> None:
    hub.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes()})
    folder = private_folders / "config_home" / "garra"
    folder.mkdir()
    (folder / "profiles.toml").write_text('trusted_publishers = ["unsloth"]\n')
    done = garra("models", "pull", "hf:o/r:Q8_0")
    assert done.returncode == 0
    assert "warning: o is not among your trusted_publishers" in done.stderr
    assert garra_json("models", "show", "hf:o/r:Q8_0")["trusted_publisher"] is False
