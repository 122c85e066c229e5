"""Which models are on this machine, and where."""

from __future__ import annotations

import re
from pathlib import Path

from garra import paths
from garra.errors import BadModel
from garra.registry.source import FileSource, HubSource, PypiSource, parse_source

_MAGIC = b"GGUF"


def locate(model: str) -> Path | None:
    """The file a model reference stands for, or None when it is not on this machine. Never downloads."""
    source = parse_source(model)
    match source:
        case FileSource(path):
            found = Path(path).expanduser()
            return found if found.is_file() else None
        case PypiSource():
            found = home_of(source) / Path(source.member).name
            return found if found.is_file() else None
        case HubSource(file=str(name)):
            found = home_of(source) / name
            return found if found.is_file() else None
        case HubSource(quant=quant):
            here = home_of(source)
            names = [str(path.relative_to(here)) for path in here.rglob("*.gguf")]
            picked = pick_quant(names, quant or "")
            return here / picked if picked else None


def home_of(source: PypiSource | HubSource) -> Path:
    """The folder garra keeps this source's files in."""
    if isinstance(source, PypiSource):
        return paths.models_dir() / "pypi" / f"{source.package}-{source.version}"
    return paths.models_dir() / "hf" / source.repo


def pick_quant(names: list[str], quant: str) -> str | None:
    """The one model file of this quantisation among a repository's file names, projectors aside."""
    wanted = re.compile(rf"(^|[-._/]){re.escape(quant)}\.gguf$", re.IGNORECASE)
    fitting = [name for name in names if wanted.search(name) and "mmproj" not in name.lower()]
    return min(fitting, key=lambda name: (len(name), name)) if fitting else None


def check(path: Path) -> None:
    """Raises BadModel unless this is a readable file that starts like a GGUF."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise BadModel(f"cannot read {path}: {error.strerror}", fix="check the path in the profile's model") from None
    if magic != _MAGIC:
        raise BadModel(f"{path} is not a GGUF file", fix="download it again, or point the profile at a .gguf file")
