"""Sources: the pin, and patches applied by whichever tool is there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from garra.engine import source
from garra.errors import BuildFailed
from garra.package_index import complaint

BEFORE = "one\ntwo\nthree\n"
PATCH = "Why: a test.\n\n--- a/sub/file.txt\n+++ b/sub/file.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"


def only(tmp_path: Path, *tools: str) -> str:
    """A PATH with these tools alone."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in tools:
        found = shutil.which(tool)
        if found is None:
            pytest.skip(f"{tool} is not installed")
        (folder / tool).symlink_to(found)
    return str(folder)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """llama.cpp's place is taken by one file; a repository lies above it."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    given = tmp_path / "given"
    (given / "sub").mkdir(parents=True)
    (given / "CMakeLists.txt").write_text("")
    (given / "sub" / "file.txt").write_text(BEFORE)
    (tmp_path / "0001-test.patch").write_text(PATCH)
    return given


def pin(tmp_path: Path) -> source.Pin:
    return source.Pin(1, "b1", "p", "1", "p.tar.gz", "0", "p", (tmp_path / "0001-test.patch",))


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_a_patch_is_applied_to_a_copy(tmp_path: Path, tree: Path, tool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, tool))
    said: list[str] = []
    copy = tmp_path / "copy"
    assert source.obtain(pin(tmp_path), copy, given=tree, say=said.append) == ("0001-test",)
    assert (copy / "sub" / "file.txt").read_text() == BEFORE.replace("two", "2")
    assert (tree / "sub" / "file.txt").read_text() == BEFORE
    assert said == []


@pytest.mark.parametrize("tool", ["patch", "git"])
def test_a_patch_that_does_not_fit_changes_nothing(
    tmp_path: Path, tree: Path, tool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", only(tmp_path, tool))
    (tree / "sub" / "file.txt").write_text("something else\n")
    said: list[str] = []
    copy = tmp_path / "copy"
    assert source.obtain(pin(tmp_path), copy, given=tree, say=said.append) == ()
    assert (copy / "sub" / "file.txt").read_text() == "something else\n"
    assert not list(copy.rglob("*.rej"))
    assert "left out" in said[0]


def test_without_either_tool_the_package_is_named(tmp_path: Path, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", only(tmp_path))
    with pytest.raises(BuildFailed) as caught:
        source.obtain(pin(tmp_path), tmp_path / "copy", given=tree, say=print)
    assert caught.value.fix == "apt install patch"


def test_the_shipped_pin_is_whole() -> None:
    shipped = source.load_pin()
    assert (shipped.build, shipped.tag, len(shipped.sha256)) == (11434, "b11434", 64)
    assert [patch.name for patch in shipped.patches] == [
        "0001-one-deadline-for-the-disconnect-poll.patch",
        "0002-fit-params-accounts-like-the-server.patch",
        "0003-a-request-may-go-without-drafts.patch",
        "0004-sessions-keep-their-slots.patch",
        "0005-messages-take-the-engines-parameters.patch",
        "0006-saved-slots-keep-their-checkpoints.patch",
    ]
    assert "Reason:" in shipped.patches[0].read_text()
    assert "Test:" in shipped.patches[0].read_text()


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("WARNING: x\nERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n", "DO NOT MATCH"),
        (
            "WARNING: Retrying ... NewConnectionError(...)\nERROR: No matching distribution found for x\n",
            "cannot be reached",
        ),
        ("ERROR: No matching distribution found for x\n", "No matching distribution"),
        ("", "no reason"),
    ],
)
def test_pips_complaint_is_one_line(stderr: str, said: str) -> None:
    assert said in complaint(stderr)
