"""The Python package index, through pip: the user's own index, mirror, proxy and certificates apply."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def download(words: list[str], into: Path, *, show: bool) -> str | None:
    """`pip download WORDS` without dependencies; None when it went well, else the line that names the cause.

    `show`: pip's own progress bar goes to stderr.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--disable-pip-version-check", "--dest", str(into)]
    done = subprocess.run(
        [*command, *words],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr if show else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else complaint(done.stderr)


def download_wheels(requirements: Sequence[str], into: Path) -> str | None:
    """Wheels by exact version and hash, with pip's progress bar; None when it went well, else what went wrong."""
    wanted = into / "requirements.txt"
    wanted.write_text("\n".join(requirements) + "\n")
    return download(["--only-binary=:all:", "--require-hashes", "-r", str(wanted)], into, show=True)


def build_wheel(project: Path, into: Path) -> str | None:
    """The wheel of a checkout, with the build backend that is installed; None when it went well, else why not."""
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--quiet", "-w", str(into), str(project)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else complaint(done.stderr)


def complaint(stderr: str) -> str:
    """The line of pip's output that names the cause."""
    errors = [line.removeprefix("ERROR: ").strip() for line in stderr.splitlines() if line.startswith("ERROR:")]
    if "NewConnectionError" in stderr or "Temporary failure in name resolution" in stderr:
        return "the package index cannot be reached"
    return next((line for line in errors if "HASH" in line.upper()), errors[0] if errors else "pip gave no reason")
