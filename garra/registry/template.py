"""What a chat template can do, and what it has no business doing. Pure.

The engine runs templates in an interpreter of its own that knows no files and no processes; other programs that read
the same GGUF may not. So what looks like an escape, or like words put into every conversation, is shown to a person.
"""

from __future__ import annotations

import re

from garra.dialogue import Traits

_SUSPICIOUS = (
    (re.compile(r"__\w+__"), "reaches for Python's internals"),
    (re.compile(r"\|\s*attr\s*\("), "reads attributes by computed names"),
    (re.compile(r"\b(?:lipsum|cycler|joiner|self|config|request|url_for|get_flashed_messages)\s*[.\[]"),
     "uses objects through which templates escape their sandbox"),
    (re.compile(r"\b(?:import|eval|exec|compile|open|popen|system|subprocess|getattr|setattr|globals|builtins)\s*\("),
     "calls what runs code or opens files"),
    (re.compile(r"{%-?\s*(?:include|import|from|extends)\b"), "loads other templates"),
    (re.compile(r"range\s*\(\s*\d{7,}|\*\s*\d{7,}"), "loops or repeats millions of times"),
    (re.compile(r"https?://(?!(?:huggingface\.co|schema\.org|json-schema\.org)\b)[\w.-]+"),
     "puts a web address into conversations"),
    (re.compile(r"[\u200b-\u200f\u202a-\u202e\u2060-\u2064\U000e0000-\U000e007f]"), "holds invisible characters"),
)  # fmt: skip
_SHOWN = 60


def findings(template: str) -> list[str]:
    """What is suspicious in a template, each with the place; empty for an ordinary one."""
    found = []
    for pattern, what in _SUSPICIOUS:
        if (match := pattern.search(template)) is not None:
            line = template.count("\n", 0, match.start()) + 1
            shown = match[0][:_SHOWN].encode("unicode_escape").decode()
            found.append(f"the chat template {what}: {shown} (line {line})")
    return found


def traits_of(template: str) -> Traits:
    """What a template can do, by the words it uses; without one, what the engine's own default can."""
    return Traits(
        tools=re.search(r"\btools\b", template) is not None,
        picky="raise_exception" in template,
        thinking="<think>" in template or "enable_thinking" in template or "reasoning_content" in template,
    )
