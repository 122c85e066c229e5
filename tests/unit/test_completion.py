"""Completion in the three shells, as they ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


def completed(shell: str, line: str) -> str:
    words = line.split(" ")
    how = {
        "bash": {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": line},
        "fish": {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = os.environ | how | {"_GARRA_COMPLETE": f"complete_{shell}"}
    program = Path(sys.executable).with_name("garra")
    return subprocess.run([program], env=environment, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_commands_and_profiles_are_completed(shell: str) -> None:
    assert "unload" in completed(shell, "garra unl")
    assert "turbo_4b" in completed(shell, "garra load tur")
    assert "turbo_4b" in completed(shell, "garra bench run tur")


def test_a_wrong_settings_file_completes_nothing_and_says_nothing(private_folders: Path) -> None:
    folder = Path(os.environ["XDG_CONFIG_HOME"]) / "garra"
    folder.mkdir()
    (folder / "profiles.toml").write_text("nonsense = [")
    assert completed("bash", "garra load tur").strip() == ""
