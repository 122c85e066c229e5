"""What garra tells about its models: `/v1/models`, `/health`. Nothing here touches an engine or loads a model."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from garra import __version__
from garra.apis.openapi import document
from garra.config import Config
from garra.ports import Fleet
from garra.proxy.access import may_use
from garra.proxy.answers import answer
from garra.registry.cards import Cards, ModelFacts
from garra.snapshot import EngineStatus
from garra.spec import Phase, Profile

_READY_RETRY_S = 2
MODELS = "/v1/models/"


class Listing:
    """Handlers of the model list and of health."""

    def __init__(self, config: Config, fleet: Fleet, cards: Cards) -> None:
        self._fleet = fleet
        self._cards = cards
        self._config = config

    def configure(self, config: Config) -> None:
        self._config = config

    async def models(self, request: web.BaseRequest) -> web.Response:
        key = request.get("key")
        rows = [
            await self._model(name, profile)
            for name, profile in self._config.labels.items()
            if name.partition(":")[0] == profile.name and may_use(key, profile.name)  # aliases stand in its row
        ]
        return answer({"object": "list", "data": rows})

    async def model(self, request: web.BaseRequest) -> web.Response:
        name = request.path.removeprefix(MODELS)
        profile = self._config.profile(name)
        return answer(await self._model(profile.name + (f":{profile.variant}" if profile.variant else ""), profile))

    async def openapi(self, request: web.BaseRequest) -> web.Response:
        """What garra promises, for programs that read it."""
        key = request.get("key")
        names = [name for name, profile in self._config.labels.items() if may_use(key, profile.name)]
        return answer(document(__version__, names))

    async def health(self, request: web.BaseRequest) -> web.Response:
        """200 while garra lives. With `?ready=1`: 503 until some engine is READY."""
        phases = {profile.name: self._fleet.status(profile.name).phase for profile in self._fleet.profiles()}
        ready = Phase.READY in phases.values()
        awake = {name: phase for name, phase in phases.items() if phase is not Phase.COLD}
        body = {"status": "ok", "ready": ready, "profiles": awake}
        if request.query.get("ready") in ("1", "true") and not ready:
            return answer(body | {"status": "unavailable"}, status=503, headers={"Retry-After": str(_READY_RETRY_S)})
        return answer(body)

    async def _model(self, name: str, profile: Profile) -> dict[str, Any]:
        status = self._fleet.status(profile.name)
        facts = await self._cards.of(profile.model)
        return {
            "id": name,
            "object": "model",
            "created": int(facts.modified.timestamp()) if facts is not None else 0,
            "owned_by": "garra",
            "aliases": [label for label, one in self._config.labels.items() if one is profile and label != name],
            "description": profile.description,
            "kind": profile.kind,
            "status": {"value": model_state(status, self._fleet.present(profile.name))},
            "context_length": status.slot_context,
            "capabilities": capabilities(profile, facts),
            "meta": _meta(status, facts),
            "slots": status.slots,
            "engine": status.engine,
        }


def _meta(status: EngineStatus, facts: ModelFacts | None) -> dict[str, Any]:
    """As llama-server tells it; the context is the one a request really has."""
    if facts is None:
        return {"n_ctx": status.slot_context}
    return {
        "n_ctx": status.slot_context,
        "n_ctx_train": facts.n_ctx_train,
        "n_embd": facts.n_embd,
        "n_params": facts.n_parameters,
        "size": facts.n_bytes,
        "ftype": facts.quantisation,
    }


def capabilities(profile: Profile, facts: ModelFacts | None) -> list[str]:
    """What one can ask of it, in Ollama's words."""
    if profile.kind != "chat":
        return [profile.kind]
    known = ["completion"]
    if facts is not None:
        known += ["tools"] * facts.traits.tools + ["thinking"] * facts.traits.thinking + ["insert"] * facts.fills_in
    return known + ["vision"] * (not profile.text_only)


def model_state(status: EngineStatus, present: bool) -> str:
    match status.phase:
        case Phase.READY:
            return "loaded"
        case Phase.LOADING | Phase.BACKOFF:
            return "loading"
        case Phase.FAILED:
            return "failed"
        case _:
            return "unloaded" if present else "not_downloaded"
