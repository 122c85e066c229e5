"""Seeded text: sentences and Python code that read like the real thing and never repeat between seeds. Pure.

Pieces, not strings: whoever needs an exact number of tokens cuts between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from garra.bench.words import Below

_PLACES = (
    "harbour valley station market library workshop garden bridge village kitchen museum forest island tower".split()
)
_PEOPLE = "Mira Jonas Adela Tomas Ines Viktor Salma Henrik Noor Pavel Ruth Emeka Lena Oskar Priya Mateo".split()
_THINGS = (
    "letter clock engine lantern map violin basket recipe ladder notebook compass blanket radio ticket kite".split()
)
_DOINGS = "repaired carried measured forgot borrowed painted weighed described sold hid found counted".split()
_QUALITIES = "small heavy green broken quiet curious narrow bright old unlikely patient wooden distant careful".split()
_REASONS = (
    "because the river had risen",
    "although nobody had asked for it",
    "while the others were still asleep",
    "so that the work could begin early",
    "until the last train had left",
    "since the price had fallen again",
)
_NOUNS = "order invoice sensor packet account ticket shipment window session record batch route device entry".split()
_VERBS = "load parse merge filter update collect convert validate schedule normalise".split()
_FIELDS = "amount status owner created limit offset weight region label version priority score".split()


def _pick(words: list[str] | tuple[str, ...], below: Below) -> str:
    return words[below(len(words))]


def prose(below: Below) -> Iterator[str]:
    """Words of endless plain prose, each with the space before it."""
    while True:
        who, what, where = _pick(_PEOPLE, below), _pick(_THINGS, below), _pick(_PLACES, below)
        kind = below(4)
        if kind == 0:
            said = f"{who} {_pick(_DOINGS, below)} the {_pick(_QUALITIES, below)} {what} near the {where}"
        elif kind == 1:
            said = f"In the {where} there was a {_pick(_QUALITIES, below)} {what}, and {who} knew it"
        elif kind == 2:
            said = f"{who} and {_pick(_PEOPLE, below)} met at the {where} {_pick(_REASONS, below)}"
        else:
            said = f"The {what} cost {below(900) + 10} coins {_pick(_REASONS, below)}"
        for word in f"{said}.".split():
            yield f" {word}"


def code(below: Below) -> Iterator[str]:
    """Lines of endless Python: small functions that look alike without being so."""
    while True:
        noun, verb = _pick(_NOUNS, below), _pick(_VERBS, below)
        one, two = _pick(_FIELDS, below), _pick(_FIELDS, below)
        limit = below(990) + 10
        yield f"def {verb}_{noun}s_{limit}(items, {one}={limit}):\n"
        yield f'    """Return every {noun} whose {two} is below {one}."""\n'
        yield "    result = []\n"
        yield "    for item in items:\n"
        if below(2):
            yield f'        if item["{two}"] is None:\n'
            yield "            continue\n"
        yield f'        if item["{two}"] < {one}:\n'
        yield f'            result.append({{"{noun}": item, "{two}": item["{two}"] * {below(8) + 2}}})\n'
        yield "    return result\n"
        yield "\n"


def question(below: Below) -> str:
    """Something to ask about a text."""
    asked = (
        "Tell the story of what happened after that, in plain words.",
        f"Explain who {_pick(_PEOPLE, below)} might be and why the {_pick(_THINGS, below)} mattered.",
        f"Describe the {_pick(_PLACES, below)} as {_pick(_PEOPLE, below)} would have seen it.",
        "Summarise this for somebody who has no time, then say what is missing.",
    )
    return asked[below(len(asked))]


def rename(below: Below) -> tuple[str, str]:
    """A name used all over the code, and another for it."""
    return "items", f"{_pick(_NOUNS, below)}_list"
