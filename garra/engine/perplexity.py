"""How far a cheaper model strays from a dearer one: `llama-perplexity` on the same text, token by token.

First the reference writes down its probabilities (two bytes per token and word of its vocabulary), then each variant is
compared with them. KL divergence tells variants apart that perplexity cannot: 4.6k tokens of text leave perplexity a
doubt of 7 %, and the mean KLD one of 2 % (measured).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from garra.errors import EngineDown
from garra.registry import disk
from garra.spec import EngineBuild, KvType
from garra.supervisor.tether import tether

TOOL = "llama-perplexity"
N_CTX = 512
"""Tokens per chunk; half of each are judged."""
_LIMIT_S = 3600.0
_NUMBER = r"\s*(-?[0-9.]+(?:e-?\d+)?|nan)"


@dataclass(frozen=True, slots=True)
class Variant:
    """What is to be judged: weights and cache, and where they are computed."""

    model: Path
    cache_type_k: KvType = "f16"
    cache_type_v: KvType = "f16"
    threads: int = 1
    gpu_layers: int = 0


@dataclass(frozen=True, slots=True)
class Quality:
    """How a variant speaks, and how that differs from the reference."""

    ppl: float | None
    """Perplexity on the text."""
    kld: float | None = None
    """Mean KL divergence from the reference, in nats per token; None for the reference itself."""
    kld_error: float | None = None
    kld_p99: float | None = None
    same_top: float | None = None
    """How often both like the same token best, 0 to 1."""


async def write_base(
    build: EngineBuild, variant: Variant, text: Path, base: Path, n_chunks: int | None, environment: Mapping[str, str]
) -> Quality:
    """Write the reference's probabilities to `base`; its perplexity. Raises EngineDown."""
    part = base.with_suffix(".part")
    words = [*_words(build, variant, n_chunks), "-f", str(text), "--kl-divergence-base", str(part)]
    try:
        said = await _run(words, environment)
        part.replace(base)
    except OSError as error:
        raise disk.refused(error, base, 0) from None
    finally:
        part.unlink(missing_ok=True)
    return parse(said)


async def diverge(
    build: EngineBuild, variant: Variant, base: Path, n_chunks: int | None, environment: Mapping[str, str]
) -> Quality:
    """How far the variant is from what `base` holds. Raises EngineDown."""
    words = [*_words(build, variant, n_chunks), "--kl-divergence", "--kl-divergence-base", str(base)]
    return parse(await _run(words, environment))


def base_bytes(n_vocab: int, n_chunks: int) -> int:
    """Bytes of a reference's probabilities: two for each word of the vocabulary and judged token."""
    return n_chunks * (N_CTX // 2) * n_vocab * 2


def parse(said: str) -> Quality:
    """The tool's words. Raises EngineDown where they hold no figure."""
    ppl = _first(said, r"Final estimate: PPL =" + _NUMBER, r"Mean PPL\(Q\)\s*:" + _NUMBER)
    kld = re.search(r"Mean\s+KLD:" + _NUMBER + r"\s*±" + _NUMBER, said)
    top = _first(said, r"Same top p:" + _NUMBER)
    if ppl is None and kld is None:
        lines = [line for line in said.splitlines() if line.strip()]
        raise EngineDown(f"{TOOL} gave no figure: {lines[-1][:200] if lines else 'it said nothing'}")
    return Quality(
        ppl=ppl,
        kld=float(kld[1]) if kld else None,
        kld_error=float(kld[2]) if kld else None,
        kld_p99=_first(said, r"99\.0%\s+KLD:" + _NUMBER),
        same_top=top / 100 if top is not None else None,
    )


def _first(said: str, *patterns: str) -> float | None:
    for pattern in patterns:
        if found := re.search(pattern, said):
            return float(found[1])
    return None


def _words(build: EngineBuild, variant: Variant, n_chunks: int | None) -> list[str]:
    words = [str(build.tool(TOOL)), "-m", str(variant.model), "-c", str(N_CTX), "-b", str(N_CTX), "-fa", "on"]
    words += ["-ctk", variant.cache_type_k, "-ctv", variant.cache_type_v, "-t", str(variant.threads)]
    words += ["-ngl", str(variant.gpu_layers), *(("--device", "none") if not variant.gpu_layers else ())]
    return [*words, *(("--chunks", str(n_chunks)) if n_chunks else ()), "--log-colors", "off"]


async def _run(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Everything the tool says. Raises EngineDown when it fails."""
    try:
        child = await asyncio.create_subprocess_exec(
            *tether("KILL"), *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT, env=dict(environment), start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise EngineDown(f"cannot start {words[0]}: {error.strerror}", fix="garra engine build") from None
    try:
        async with asyncio.timeout(_LIMIT_S):
            output, _ = await child.communicate()
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    said = output.decode("utf-8", "replace")
    if child.returncode:
        errors = [line for line in said.splitlines() if "error" in line.lower() or line.split(" ")[1:2] == ["E"]]
        raise EngineDown(
            f"{Path(words[0]).name} failed ({child.returncode}): {(errors or ['no reason given'])[0][:300]}"
        )
    return said
