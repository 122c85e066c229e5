"""What is asked: conversations of a kind, made from a seed. Pure; exact lengths come from sizing.py.

chat           a passage and a question; no two share a beginning
code_edit      a file of code to be given back with one name changed: much of the answer stands in the question
long_context   a passage that fills most of a slot
shared_prefix  one long system prompt for all, a short question of each
agent          a system prompt with tools, then turns in which results are handed back: each prompt extends the last
json           an answer held to a JSON schema
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from garra.bench import texts
from garra.bench.words import Below, Messages, Talk, Turn
from garra.errors import BadRequest

Body = Iterator[str]
Dice = Callable[[str], Below]
"""Random numbers by name: the same name and seed always give the same numbers."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A turn before it has its length: its text may be cut after any piece."""

    before: Messages
    """Said first, as it is."""
    head: str
    body: tuple[str, ...]
    tail: str
    max_tokens: int
    n_prompt: int | None
    """Prompt tokens it is to have with everything before it; None: the body as it is."""

    def messages(self, pieces: tuple[str, ...], filler: str = "") -> Messages:
        """With so much of the body."""
        said = self.head + "".join(pieces) + filler + self.tail
        return (*self.before, {"role": "user", "content": said})


@dataclass(frozen=True, slots=True)
class Recipe:
    """A conversation to be brought to length, turn by turn."""

    drafts: tuple[Draft, ...]
    extra: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Kind:
    """A workload with its usual lengths, in tokens."""

    name: str
    n_prompt: int
    n_output: int
    make: Callable[[Kind, Below, Below, int], Recipe]
    """Of this kind, from dice of the conversation and dice of the whole workload, so many prompt tokens."""
    n_turns: int = 1
    n_later: int = 0
    """Tokens the later turns add besides their answers, about."""

    def recipe(self, dice: Dice, key: str, n_prompt: int | None = None, n_output: int | None = None) -> Recipe:
        """The conversation of this key."""
        sized = Kind(self.name, n_prompt or self.n_prompt, n_output or self.n_output, self.make)
        return self.make(sized, dice(f"{self.name} {key}"), dice(self.name), sized.n_prompt)


def kind_of(name: str) -> Kind:
    """The workload of this name. Raises BadRequest."""
    if name not in KINDS:
        raise BadRequest(f'there is no workload "{name}"', fix=f"one of: {', '.join(KINDS)}, or a .jsonl file")
    return KINDS[name]


def _body(pieces: Body, n_tokens: int) -> tuple[str, ...]:
    """More than enough pieces for so many tokens: none has less than one."""
    return tuple(islice(pieces, n_tokens + 16))


def _chat(kind: Kind, own: Below, _: Below, n_prompt: int) -> Recipe:
    head = f"Story {own(1_000_000)}:"
    return _single(
        Draft((), head, _body(texts.prose(own), n_prompt), f"\n\n{texts.question(own)}", kind.n_output, n_prompt)
    )


def _code_edit(kind: Kind, own: Below, _: Below, n_prompt: int) -> Recipe:
    old, new = texts.rename(own)
    head = f"# module {own(1_000_000)}\n"
    tail = f"\nRename `{old}` to `{new}` everywhere and print the whole file again, nothing else."
    return _single(Draft((), head, _body(texts.code(own), n_prompt), tail, kind.n_output, n_prompt))


def _shared_prefix(kind: Kind, own: Below, common: Below, n_prompt: int) -> Recipe:
    system = "You answer questions about this handbook." + "".join(islice(texts.prose(common), n_prompt // 3))
    draft = Draft(
        ({"role": "system", "content": system},), f"Case {own(1_000_000)}:", _body(texts.prose(own), n_prompt),
        f"\n\n{texts.question(own)}", kind.n_output, n_prompt,
    )  # fmt: skip
    return _single(draft)


_TOOLS = """You are an agent that works on a code base. Tools: read_file(path), write_file(path, text), run(command).
Think about what to do, call one tool, then wait for its result. Say DONE when the task is finished."""


def _agent(kind: Kind, own: Below, _: Below, n_prompt: int) -> Recipe:
    """The first prompt has the length asked for; each of the three that follow adds a tool's result."""
    task = f"\nTask {own(1_000_000)}: {texts.question(own)}"
    first = Draft(
        ({"role": "system", "content": _TOOLS},), "", _body(texts.code(own), n_prompt), task, kind.n_output, n_prompt
    )
    later = tuple(
        Draft((), f"Result of call {number}:\n", tuple(islice(texts.code(own), 10)), "\nGo on.", kind.n_output, None)
        for number in range(1, 4)
    )
    return Recipe((first, *later), {})


_SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "people": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        "year": {"type": "integer"},
    },
    "required": ["title", "people", "year"],
}


def _json(kind: Kind, own: Below, _: Below, n_prompt: int) -> Recipe:
    head = f"Note {own(1_000_000)}:"
    tail = "\n\nGive its title, the people in it and a year, as JSON."
    draft = Draft((), head, _body(texts.prose(own), n_prompt), tail, kind.n_output, n_prompt)
    wanted = {"type": "json_schema", "json_schema": {"name": "note", "schema": _SCHEMA}}
    return Recipe((draft,), {"response_format": wanted, "ignore_eos": False})


def _single(draft: Draft) -> Recipe:
    return Recipe((draft,), {})


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("chat", 256, 64, _chat),
        Kind("code_edit", 512, 256, _code_edit),
        Kind("long_context", 4096, 64, _chat),
        Kind("shared_prefix", 1024, 64, _shared_prefix),
        Kind("agent", 768, 64, _agent, n_turns=4, n_later=600),
        Kind("json", 256, 96, _json),
    )
}


def talk_of(recipe: Recipe, sized: tuple[Messages, ...], counts: tuple[int | None, ...]) -> Talk:
    """The conversation with its turns at their lengths."""
    turns = tuple(
        Turn(messages, draft.max_tokens, n) for draft, messages, n in zip(recipe.drafts, sized, counts, strict=True)
    )
    return Talk(turns, recipe.extra)
