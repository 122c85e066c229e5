"""What changes something, over the public listener: only for who may, and never by a GET."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from garra import managed
from garra.apis.bodies import decoded
from garra.config import Config
from garra.errors import BadRequest
from garra.ports import Fleet, Registry
from garra.proxy.access import Access
from garra.proxy.answers import answer
from garra.proxy.listener import read_body


class _Named(msgspec.Struct):
    model: str


class Management:
    """Load, unload, remove, alias. Holds no state but its parts."""

    def __init__(self, fleet: Fleet, registry: Registry, reload: Callable[[], Any]) -> None:
        self._fleet = fleet
        self._registry = registry
        self._reload = reload

    def configure(self, config: Config, access: Access) -> None:
        self._config = config
        self._access = access

    def require(self, request: web.BaseRequest, *, always_admin: bool = False) -> None:
        """Raises Forbidden."""
        self._access.check_management(request.get("key"), always_admin=always_admin)

    async def load(self, request: web.BaseRequest) -> web.Response:
        """POST /models/load {"model": "NAME"}: answered when the engine is READY. Raises what keeps it from that."""
        self.require(request)
        await self._fleet.load(await self._named(request))
        return answer({"success": True})

    async def unload(self, request: web.BaseRequest) -> web.Response:
        """POST /models/unload {"model": "NAME"}: running answers end first."""
        self.require(request)
        self._fleet.unload(await self._named(request))
        return answer({"success": True})

    async def remove(self, request: web.BaseRequest, name: str) -> None:
        """An alias is forgotten, a profile's model removed from the disk. Raises Forbidden, UnknownModel, Taken."""
        self.require(request, always_admin=True)
        if name in self._config.settings.aliases:
            managed.set_alias(name, None)
            self._reload()
        else:
            await self._registry.remove(self._config.profile(name).model)

    def alias(self, request: web.BaseRequest, name: str, target: str) -> None:
        """Raises Forbidden, UnknownModel, BadRequest."""
        self.require(request, always_admin=True)
        self._config.profile(target)
        if name in self._config.labels and name not in self._config.settings.aliases:
            raise BadRequest(f'"{name[:100]}" is the name of a profile already', fix="another name")
        managed.set_alias(name, target.removesuffix(":latest"))
        self._reload()

    async def _named(self, request: web.BaseRequest) -> str:
        return self._config.profile(decoded(await read_body(request), _Named).model).name
