"""How a benchmark ends: what was missed for people, everything as JSON for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options every benchmark has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    return made


def conclude(result: Mapping[str, object], missed: Sequence[str], *, check: bool) -> int:
    """The exit status, after the last line was printed."""
    for name in missed:
        print(f"MISSED {name}", file=sys.stderr)
    print(json.dumps(result))
    return 1 if check and missed else 0
