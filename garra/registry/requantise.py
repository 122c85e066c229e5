"""Another weight type of a model that is here: made by `llama-quantize`, kept in the catalog with where it is from."""

from __future__ import annotations

import hashlib
import math
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from garra import paths
from garra.errors import BadModel
from garra.registry import disk, gguf, hashing, stores
from garra.registry.catalog import Artifact, Catalog, now
from garra.registry.names import quant_of
from garra.spec import EngineBuild
from garra.supervisor.tether import tether

TOOL = "llama-quantize"
ORIGIN = "requantised"
_LIMIT_S = 3600.0
_BITS = {"Q8_0": 8.5, "Q6_K": 6.6, "Q5_K_M": 5.7, "Q4_K_M": 4.9, "Q4_0": 4.5, "Q4_1": 5.0}
_MOST_BITS = 16.0


def home() -> Path:
    """Where garra keeps what it made."""
    return paths.models_dir() / ORIGIN


def path_of(source: Path, kind: str) -> Path:
    """Where this variant is, or would be; made anew when its source changes."""
    seen = source.stat()
    stem = source.stem
    for suffix in (f".{quant_of(source.name) or ''}", f"-{quant_of(source.name) or ''}"):
        stem = stem.removesuffix(suffix) if len(suffix) > 1 else stem
    return home() / f"{stem}-{seen.st_size:x}-{int(seen.st_mtime) & 0xFFFFFF:x}-{kind}.gguf"


def variant(
    build: EngineBuild, ref: str, source: Path, kind: str, catalog: Catalog, environment: Mapping[str, str]
) -> Path:
    """The model of `ref` with weights of this type; made if it is not here. Raises BadModel, DownloadFailed.

    From quantised weights nothing lost comes back: what the new ones are worth has to be measured.
    """
    target = path_of(source, kind)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        header = gguf.read_model(source)
        n_weights = sum(math.prod(tensor.shape) for tensor in header.tensors)
        n_bytes = int(n_weights * _BITS.get(kind, _MOST_BITS) / 8)
        disk.check_space(target.parent, n_bytes, fix="garra models rm", doing="write")
        _quantise(build, source, target, kind, environment)
    if catalog.get(f"file:{target}") is None:
        catalog.keep_if_possible(_artifact(build, ref, target, kind))
    return target


def _quantise(build: EngineBuild, source: Path, target: Path, kind: str, environment: Mapping[str, str]) -> None:
    part = target.with_suffix(".part")
    words = [*tether("KILL"), str(build.tool(TOOL)), "--allow-requantize", str(source), str(part), kind]
    try:
        done = subprocess.run(
            words, env=dict(environment), capture_output=True, text=True, check=False, timeout=_LIMIT_S,
            errors="replace", stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
            raise BadModel(f"cannot make {kind} of {source.name}: {lines[-1][:200] if lines else 'no reason given'}")
        gguf.read(part)
        part.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadModel(f"cannot make {kind} of {source.name}: {error}", fix="garra engine build") from None
    finally:
        part.unlink(missing_ok=True)


def _artifact(build: EngineBuild, ref: str, target: Path, kind: str) -> Artifact:
    """With its provenance."""
    ref_here = f"file:{target}"
    one = stores.adopt(ref_here, target).artifact
    if one is None:
        raise BadModel(f"{target} is not a usable model", fix=f"rm {target}")
    sha256 = hashing.of_file(target, hashlib.sha256(), lambda n: None)
    files = tuple(replace(file, sha256=sha256, checked=now()) for file in one.files)
    facts = {**one.facts, "quantisation": kind, "requantised_from": ref, "requantised_with": build.stamp}
    return replace(one, origin=ORIGIN, base_model=ref, files=files, facts=facts)
