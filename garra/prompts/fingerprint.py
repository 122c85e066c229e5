"""What must be equal for an engine to take a slot back. Pure.

The engine refuses some differences, aborts at others, and takes a few without a word (docs/prompts.md): so everything
that is on the command line counts, but for what surely leaves the cells alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

_INDIFFERENT = frozenset(
    "--model -md --alias --host --slot-save-path -b -ub -t -tb --cache-ram --ctx-checkpoints --device "
    "--temp --top-p --top-k --min-p --presence-penalty --repeat-penalty -n --log-colors --reasoning".split()
)
"""Flags with their values: where files and sockets are, speed, sampling. The model counts by its content."""


def fingerprint(argv: Sequence[str], model: str, stamp: str) -> str:
    """`model`: the identity of its files' content, and of what else is loaded; `stamp`: of the engine build."""
    words, skip = [], False
    for word in argv[1:]:
        if skip and not _is_flag(word):
            continue
        skip = word in _INDIFFERENT
        if not skip:
            words.append(word)
    return hashlib.sha256("\0".join((model, stamp, *words)).encode()).hexdigest()[:24]


def named_files(extra: Sequence[str]) -> list[Path]:
    """What may be files among a profile's own flags: adapters and control vectors come as FILE, FILE:SCALE, or several
    of these with commas between them."""
    pieces = [piece for word in extra for piece in word.split(",") if piece and not _is_flag(piece)]
    return [Path(one) for piece in pieces for one in dict.fromkeys((piece, piece.rpartition(":")[0])) if one]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit()
