"""Settings merged into a text somebody else keeps: what it says beside stays as it is. Libraries read and write it."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import tomlkit
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from tomlkit.exceptions import TOMLKitError

from garra.connect.words import FileChange
from garra.errors import ConfigError


def merged(before: str, change: FileChange) -> str:
    """The text with the settings in it; equal to `before` where they are there already. Raises ConfigError."""
    try:
        after = _MERGERS[change.form](before, change)
    except (ValueError, TOMLKitError, YAMLError) as error:
        raise ConfigError(
            f"cannot change {change.path}: {str(error).splitlines()[0]}", fix="correct it, or add by hand what is shown"
        ) from None
    return after if after.endswith("\n") else after + "\n"


def _json(before: str, change: FileChange) -> str:
    known: Any = json.loads(before) if before.strip() else {}
    if not isinstance(known, dict):
        raise ValueError("it is no JSON object")
    if _covers(known, change.settings):
        return before
    _put(known, change.settings, None)
    indent = re.search(r"^([ \t]+)\S", before, re.MULTILINE)
    return json.dumps(known, indent=indent[1] if indent else 2, ensure_ascii=False)


def _yaml(before: str, change: FileChange) -> str:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.indent(mapping=2, sequence=4, offset=2)
    known = yaml.load(before) if before.strip() else None
    if known is None:
        known = {}
    if not isinstance(known, MutableMapping):
        raise ValueError("it is no YAML mapping")
    if _covers(known, change.settings, change.by):
        return before
    _put(known, change.settings, change.by)
    text = io.StringIO()
    yaml.dump(known, text)
    return text.getvalue()


def _toml(before: str, change: FileChange) -> str:
    known = tomlkit.parse(before)
    if _covers(known.unwrap(), change.settings):
        return before
    tables = {key: value for key, value in change.settings.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in change.settings.items() if key not in tables}
    if plain and not all(key in known for key in plain) and any(isinstance(value, Mapping) for value in known.values()):
        head = tomlkit.document()  # plain keys must stand before the first table
        for key, value in plain.items():
            if key not in known:
                head.add(key, value)
        known = tomlkit.parse(tomlkit.dumps(head) + "\n" + tomlkit.dumps(known))
    _put(known, plain, None)
    for key, value in tables.items():
        below = known.setdefault(key, tomlkit.table(is_super_table=True))
        for name, inner in value.items():
            if name not in below:
                below[name] = tomlkit.table()
            _put(below[name], inner, None)
    return tomlkit.dumps(known)


_LINE = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=")


def _env(before: str, change: FileChange) -> str:
    """Lines of NAME=VALUE."""
    left = dict(change.settings)
    lines = []
    for line in before.splitlines():
        found = _LINE.match(line)
        name = found[1] if found else ""
        lines.append(f"{name}={left.pop(name)}" if name in left else line)
    return "\n".join([*lines, *(f"{name}={value}" for name, value in left.items())]) + "\n"


_MERGERS = {"json": _json, "yaml": _yaml, "toml": _toml, "env": _env}


def _put(known: Any, settings: Mapping[str, Any], by: tuple[str, str] | None) -> None:
    for key, value in settings.items():
        below = known.get(key)
        if isinstance(value, Mapping) and isinstance(below, MutableMapping):
            _put(below, value, None)
        elif by is not None and key == by[0] and isinstance(below, list):
            _put_entries(below, value, by[1])
        elif by is not None and key != by[0] and below is not None:
            continue  # what the file as a whole is called is its owner's to say
        elif below != value:
            known[key] = value


def _put_entries(known: list[Any], entries: list[dict[str, Any]], field: str) -> None:
    """Entries replace those of the same name and follow all others."""
    for entry in entries:
        place = next(
            (n for n, one in enumerate(known) if isinstance(one, Mapping) and one.get(field) == entry[field]), None
        )
        if place is None:
            known.append(entry)
        else:
            known[place] = entry


def _covers(known: Any, settings: Any, by: tuple[str, str] | None = None) -> bool:
    """Whether all of the settings are there as they should be."""
    if isinstance(settings, Mapping):
        return isinstance(known, Mapping) and all(
            key in known and (_covers(known[key], value) if by is None or key == by[0] else True)
            for key, value in settings.items()
        )
    if isinstance(settings, list) and isinstance(known, list):
        return all(any(_covers(one, entry) for one in known) for entry in settings)
    return bool(known == settings)
