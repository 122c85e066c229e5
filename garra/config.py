"""Settings in layers, with the origin of every value kept.

Built-in defaults < shipped `profiles.toml` < the user's `profiles.toml` < `managed.toml` (what `garra keys` and
`garra alias` write) < `GARRA_*` < flags. Tables are merged key by
key, everything else is replaced. Unknown keys are errors: a key that moved or is misspelt must not be ignored.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from garra import paths, spec, traffic
from garra.config_tables import EditsTable, KeyTable, MendTable, PriorityName, ProfileTable, SamplingTable
from garra.errors import ConfigError, UnknownModel

DEFAULT_ORIGIN = "default"
_LATEST = ":latest"
"""Clients of Ollama put it behind names that carry no tag."""
_PROFILE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


class Settings(BaseSettings):
    """The whole of garra's settings."""

    model_config = SettingsConfigDict(env_prefix="GARRA_", env_nested_delimiter="__", extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(11434, ge=0, le=65535)
    allowed_hosts: list[str] = []
    """Names besides loopback under which clients may reach the proxy (`Host` header)."""
    cors_origins: list[str] = []
    """Pages of other origins that may call the proxy from a browser: `https://chat.example`."""
    body_limit_mib: int = Field(64, ge=1)
    drain_s: float = Field(10, ge=0)
    """How long a shutdown waits for running answers."""
    write_stall_s: float = Field(60, gt=0)
    """A client that reads nothing for so long is dropped."""
    first_byte_grace_s: float = Field(10, gt=0)
    """A streaming client that has waited so long is sent comments, with status 200 before its answer is there."""
    heartbeat_s: float = Field(60, gt=0)
    """And every so long an empty event of its API."""
    memory_budget_mib: int | None = Field(None, gt=0)
    """Memory all engines may take together, of the kind they compute in; unset: what other programs leave."""
    vram_margin_mib: int = Field(384, ge=0)
    """Left free on every GPU."""
    ram_margin_mib: int = Field(1024, ge=0)
    prompt_store_mib: int = Field(4096, ge=0)
    """Disk that prompts of engines which left may take."""
    prompt_dir: Path | None = None
    """Where they are kept; /dev/shm/NAME keeps them in memory. Unset: garra's cache folder."""
    save_budget_ms: int = Field(1000, ge=0)
    """A swap waits no longer than that for them to be written."""
    swap_order: Literal["fair", "fifo"] = "fair"
    """fifo: models follow each other strictly in the order of arrival, for comparison."""
    keyless_priority: PriorityName = "normal"
    """The best class a request without a known key may have."""
    keyless: bool = False
    """Requests without a key are served though there are keys; on loopback only."""
    keys: dict[str, KeyTable] = {}
    aliases: dict[str, str] = {}
    """More names, each for a profile or one of its variants."""
    trusted_publishers: list[str] = []
    """Where it names any: a model of another publisher is brought with a warning."""
    log_format: Literal["console", "json"] = "console"
    watch: bool = False
    """Reload when the user's profiles.toml changes."""
    profiles: dict[str, ProfileTable] = {}

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)  # the layers are merged here, so that each value's origin is known

    @field_validator("cors_origins")
    @classmethod
    def _origins_are_origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if not re.fullmatch(r"https?://[A-Za-z0-9.\[\]:-]+", origin):
                raise ValueError(
                    f'"{origin}" is no origin: write it as a browser does, "https://host:port", and no "*"'
                )
        return value

    @model_validator(mode="after")
    def _names_are_clear(self) -> Settings:
        taken: dict[str, str] = {}
        for name, table in self.profiles.items():
            if not _PROFILE_NAME.fullmatch(name):
                raise ValueError(f'profile name "{name}": use lower-case letters, digits, "_" and "-", 40 at most')
            for label in (name, *table.aliases):
                if label in taken:
                    raise ValueError(f'"{label}" names both {taken[label]} and {name}')
                taken[label] = name
        for name, table in self.profiles.items():
            for other in table.fallback:
                if other == name or other not in self.profiles:
                    raise ValueError(f'fallback of {name}: "{other}" is no other profile')
        return self


@dataclass(frozen=True, slots=True)
class Config:
    """Validated settings, the profiles made of them, and where each value came from."""

    settings: Settings
    profiles: Mapping[str, spec.Profile]
    origins: Mapping[str, str]
    """Dotted key -> layer; a key that no layer sets is a built-in default."""
    labels: Mapping[str, spec.Profile]
    """Profiles by name, by alias, and each with its variants: `name:variant`."""
    keys: tuple[traffic.ClientKey, ...]
    """Known clients."""

    def profile(self, name: str) -> spec.Profile:
        """The profile of this name or alias. Raises UnknownModel, naming what exists."""
        if (profile := self.labels.get(name) or self.labels.get(name.removesuffix(_LATEST))) is not None:
            return profile
        near = difflib.get_close_matches(name[:100], self.profiles, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownModel(f'no profile is called "{name[:100]}"', fix=f"{hint}there are: {', '.join(self.profiles)}")

    def origin(self, key: str) -> str:
        return self.origins.get(key, DEFAULT_ORIGIN)


def load(flags: Mapping[str, Any] | None = None, *, user_file: Path | None = None) -> Config:
    """All layers merged and checked. `flags` is nested like the TOML. Raises ConfigError."""
    user_file = user_file or paths.user_profiles()
    shipped = paths.shipped("profiles.toml")
    layers: list[tuple[str, Mapping[str, Any]]] = [("shipped profiles.toml", _read_toml(shipped))]
    for file in (user_file, user_file.with_name(paths.managed_settings().name)):
        if file.exists():
            layers.append((str(file), _read_toml(file)))
    layers.append(("environment", EnvSettingsSource(Settings)()))
    layers.append(("flag", flags or {}))

    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for label, layer in layers:
        merged = _merge(merged, layer)
        origins.update(dict.fromkeys(_leaves(layer), label))
    try:
        settings = Settings(**merged)
    except ValidationError as error:
        raise _explain(error, origins) from None
    profiles = {name: table.to_spec(name) for name, table in settings.profiles.items()}
    labels: dict[str, spec.Profile] = {}
    for name, table in settings.profiles.items():
        for label in (name, *table.aliases):
            labels[label] = profiles[name]
            variants = table.variants_of(profiles[name])
            labels |= {f"{label}:{variant}": changed for variant, changed in variants.items()}
    for alias, target in settings.aliases.items():
        if target not in labels:
            raise ConfigError(
                f'aliases: "{alias}" stands for "{target}", which is no profile',
                fix=f"there are: {', '.join(profiles)}",
            )
        labels.setdefault(alias, labels[target])
    keys = tuple(table.to_key(name) for name, table in settings.keys.items())
    return Config(settings, profiles, origins, labels, keys)


def stray_environment() -> list[str]:
    """`GARRA_*` variables that set nothing, each with a guess at what was meant."""
    known = [f"GARRA_{name.upper()}" for name in Settings.model_fields]
    stray = []
    for variable in sorted(os.environ):
        if variable.startswith("GARRA_") and variable.split("__")[0] not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            stray.append(variable + (f" (did you mean {near[0]}?)" if near else ""))
    return stray


def _read_toml(path: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", fix=f"check {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}", fix=f"correct that line in {path}") from None


def _merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        both_tables = isinstance(value, Mapping) and isinstance(below, Mapping)
        result[key] = _merge(below, value) if both_tables else value  # type: ignore[arg-type]
    return result


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _explain(error: ValidationError, origins: dict[str, str]) -> ConfigError:
    """One line per wrong key, each with the layer it stands in."""
    said: dict[str, str] = {}
    for detail in error.errors():
        key, complaint = _complaint(detail)
        said.setdefault(key, complaint)  # a union complains once per member
    lines = [
        (f"{key}: " if key else "") + complaint + (f" [{origin}]" if (origin := _origin_of(key, origins)) else "")
        for key, complaint in said.items()
    ]
    what = "cannot use these settings: " + "\n  also: ".join(lines)
    return ConfigError(what, fix="correct it, then run: garra config check")


def _origin_of(key: str, origins: dict[str, str]) -> str | None:
    """The layer of a key; of a table, the last layer that sets something in it."""
    if not key or key in origins:
        return origins.get(key)
    return next((origin for name, origin in reversed(origins.items()) if name.startswith(f"{key}.")), None)


def _complaint(detail: ErrorDetails) -> tuple[str, str]:
    """The dotted key a validation error is about, and what is wrong with it."""
    location = [str(part) for part in detail["loc"]]
    table, depth = _table_of(location)
    key = ".".join(location[:depth])
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(location[-1], table.model_fields, n=1, cutoff=0.5)
        return key, "unknown key" + (f', did you mean "{near[0]}"?' if near else "")
    if len(location) >= depth > 0 and (allowed := _choices(table, location[depth - 1])):
        return key, f"{detail['input']!r} is not one of {allowed}"
    return key, detail["msg"].removeprefix("Value error, ")


def _table_of(location: list[str]) -> tuple[type[BaseModel], int]:
    """The table a location points into, and how many of its parts name the key; the rest is pydantic's own."""
    tables: dict[str, type[BaseModel]] = {"profiles": ProfileTable, "keys": KeyTable}
    table = tables.get(location[0]) if location else None
    if table is None or len(location) < 3:
        return Settings, min(len(location), 2 if table else 1)
    parts: dict[str, type[BaseModel]] = {"sampling": SamplingTable, "body": EditsTable, "mend": MendTable}
    nested = parts.get(location[2])
    if nested is not None and len(location) > 3:
        return nested, 4
    if location[2] == "variants" and len(location) > 4:
        return EditsTable, 5
    return table, 3


def _choices(table: type[BaseModel], field: str) -> str:
    """The words a field takes, for fields that take words; else nothing."""
    known = table.model_fields.get(field)
    told = str(known.annotation) if known else ""
    words = re.search(r"Literal\[([^]]*)\]", told)
    if words is None:
        return ""
    listed = ", ".join(word.strip().strip("'") for word in words[1].split(","))
    return listed + (" or a whole number in range" if "int" in told else "")
