"""What a profile changes in the bodies of its requests: defaults, forced values, stripped keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from garra.dialogue import Edits


def edited(asked: dict[str, Any], edits: Edits) -> dict[str, Any]:
    """The body with them applied. Tables are merged key by key: a client that sets one template argument keeps the
    defaults of the others."""
    result = {key: value for key, value in asked.items() if key not in edits.strip}
    result = _under(result, edits.defaults)
    return _over(result, edits.force)


def merged(base: Edits, more: Edits) -> Edits:
    """Those of a variant, on top of its profile's."""
    return Edits(
        defaults=_over(dict(base.defaults), more.defaults),
        force=_over(dict(base.force), more.force),
        strip=tuple(dict.fromkeys((*base.strip, *more.strip))),
    )


def _under(table: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(table)
    for key, value in defaults.items():
        if key not in result:
            result[key] = value
        elif isinstance(result[key], Mapping) and isinstance(value, Mapping):
            result[key] = _under(dict(result[key]), value)
    return result


def _over(table: dict[str, Any], force: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(table)
    for key, value in force.items():
        below = result.get(key)
        both = isinstance(below, Mapping) and isinstance(value, Mapping)
        result[key] = _over(dict(below), value) if both else value  # type: ignore[arg-type]
    return result
