"""`managed.toml`: the settings that commands write, keys and aliases. One writer at a time, never half a file."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from garra import paths
from garra.errors import BadRequest, ConfigError, NotOffered
from garra.proxy.access import KEY_PREFIX

_HEADER = "Written by `garra keys` and `garra alias`. Keys stand here as hashes: the keys themselves stand nowhere."
_KEY_BYTES = 32


def create_key(name: str, settings: dict[str, Any]) -> str:
    """A new key under this name, to be shown once. Raises BadRequest where the name is taken, ConfigError."""
    key = KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)

    def add(document: Any) -> None:
        keys = document.setdefault("keys", tomlkit.table(is_super_table=True))
        if name in keys:
            raise BadRequest(f'there is a key "{name}" already', fix=f"garra keys revoke {name}")
        table = tomlkit.table()
        table["sha256"] = hashlib.sha256(key.encode()).hexdigest()
        table["created"] = datetime.now(UTC).isoformat(timespec="seconds")
        for setting, value in settings.items():
            table[setting] = value
        keys[name] = table

    _change(add)
    return key


def revoke_key(name: str) -> None:
    """Raises NotOffered where there is no such key, ConfigError."""

    def remove(document: Any) -> None:
        if name not in document.get("keys", {}):
            raise NotOffered(
                f'there is no key "{name}" here', fix="garra keys list; keys of profiles.toml are removed there"
            )
        del document["keys"][name]

    _change(remove)


def set_alias(name: str, target: str | None) -> None:
    """`name` stands for `target` from now on; None: for nothing any more. Raises NotOffered, ConfigError."""

    def change(document: Any) -> None:
        aliases = document.setdefault("aliases", tomlkit.table())
        if target is not None:
            aliases[name] = target
        elif name in aliases:
            del aliases[name]
        else:
            raise NotOffered(f'there is no alias "{name}" here', fix="garra config show")

    _change(change)


def _change(change: Callable[[Any], None]) -> None:
    path = paths.managed_settings()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            document = _read(path)
            change(document)
            _write(path, tomlkit.dumps(document))
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", fix=f"check {path.parent}") from None


def _read(path: Path) -> Any:
    if not path.exists():
        document = tomlkit.document()
        document.add(tomlkit.comment(_HEADER))
        return document
    try:
        return tomlkit.parse(path.read_text(encoding="utf-8"))
    except (TOMLKitError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot change {path}: {error}", fix=f"correct {path}, or remove it") from None


def _write(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".managed-")  # 0600, as it stays
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(handle)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
