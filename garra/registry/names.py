"""What file names in a repository say: which model, which quantisation, which part. Pure; names are not trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from garra.errors import NotOffered
from garra.registry.source import HubSource

_SHARD = re.compile(r"-(?P<number>\d{5})-of-(?P<count>\d{5})$")
_QUANT = re.compile(
    r"(?:^|[-._/])(?P<quant>(?:UD-)?(?:I?Q[1-9](?:_[A-Z0-9]+)+|BF16|FP?16|FP?32|MXFP4(?:_MOE)?|NVFP4|TQ[12]_0))$",
    re.IGNORECASE,
)
_DRAFT = re.compile(r"(^|/)(mtp|draft)([-_][^/]*|/[^/]*)\.gguf$", re.IGNORECASE)
_PRECISION = ("F16", "BF16", "Q8_0", "F32")
"""Of projectors, the first that is there."""
_MOST_BYTES_OF_A_PART = 200
_MOST_PARTS = 8
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a repository at one commit."""

    path: str
    n_bytes: int
    sha256: str | None = None
    """Of the content, where the hub keeps it as a large file."""
    git_oid: str | None = None
    """Else git's hash of it."""

    @property
    def blob(self) -> str:
        """What the cache calls it: the hash of its content."""
        return self.sha256 or self.git_oid or ""


@dataclass(frozen=True, slots=True)
class Variant:
    """One model of a repository: a file, or all shards of one, in order."""

    label: str
    """Its quantisation, or its name where that tells none."""
    files: tuple[RemoteFile, ...]
    whole: bool = True
    """False where shards are missing."""

    @property
    def n_bytes(self) -> int:
        return sum(file.n_bytes for file in self.files)


def is_plain(path: str) -> bool:
    """Whether a name from outside may become a path below a folder: relative, no tricks, of sane length."""
    parts = path.split("/")
    return (
        0 < len(parts) <= _MOST_PARTS
        and all(part not in ("", ".", "..") and not part.startswith("~") for part in parts)
        and all(len(part.encode("utf-8", "surrogatepass")) <= _MOST_BYTES_OF_A_PART for part in parts)
        and all(letter.isprintable() and letter not in '\\:*?"<>|' for letter in path)
        and not any("\ud800" <= letter <= "\udfff" for letter in path)
    )


def quant_of(path: str) -> str | None:
    """The quantisation a file's name tells, as it is written there."""
    match = _QUANT.search(_stem(path))
    return match["quant"] if match else None


def shard_of(path: str) -> tuple[int, int] | None:
    """Which shard of how many a file is; None for a whole model."""
    match = _SHARD.search(path.removesuffix(".gguf"))
    return (int(match["number"]), int(match["count"])) if match else None


def shard_name(path: str, number: int) -> str:
    """The name of another shard of the same model."""
    return re.sub(r"-\d{5}-of-(\d{5})\.gguf$", rf"-{number:05}-of-\1.gguf", path)


def is_projector(path: str) -> bool:
    return "mmproj" in PurePosixPath(path).name.lower()


def variants(files: Iterable[RemoteFile]) -> list[Variant]:
    """The models among a repository's files: projectors and drafts aside, shards together; smallest first."""
    models = [file for file in files if file.path.lower().endswith(".gguf") and not is_projector(file.path)]
    models = [file for file in models if not _DRAFT.search(file.path)] or models
    groups: dict[str, list[RemoteFile]] = {}
    for file in models:
        groups.setdefault(_stem(file.path), []).append(file)
    found = []
    for stem, members in groups.items():
        members.sort(key=lambda file: file.path)
        shards = [shard_of(file.path) for file in members]
        counts = {shard[1] for shard in shards if shard is not None}
        whole = shards == [None] or (
            len(counts) == 1 and shards == [(n, next(iter(counts))) for n in range(1, len(members) + 1)]
            and len(members) == next(iter(counts))
        )  # fmt: skip
        found.append(Variant(quant_of(members[0].path) or PurePosixPath(stem).name, tuple(members), whole))
    return sorted(found, key=lambda one: (one.n_bytes, one.label, one.files[0].path))


def pick(source: HubSource, files: Sequence[RemoteFile]) -> Variant:
    """The one model a reference means. Raises NotOffered, with what there is: nothing is guessed."""
    offered = variants(files)
    if not offered:
        raise NotOffered(
            f"{source.repo} has no GGUF file{_instead(files)}", fix="garra models search NAME finds GGUF conversions"
        )
    if source.file is not None:
        fitting = [one for one in offered if any(file.path == source.file for file in one.files)]
        wanted = source.file
        if not fitting:  # a projector or a draft, asked for by its name
            fitting = [Variant(wanted, (file,)) for file in files if file.path == wanted]
    elif source.quant is not None:
        wanted = source.quant
        fitting = [one for one in offered if _is(one, wanted)]
    else:
        wanted, fitting = "a single model", offered
    if len(fitting) == 1:
        if not fitting[0].whole:
            raise NotOffered(f"{source.repo} lacks shards of {fitting[0].label}", fix="ask its publisher")
        return fitting[0]
    listed = "; ".join(shown(one) for one in offered[:_SHOWN]) + " and more" * (len(offered) > _SHOWN)
    if not fitting:
        near = [one.label for one in offered if source.quant and source.quant.upper() in one.label.upper()]
        hint = f"did you mean {near[0]}? " if len(near) == 1 else ""
        raise NotOffered(f"{source.repo} has no {wanted}", fix=f"{hint}it has {listed}")
    if source.quant is None:
        raise NotOffered(f"{source.repo} holds {len(offered)} models", fix=f"name one of them: {listed}")
    paths = ", ".join(one.files[0].path for one in fitting)
    raise NotOffered(f"{source.repo} holds {len(fitting)} models called {wanted}", fix=f"name the file: {paths}")


def projector_of(files: Iterable[RemoteFile]) -> RemoteFile | None:
    """The projector to take with a model: by precision, the shortest name first; None where there is none."""
    found = [file for file in files if is_projector(file.path) and file.path.lower().endswith(".gguf")]

    def rank(file: RemoteFile) -> tuple[int, int, str]:
        quant = (quant_of(file.path) or "").upper().replace("FP", "F")
        return (_PRECISION.index(quant) if quant in _PRECISION else len(_PRECISION), len(file.path), file.path)

    return min(found, key=rank, default=None)


def draft_of(files: Sequence[RemoteFile], model: Variant) -> RemoteFile | None:
    """The draft or MTP file that comes with a model: of its own quantisation, or the only one."""
    found = [file for file in files if _DRAFT.search(file.path) and file not in model.files]
    alike = [file for file in found if (quant_of(file.path) or "").upper() == model.label.upper()]
    return alike[0] if len(alike) == 1 else found[0] if len(found) == 1 else None


def shown(one: Variant) -> str:
    """A model in a list, with its size where that is known."""
    return f"{one.label} ({one.n_bytes / 1e9:.2f} GB)" if one.n_bytes else one.label


def _is(one: Variant, wanted: str) -> bool:
    quant = quant_of(one.files[0].path)
    if quant is not None:
        return quant.upper() == wanted.upper()
    return re.search(rf"(^|[-._/]){re.escape(wanted)}$", _stem(one.files[0].path), re.IGNORECASE) is not None


def _stem(path: str) -> str:
    """The name without its extension and shard."""
    return _SHARD.sub("", re.sub(r"\.gguf$", "", path, flags=re.IGNORECASE))


def _instead(files: Iterable[RemoteFile]) -> str:
    """What an archive of weights for other programs holds."""
    others = sorted({PurePosixPath(file.path).suffix for file in files} & {".safetensors", ".bin", ".pt", ".pth"})
    return (
        f", only {', '.join(others)}, which garra does not load: they can run code, or lack what an engine needs"
        * bool(others)
    )
