"""The docs say what is so: the CLI reference is generated, shown commands exist, links lead somewhere."""

from __future__ import annotations

import functools
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.cli import get_docs_for_click

from garra.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_FENCE = re.compile(r"^```.*?$(.*?)^```$", re.M | re.S)
_INLINE = re.compile(r"`(garra (?!is )[^`\n]+)`")
_SHOWN = re.compile(r"^(?:\$ |\# )?((?:\.venv/bin/)?garra (?!is )[a-z].*)$", re.M)
_PLACEHOLDERS = re.compile(r"[A-Z]{2,}|\.\.\.|…|\[|<")


@functools.cache
def tree() -> Any:
    """The whole command; making it takes a while."""
    return typer.main.get_command(app)


def reference() -> str:
    command = tree()
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="garra", title="The garra command")
    note = "Made of `garra --help` and checked by a test. What comes of the commands is told in the other pages.\n\n"
    title, rest = text.split("\n\n", 1)
    return "\n".join(line.rstrip() for line in f"{title}\n\n{note}{rest}".splitlines()).rstrip() + "\n"


def test_the_cli_reference_is_the_command() -> None:
    file = ROOT / "docs" / "cli.md"
    if os.environ.get("GARRA_TEST_WRITE"):
        file.write_text(reference())
    assert file.read_text() == reference(), "GARRA_TEST_WRITE=1 pytest tests/unit/test_docs.py"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = [link for link in _LINK.findall(page.read_text()) if "://" not in link]
    assert [link for link in targets if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shown_commands_exist(page: Path) -> None:
    assert [told for line in commands(page.read_text()) if (told := objection(line))] == []


def commands(text: str) -> Iterator[str]:
    """What a reader could type: lines of blocks and code in the text that begin with garra."""
    for block in _FENCE.findall(text):
        for line in _SHOWN.findall(block):
            yield re.split(r"\s{2,}|\s#\s|\s\|\s|;|&&|>", line)[0]
    yield from _INLINE.findall(_FENCE.sub("", text))


def objection(line: str) -> str:
    """What is wrong with it, if anything is; alternatives (`a | b`) and placeholders stand for something."""
    try:
        words = shlex.split(line.replace("|", " "), comments=True)[1:]
    except ValueError:
        return f"{line}: quotes"
    command = tree()
    while words and (below := getattr(command, "commands", None)):
        if words[0] not in below:
            free = words[0].startswith("-") or _PLACEHOLDERS.search(words[0])
            if command.name == "bench":
                command = below["run"]
                continue
            return "" if free else f"{line}: no command {words[0]}"
        command, words = below[words[0]], words[1:]
    options = {name for one in command.params for name in (*one.opts, *one.secondary_opts)}
    given = {word.split("=")[0].strip("[]()") for word in words if re.match(r"\[?\(?--?[a-z]", word)}
    unknown = sorted(given - options - {"-h", "--help"})
    return f"{line}: {', '.join(unknown)}" if unknown else ""
