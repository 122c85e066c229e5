"""Other programs' files: read, compared, written in one rename, with a copy of what was there before."""

from __future__ import annotations

import difflib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from garra.connect.merge import merged
from garra.connect.words import FileChange
from garra.errors import ConfigError

_COPY = ".before-garra"


@dataclass(frozen=True, slots=True)
class Edit:
    """What would become of one file."""

    path: Path
    before: str
    after: str

    @property
    def needed(self) -> bool:
        return self.before != self.after

    def difference(self) -> str:
        """As `diff -u` shows it."""
        old, new = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(old, new, str(self.path), str(self.path)))


def edit(change: FileChange) -> Edit:
    """Raises ConfigError where the file cannot be read, or is not what it should be."""
    path = Path(change.path).expanduser()
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", fix=f"check {path}") from None
    return Edit(path, before, merged(before, change))


def write(one: Edit) -> Path | None:
    """Where what was there before is kept; None where there was nothing. Raises ConfigError."""
    target = one.path.resolve()  # a link, as people keep their settings elsewhere, stays a link
    copy = target.with_name(target.name + _COPY)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        kept = None
        if target.exists():
            if not copy.exists():
                shutil.copy2(target, copy)
            kept = copy
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(one.after)
        if target.exists():
            shutil.copymode(target, name)
        os.replace(name, target)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror}", fix=f"check {target.parent}") from None
    return kept
