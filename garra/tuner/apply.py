"""A tune's winner written into the user's `profiles.toml`: comments and everything else stay as they are."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from garra.errors import ConfigError

_MARK = "tuned: "


def written(text: str, profile: str, changes: Mapping[str, Any], provenance: Sequence[str]) -> str:
    """`text` with these keys of the profile set, and above them where they are from. Raises ConfigError."""
    try:
        document = tomlkit.parse(text)
    except TOMLKitError as error:
        raise ConfigError(f"cannot change profiles.toml: {error}", fix="garra config check") from None
    profiles = document.setdefault("profiles", tomlkit.table(is_super_table=True))
    table = profiles.setdefault(profile, tomlkit.table())
    _forget_provenance(table)
    for line in provenance:
        table.add(tomlkit.comment(_MARK + line))
    for key, value in changes.items():
        table[key] = value
    return tomlkit.dumps(document)


def apply(path: Path, profile: str, changes: Mapping[str, Any], provenance: Sequence[str]) -> None:
    """The same with the file, in one rename. Raises ConfigError."""
    try:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = written(before, profile, changes, provenance)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".profiles-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(after)
        if path.exists():
            os.chmod(name, path.stat().st_mode & 0o777)
        os.replace(name, path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", fix=f"check {path.parent}") from None


def _forget_provenance(table: Any) -> None:
    """Comments of an earlier tune."""
    body = table.value.body
    for place in reversed(range(len(body))):
        key, item = body[place]
        if key is None and item.as_string().lstrip("# ").startswith(_MARK):
            del body[place]
