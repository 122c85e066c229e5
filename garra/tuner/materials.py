"""What trials are made of: weights that are here or made, launches that fit, and how far answers stray."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from garra import parts, paths, planning
from garra.engine import perplexity
from garra.errors import BadModel, DoesNotFit
from garra.planner import memory
from garra.registry import disk, names, requantise
from garra.registry.catalog import Catalog
from garra.spec import EngineBuild, LaunchPlan, Profile
from garra.tuner.knobs import Facts

_MADE_ON_CPU = ("Q8_0", "Q4_0")
"""Types the engine repacks for CPUs: re-quantising to them can pay even from fewer bits (Q4_1 to Q8_0: 1.4x)."""


@dataclass(slots=True)
class Workbench:
    """The `Materials` of one tune."""

    profile: Profile
    build: EngineBuild
    planner: planning.Planner
    catalog: Catalog
    text: Path
    n_chunks: int | None = 4
    """Of 512 tokens, on which quality is judged; None: all of the text."""
    source: Path = field(init=False)
    _siblings: Mapping[str, Path] = field(init=False)
    _base: Path | None = None

    def __post_init__(self) -> None:
        _, found = parts.card_of(self.profile)
        if found is None:
            raise parts.absent(self.profile)
        self.source = found
        self._siblings = self._others_here()

    def kinds(self, wanted: tuple[str, ...] | None) -> tuple[str, ...]:
        """Other types of these weights: those that are here, and on a CPU those worth making; or those named."""
        if wanted is not None:
            return wanted
        made = _MADE_ON_CPU if self.build.backend == "cpu" or self.profile.gpu_layers == 0 else ()
        own = names.quant_of(self.source.name)
        return tuple(kind for kind in dict.fromkeys((*self._siblings, *made)) if kind != own)

    def facts(self, streams: int, kinds: tuple[str, ...], *, alone: bool) -> Facts:
        """What decides which options there are. Raises what keeps the profile itself from being launched."""
        card, _ = parts.card_of(self.profile)
        host = planning.detect(self.build)
        return Facts(
            plan=self.planner.plan(self.profile, whole=True),
            weights=kinds,
            n_layers=card.n_layer,
            n_ctx_train=card.n_ctx or self.profile.context,
            drafts=card.drafts,
            cores=host.cores,
            performance_cores=host.performance_cores,
            streams=streams,
            alone=alone,
            quantises_cache=memory.row_fits(card, "q8_0"),
        )

    async def weights(self, kind: str) -> Path:
        """Raises BadModel, DownloadFailed."""
        if (sibling := self._siblings.get(kind)) is not None and sibling.is_file():
            return sibling
        environment = planning.environment(self.build, None)
        return await asyncio.to_thread(
            requantise.variant, self.build, self.profile.model, self.source, kind, self.catalog, environment
        )

    async def plan(self, profile: Profile) -> LaunchPlan:
        """Raises DoesNotFit unless it fits as it asks, into what is free now: no engine of ours is up."""
        made = await asyncio.to_thread(self.planner.plan, profile)
        if made.rung:
            raise DoesNotFit(f"it does not fit as it asks: {made.notes[0] if made.notes else 'memory is short'}")
        return made

    async def divergence(self, profile: Profile) -> float:
        """Raises EngineDown where the tool fails."""
        told = await self.quality(profile)
        if told.kld is None:
            raise BadModel("the comparison gave no divergence")
        return told.kld

    async def quality(self, profile: Profile) -> perplexity.Quality:
        """How the profile's weights and cache types compare with the original's weights and an f16 cache."""
        plan = await self.plan(profile)
        base = await self.reference()
        environment = planning.environment(self.build, plan.gpu)
        return await perplexity.diverge(self.build, _variant(plan), base, self.n_chunks, environment)

    async def reference(self) -> Path:
        """The file of the reference's probabilities, written if need be. Raises EngineDown, DownloadFailed."""
        if self._base is None:
            base = paths.cache_dir() / "quality" / f"{self._name()}.kld"
            if not base.exists():
                await self._write_reference(base)
            self._base = base
        return self._base

    async def _write_reference(self, base: Path) -> None:
        base.parent.mkdir(parents=True, exist_ok=True)
        for old in base.parent.glob("*.kld"):
            old.unlink(missing_ok=True)  # they are large, and made again within seconds
        card, _ = parts.card_of(self.profile)
        n_chunks = self.n_chunks or self.text.stat().st_size // perplexity.N_CTX
        n_bytes = perplexity.base_bytes(card.n_vocab, n_chunks)
        disk.check_space(base.parent, n_bytes, fix="set XDG_CACHE_HOME to another disk", doing="write")
        plan = await self.plan(replace(self.profile, cache_type_k="f16", cache_type_v="f16", flash_attention="on"))
        environment = planning.environment(self.build, plan.gpu)
        await perplexity.write_base(self.build, _variant(plan), self.text, base, self.n_chunks, environment)

    def _name(self) -> str:
        seen, text = self.source.stat(), self.text.read_bytes()
        parts_ = (str(self.source), str(seen.st_size), str(seen.st_mtime_ns), self.build.stamp, str(self.n_chunks))
        return hashlib.sha256("\0".join(parts_).encode() + text).hexdigest()[:24]

    def _others_here(self) -> dict[str, Path]:
        """The same model with other weights, by type, as the catalog knows them."""
        here = self.catalog.get(self.profile.model) or self.catalog.get(str(self.source))
        if here is None:
            return {}
        same = ("name", "n_parameters", "architecture")
        found = {}
        for one in self.catalog.all():
            kind = str(one.facts.get("quantisation") or "")
            alike = all(one.facts.get(key) == here.facts.get(key) for key in same)
            if alike and kind and one.path != str(self.source) and one.present and one.origin != requantise.ORIGIN:
                found[kind] = Path(one.path)
        return found


def _variant(plan: LaunchPlan) -> perplexity.Variant:
    profile = plan.profile
    return perplexity.Variant(
        plan.model_path, profile.cache_type_k, profile.cache_type_v, plan.threads, plan.gpu_layers
    )
