"""What was typed, from the bytes a terminal sends. Pure."""

from __future__ import annotations

_SEQUENCES = {b"\x1b[A": "up", b"\x1bOA": "up", b"\x1b[B": "down", b"\x1bOB": "down"}


def typed(data: bytes) -> list[str]:
    """The keys in order: `up`, `down`, `esc`, else the character itself; unknown sequences are left out."""
    keys = []
    while data:
        sequence = next((known for known in _SEQUENCES if data.startswith(known)), None)
        if sequence is not None:
            keys.append(_SEQUENCES[sequence])
            data = data[len(sequence) :]
        elif data[:1] == b"\x1b" and data[1:2] not in (b"[", b"O"):
            keys.append("esc")
            data = data[1:]
        elif data[:1] == b"\x1b":
            data = data[2:].lstrip(b"0123456789;")[1:]
        else:
            character = data[:1].decode("ascii", "ignore")
            keys += [character] if character.isprintable() and character else []
            data = data[1:]
    return keys
