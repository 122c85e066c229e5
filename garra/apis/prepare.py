"""The body of a request as its engine gets it. Pure.

Most bodies go on as they came, byte for byte: a body is decoded only where a profile edits it, or where it holds words
that may need mending.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from garra.apis import mend
from garra.apis.bodies import decoded
from garra.apis.edits import edited
from garra.apis.routes import Api, Route, Work
from garra.dialogue import Traits
from garra.spec import Profile


class Prepared(NamedTuple):
    """A body to send on, and the names of what was mended in it."""

    body: bytes
    mended: tuple[str, ...] = ()


_BODIES = {Work.ANSWER, Work.EMBED, Work.RERANK}
_FORMS = {"messages": Api.MESSAGES, "responses": Api.RESPONSES, "completions": Api.CHAT}


def form_of(route: Route) -> Api | None:
    """How a conversation is written in such bodies; None where there is none."""
    if route.api in (Api.CHAT, Api.RESPONSES, Api.MESSAGES):
        return route.api
    if route.path == "/apply-template":
        return Api.CHAT
    if route.work is not Work.COUNT:
        return None
    parts = route.path.split("/")
    return _FORMS.get(parts[-2])


def prepare(body: bytes, route: Route, profile: Profile, traits: Traits) -> Prepared:
    """Edited and mended as the profile says. Raises BadRequest, ToolsRefused."""
    form = form_of(route)
    edits = profile.edits if form is not None or route.work in _BODIES else None
    suspect = form is not None and _is_suspect(body, form, profile, traits)
    if not edits and not suspect:
        return Prepared(body)
    asked = decoded(body, dict[str, Any])
    if edits:
        asked = edited(asked, edits)
    done = mend.mended(asked, form, profile.mends, traits) if form is not None else []
    if not edits and not done:
        return Prepared(body)
    return Prepared(msgspec.json.encode(asked), tuple(done))


class _Spoken(msgspec.Struct):
    role: Any = None


class _Roles(msgspec.Struct):
    messages: list[_Spoken] = []


_roles = msgspec.json.Decoder(_Roles)


def _is_suspect(body: bytes, form: Api, profile: Profile, traits: Traits) -> bool:
    """Whether there may be something to mend: searches for words, and a look at the roles alone."""
    mends = profile.mends
    if form is Api.MESSAGES and mends.billing_block and b"x-anthropic-billing-header" in body:
        return True
    if not traits.tools and (b'"tools"' in body or b'"tool_choice"' in body):
        return True
    if form is Api.RESPONSES and (b'"format"' in body or b'"tools"' in body):
        return True
    if not mends.merges_system(traits):
        return False
    if b'"developer"' in body:
        return True
    if b'"system"' not in body:
        return False
    return form is not Api.CHAT or _has_late_system(body)


def _has_late_system(body: bytes) -> bool:
    try:
        spoken = _roles.decode(body).messages
    except msgspec.DecodeError:
        return False  # the engine says better what is wrong with it
    return any(one.role == "system" for one in spoken[1:])
