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
from garra.apis.routes import Api, Route
from garra.dialogue import NO_EDITS, Traits
from garra.spec import Profile

_BETWEEN = 12
"""A colon and some spaces may stand between a key and its value."""


class Prepared(NamedTuple):
    """A body to send on, and the names of what was mended in it."""

    body: bytes
    mended: tuple[str, ...] = ()


def is_plain(body: bytes, route: Route, profile: Profile, traits: Traits) -> bool:
    """Whether the body can only go on as it came: nothing edits it, and it has none of the words that may need mending.
    Asked of every one."""
    if profile.edits is not NO_EDITS and route.edited:
        return False
    form = route.form
    if form is None:
        return True
    if not traits.tools and (b'"tools"' in body or b'"tool_choice"' in body):
        return False
    if form is not Api.CHAT and (b'"format"' in body or b'"tools"' in body or b"x-anthropic-billing-header" in body):
        return False
    if not traits.picky and profile.mends.system != "on":
        return True
    if b'"developer"' in body:
        return False
    return b'"system"' not in body or (form is Api.CHAT and _leads(body))


def _leads(body: bytes) -> bool:
    """Whether the one system message is the first message: as nearly all chats have it. No word of a text looks like
    this: its quotation marks are escaped."""
    at = body.find(b'"system"')
    return 0 < at - body.find(b'"role"') < _BETWEEN and body.find(b'"system"', at + 1) < 0


def prepare(body: bytes, route: Route, profile: Profile, traits: Traits) -> Prepared:
    """Edited and mended as the profile says. Raises BadRequest, ToolsRefused."""
    if is_plain(body, route, profile, traits):
        return Prepared(body)
    form, edits = route.form, profile.edits if route.edited else NO_EDITS
    asked = decoded(body, dict[str, Any])
    if edits:
        asked = edited(asked, edits)
    done = mend.mended(asked, form, profile.mends, traits) if form is not None else []
    if not edits and not done:
        return Prepared(body)
    return Prepared(msgspec.json.encode(asked), tuple(done))
