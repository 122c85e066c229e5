"""Which models are on this machine, and where. Never downloads, never asks a network."""

from __future__ import annotations

from pathlib import Path

from garra import paths
from garra.errors import BadModel
from garra.registry import hubcache, names, ollama
from garra.registry.source import FileSource, HubSource, OllamaSource, PypiSource, ServerSource, parse_source

_MAGIC = b"GGUF"


def locate(model: str) -> Path | None:
    """The file a model reference stands for (of several shards the first), or None when it is not on this machine."""
    source = parse_source(model)
    match source:
        case FileSource(path):
            found = Path(path).expanduser()
            return found if found.is_file() else None
        case PypiSource():
            found = home_of(source) / Path(source.member).name
            return found if found.is_file() else None
        case HubSource():
            return next(iter(hubcache.find(source)), None)
        case OllamaSource():
            return ollama.locate(source)
        case ServerSource(url):
            return Path(url)  # it is as present as it can be


def projector(model: str) -> Path | None:
    """The projector that came with a model, the one the hub's rule would take; None where there is none."""
    source = parse_source(model)
    if isinstance(source, OllamaSource):
        return ollama.projector(source)
    found = locate(model)
    if found is None:
        return None
    home, files = found.parent, sorted(path for path in found.parent.glob("*.gguf") if path.is_file())
    if isinstance(source, HubSource):  # a repository may keep it above its models
        home = hubcache.snapshot_of(found)
        files = hubcache.files_below(home, ".gguf")
    beside = names.projector_of(hubcache.as_listed(home, files))
    return home / beside.path if beside is not None else None


def home_of(source: PypiSource) -> Path:
    """The folder garra keeps this source's file in."""
    return paths.models_dir() / "pypi" / f"{source.package}-{source.version}"


def check(path: Path) -> None:
    """Raises BadModel unless this is a readable file that starts like a GGUF."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise BadModel(f"cannot read {path}: {error.strerror}", fix="check the path in the profile's model") from None
    if magic != _MAGIC:
        raise BadModel(f"{path} is not a GGUF file", fix="download it again, or point the profile at a .gguf file")
