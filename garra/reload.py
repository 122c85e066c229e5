"""New settings for a running garra: only what differs is touched, and an invalid file changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from garra.config import Config
from garra.errors import ConfigError
from garra.events import Fact

log = logging.getLogger(__name__)

_FIXED = ("host", "port", "watch", "log_format")


@dataclass(frozen=True, slots=True)
class Changes:
    """What a reload did, in names of profiles."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    restarted: tuple[str, ...]
    """Their engines would start differently: those that are up drain and start again."""
    adjusted: tuple[str, ...]
    """They differ only in what garra itself decides by; their engines run on."""
    untouched: tuple[str, ...]
    not_applied: tuple[str, ...]
    """Settings that differ and only count from the next start on."""


def compare(before: Config, after: Config) -> Changes:
    """The difference between two configurations."""
    both = [name for name in after.profiles if name in before.profiles]
    pairs = {name: (before.profiles[name], after.profiles[name]) for name in both}
    return Changes(
        added=tuple(name for name in after.profiles if name not in before.profiles),
        removed=tuple(name for name in before.profiles if name not in after.profiles),
        restarted=tuple(name for name, (old, new) in pairs.items() if not new.launches_like(old)),
        adjusted=tuple(name for name, (old, new) in pairs.items() if old != new and new.launches_like(old)),
        untouched=tuple(name for name, (old, new) in pairs.items() if old == new),
        not_applied=tuple(key for key in _FIXED if getattr(before.settings, key) != getattr(after.settings, key)),
    )


class Reloader:
    """Reads the settings anew and hands them to those they concern."""

    def __init__(
        self,
        config: Config,
        read: Callable[[], Config],
        apply: Callable[[Config], None],
        tell: Callable[[Fact], None],
    ) -> None:
        self._config = config
        self._read = read
        self._apply = apply
        self._tell = tell

    def reload(self) -> Changes:
        """What changed. Raises ConfigError when the files are wrong; then everything stays as it is."""
        after = self._read()
        changes = compare(self._config, after)
        self._apply(after)
        self._config = after
        told = "; ".join(f"{what}: {', '.join(names)}" for what, names in _named(changes) if names) or "nothing changed"
        log.info("configuration reloaded: %s", told)
        for key in changes.not_applied:
            log.warning("%s is only read at start: restart garra for the new value", key)
        self._tell(Fact("configured", detail=told))
        return changes

    def reload_or_log(self) -> None:
        """The same for a signal or a changed file: nobody waits for an answer."""
        try:
            self.reload()
        except ConfigError as error:
            log.error("configuration not reloaded: %s (%s)", error.what, error.fix)
            self._tell(Fact("configured", detail=f"not reloaded: {error.what}"))


def _named(changes: Changes) -> list[tuple[str, tuple[str, ...]]]:
    return [
        ("added", changes.added),
        ("removed", changes.removed),
        ("restarted", changes.restarted),
        ("adjusted", changes.adjusted),
    ]
