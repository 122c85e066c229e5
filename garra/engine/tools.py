"""Running one of an engine's programs for what it prints."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence


def said(words: Sequence[str], environment: Mapping[str, str], limit_s: float) -> str | None:
    """Its standard output; None when it cannot be run, fails, or takes longer."""
    try:
        done = subprocess.run(
            words,
            env=dict(environment),
            capture_output=True,
            text=True,
            check=False,
            timeout=limit_s,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
