"""`/api/...`: Ollama's API over the same profiles, queue and engines."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
from aiohttp import web

from garra.apis import ollama_asks as asks
from garra.apis.errors import EngineRefused
from garra.apis.ollama_answers import OllamaPassage, Part, durations, loaded
from garra.apis.ollama_asks import Ask, Asked
from garra.apis.ollama_lists import VERSION, Described, running, show, tag
from garra.apis.routes import BY_PATH
from garra.bill import HOST
from garra.config import Config
from garra.errors import BadRequest, NotFound, NotOffered
from garra.ports import Fleet
from garra.proxy import inference
from garra.proxy.access import may_use
from garra.proxy.answers import answer
from garra.proxy.call import Told
from garra.proxy.inference import Inference
from garra.proxy.listing import capabilities
from garra.proxy.management import Management
from garra.proxy.ollama_pull import Puller
from garra.proxy.route import CallHead
from garra.registry.cards import Cards
from garra.spec import MIB, Phase, Profile
from garra.traffic import ClientKey

PREFIX = "/api/"
_NOT_HERE = {
    "create": "models come as GGUF files here: garra import, or garra pull",
    "push": "garra publishes no models",
    "blobs": "models come as GGUF files here: garra import, or garra pull",
}
_LONGEST_TRUNCATION = 3

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class OllamaApi:
    """The handlers. Holds no state but its parts."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        engines: Inference,
        cards: Cards,
        puller: Puller,
        management: Management,
    ) -> None:
        self._config = config
        self._fleet = fleet
        self._engines = engines
        self._cards = cards
        self._puller = puller
        self._management = management
        self._routes: dict[tuple[str, str], Handler] = {
            ("GET", "version"): self.version, ("HEAD", "version"): self.version,
            ("GET", "tags"): self.tags, ("HEAD", "tags"): self.tags,
            ("GET", "ps"): self.ps, ("POST", "show"): self.show,
            ("POST", "chat"): self.chat, ("POST", "generate"): self.generate,
            ("POST", "embed"): self.embed, ("POST", "embeddings"): self.embeddings,
            ("POST", "pull"): self.pull, ("DELETE", "delete"): self.delete, ("POST", "copy"): self.copy,
        }  # fmt: skip

    def configure(self, config: Config) -> None:
        self._config = config

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Raises GarraError."""
        name = request.path.removeprefix(PREFIX)
        if (handler := self._routes.get((request.method, name))) is not None:
            return await handler(request)
        if (why := _NOT_HERE.get(name.partition("/")[0])) is not None:
            raise _NotImplemented(f"/api/{name[:60]} is not done here: {why}")
        raise NotFound(f"there is no {request.method} {request.path[:100]} here", fix="GET /api/tags")

    # -- what there is

    async def version(self, request: web.BaseRequest) -> web.Response:
        return answer({"version": VERSION})

    async def tags(self, request: web.BaseRequest) -> web.Response:
        names = self._names(request.get("key"))
        rows = [tag(one) for label in names if (one := await self._described(label)) is not None]
        return answer({"models": rows})

    async def show(self, request: web.BaseRequest) -> web.Response:
        asked = await self._read(request)
        profile = self._config.profile(asked.named())
        one = await self._described(_name_of(profile))
        if one is None:
            raise NotOffered(f"model {asked.named()[:100]!r} is not on this machine", fix=f"garra pull {profile.name}")
        return answer(show(one))

    async def ps(self, request: web.BaseRequest) -> web.Response:
        rows = []
        now = datetime.now(UTC)
        for profile in self._fleet.profiles():
            status = self._fleet.status(profile.name)
            one = await self._described(_name_of(profile)) if status.phase is Phase.READY else None
            if one is not None:
                on_gpu = sum(mib for device, mib in status.planned_mib.items() if device != HOST)
                rows.append(running(one, vram_bytes=on_gpu * MIB, stays_s=status.stays_s, now=now))
        return answer({"models": rows})

    # -- what engines answer

    async def chat(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = await self._read(request)
        profile = self._config.profile(asked.named())
        if not asked.messages:
            return await self._load_or_unload(request, asked, profile, "message")
        await self._check(asked, profile, images=any(one.get("images") for one in asked.messages))
        return await self._ask(request, asked, profile, asks.chat(asked), "message")

    async def generate(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = await self._read(request)
        profile = self._config.profile(asked.named())
        if not asked.prompt and not asked.suffix:
            return await self._load_or_unload(request, asked, profile, "response")
        await self._check(asked, profile, images=bool(asked.images))
        return await self._ask(request, asked, profile, asks.generate(asked), "response")

    async def embed(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = await self._read(request)
        began_ns = time.monotonic_ns()
        told = await self._embeddings(request, asked)
        vectors = [row["embedding"] for row in told["data"]]
        took = durations(time.monotonic_ns() - began_ns, 0, {}, told.get("usage") or {})
        kept = {key: took[key] for key in ("total_duration", "load_duration", "prompt_eval_count")}
        return answer({"model": asked.named(), "embeddings": vectors, **kept})

    async def embeddings(self, request: web.BaseRequest) -> web.StreamResponse:
        """The older form: one prompt, one vector."""
        told = await self._embeddings(request, await self._read(request))
        return answer({"embedding": told["data"][0]["embedding"]})

    async def _embeddings(self, request: web.BaseRequest, asked: Asked) -> dict[str, Any]:
        """Texts longer than the model can take are cut, unless their client wants an error."""
        profile = self._config.profile(asked.named())
        ask = asks.embed(asked)
        for _ in range(_LONGEST_TRUNCATION):
            try:
                body = await self._engines.collect(request, self._put(ask, profile, None))
                return msgspec.json.decode(body, type=dict[str, Any])
            except EngineRefused as refused:
                if asked.truncate is False or ("too large" not in refused.what and refused.told.n_ctx is None):
                    raise
                n_ctx = self._fleet.status(profile.name).slot_context
                ask = ask._replace(body={**ask.body, "input": await self._cut(profile, ask.body["input"], n_ctx)})
        raise BadRequest("the input cannot be cut to the length the model takes")

    async def _cut(self, profile: Profile, texts: Any, n_ctx: int) -> list[list[int]]:
        """The first tokens of each text."""
        cut = []
        for text in [texts] if isinstance(texts, str) else texts:
            told = await self._engines.glance(
                profile, BY_PATH["POST", "/tokenize"], {"content": text, "add_special": True}
            )
            cut.append(msgspec.json.decode(told, type=dict[str, list[int]])["tokens"][: n_ctx - 1])
        return cut

    async def _ask(
        self, request: web.BaseRequest, asked: Asked, profile: Profile, ask: Ask, part: Part
    ) -> web.StreamResponse:
        began_ns = time.monotonic_ns()
        passage = OllamaPassage(
            asked.named(),
            part,
            now=_now,
            elapsed_ns=lambda: time.monotonic_ns() - began_ns,
            load_ns=lambda: int(request.get("load_s", 0.0) * 1e9),
        )
        n_ctx = self._fleet.status(profile.name).slot_context
        told: Told = ()
        if asked.n_ctx is not None and asked.n_ctx > n_ctx:
            told = (("X-Garra-Context", b"%d of %d asked for" % (n_ctx, asked.n_ctx)),)
        keep_s = asks.keep_alive_s(asked.keep_alive)
        return await self._engines.serve(request, self._put(ask, profile, passage)._replace(keep_s=keep_s, told=told))

    def _put(self, ask: Ask, profile: Profile, passage: OllamaPassage | None) -> inference.Asked:
        body = msgspec.json.encode({"model": profile.name, **ask.body})
        head = CallHead(profile.name, bool(ask.body.get("stream")))
        return inference.Asked(BY_PATH["POST", ask.path], body, head, profile, passage)

    async def _check(self, asked: Asked, profile: Profile, *, images: bool) -> None:
        """Raises BadRequest for what the model cannot do."""
        can = capabilities(profile, await self._cards.of(profile.model))
        if asked.think and "thinking" not in can:
            raise BadRequest(f"{asked.named()!r} does not support thinking")
        if asked.suffix and "insert" not in can:
            raise BadRequest(f"{asked.named()!r} does not support insert")
        if images and "vision" not in can:
            raise BadRequest(f"{asked.named()!r} does not support images", fix="text_only = false in its profile")

    async def _load_or_unload(
        self, request: web.BaseRequest, asked: Asked, profile: Profile, part: Part
    ) -> web.StreamResponse:
        """A request for nothing: Ollama's way to say load, or with a keep_alive of 0, unload."""
        if asks.keep_alive_s(asked.keep_alive) == 0:
            self._management.require(request)
            self._fleet.unload(profile.name)
            return answer(loaded(asked.named(), part, _now(), "unload"))
        await self._engines.touch(request, profile)
        return answer(loaded(asked.named(), part, _now(), "load"))

    # -- models come and go

    async def pull(self, request: web.BaseRequest) -> web.StreamResponse:
        asked = await self._read(request)
        self._management.require(request)
        named = asked.named()
        known = self._config.labels.get(named) or self._config.labels.get(named.removesuffix(":latest"))
        return await self._puller.pull(request, known.model if known is not None else named, stream=asked.streams)

    async def delete(self, request: web.BaseRequest) -> web.StreamResponse:
        await self._management.remove(request, (await self._read(request)).named())
        return answer({})

    async def copy(self, request: web.BaseRequest) -> web.StreamResponse:
        """Here a copy is one more name for the same."""
        asked = await self._read(request)
        if not asked.source or not asked.destination:
            raise BadRequest("source and destination are required")
        self._management.alias(request, asked.destination, asked.source)
        return answer({})

    # -- inside

    async def _read(self, request: web.BaseRequest) -> Asked:
        return asks.read(await self._engines.body_of(request))

    def _names(self, key: ClientKey | None) -> list[str]:
        labels = self._config.labels
        own = (one for name, one in labels.items() if name.partition(":")[0] == one.name)
        return [_name_of(one) for one in own if may_use(key, one.name)]

    async def _described(self, name: str) -> Described | None:
        """The model under this name; None where its file is not here."""
        profile = self._config.profile(name)
        facts = await self._cards.of(profile.model)
        if facts is None:
            return None
        sampling = profile.sampling
        told = (("temperature", sampling.temperature), ("top_p", sampling.top_p), ("top_k", sampling.top_k))
        return Described(
            name=name,
            family=facts.architecture,
            n_bytes=facts.n_bytes,
            modified=facts.modified,
            quantisation=facts.quantisation,
            n_parameters=facts.n_parameters,
            n_ctx=self._fleet.status(profile.name).slot_context,
            n_embd=facts.n_embd,
            capabilities=tuple(capabilities(profile, facts)),
            parameters=tuple((key, value) for key, value in told if value is not None),
        )


class _NotImplemented(BadRequest):
    """A part of Ollama's API that makes no sense here."""

    http_status = 501
    code = "not_supported"


def _name_of(profile: Profile) -> str:
    return f"{profile.name}:{profile.variant or 'latest'}"


def _now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
