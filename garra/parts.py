"""What a profile loads: its model, with the card that planning needs, and the files that go beside it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from garra.bill import HOST
from garra.errors import ModelNotPresent
from garra.planner import memory
from garra.planner import plan as planner
from garra.planner.memory import Knobs
from garra.registry import card as cards
from garra.registry import gguf
from garra.registry import store as models
from garra.registry.card import ModelCard
from garra.spec import Profile

_CARDS = Path(__file__).parent / "data" / "cards"
_PROJECTOR_WORK = 1.25


def card_of(profile: Profile) -> tuple[ModelCard, Path | None]:
    """The model's card and file: from the file's own header, or as shipped where the file is not here.

    Raises ModelNotPresent when neither is there, BadModel when the file is broken.
    """
    found = models.locate(profile.model)
    if found is not None:
        return cards.of_header(gguf.read_model(found)), found
    shipped = shipped_card(profile.model)
    if shipped is None:
        raise absent(profile)
    return shipped, None


def absent(profile: Profile) -> ModelNotPresent:
    """The error for a profile whose model was not downloaded."""
    return ModelNotPresent(f"the model of {profile.name} is not on this machine", fix=f"garra pull {profile.name}")


def shipped_card(model: str) -> ModelCard | None:
    """What garra knows of a model before it is downloaded, or None."""
    for file in sorted(_CARDS.glob("*.json")):
        facts = json.loads(file.read_text(encoding="utf-8"))
        if facts["model"] == model:
            return cards.of_facts(facts)
    return None


def beside(profile: Profile) -> planner.Beside:
    """What the profile's own flags load besides the model: a projector, a draft model.

    A projector takes its file and a part of it more while it works (the engine does not tell in advance).
    """
    projector = _file_of(profile, "-mm", "--mmproj") or projector_of(profile)
    draft = _file_of(profile, "-md", "--model-draft") or draft_of(profile)
    card = cards.of_header(gguf.read(draft)) if draft is not None else None

    def known(knobs: Knobs) -> Mapping[str, int]:
        parts = {"projector": int(projector.stat().st_size * _PROJECTOR_WORK)} if projector is not None else {}
        if card is not None:
            plain = replace(knobs, cache_type_k="f16", cache_type_v="f16", gpu_layers=0, draft_depth=0)
            bill = memory.bill(card, replace(plain, cache_ram_mib=0)).parts[HOST]
            parts |= {f"draft {name}": n_bytes for name, n_bytes in bill.items()}
        return parts

    return known


def draft_of(profile: Profile) -> Path | None:
    """The model that drafts for it, where it has one and that is here."""
    if profile.speculation != "draft" or profile.draft_model is None:
        return None
    return models.locate(profile.draft_model)


def projector_of(profile: Profile) -> Path | None:
    """The projector that came with the model, for a profile that sees and names none itself."""
    if profile.text_only or any(flag in ("-mm", "--mmproj", "-mmu", "--mmproj-url") for flag in profile.extra_args):
        return None
    return models.projector(profile.model)


def _file_of(profile: Profile, *flags: str) -> Path | None:
    """The existing file one of these flags names among the profile's own."""
    words = profile.extra_args
    named = next((value for flag, value in itertools.pairwise(words) if flag in flags), None)
    path = Path(named).expanduser() if named else None
    return path if path is not None and path.is_file() else None
