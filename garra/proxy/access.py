"""Which key a request carries, and what that allows. Pure.

Keys are kept as hashes and compared in constant time. Without any key only loopback is served, and whoever reaches that
may do what the person at the machine may, removing aside.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping, Sequence

from garra.errors import Forbidden, TooMany, Unauthorised
from garra.traffic import ClientKey, Priority

KEY_PREFIX = "garra-"
"""Of every key we make: one that begins so and is not known was revoked, or mistyped."""
OPEN_PATHS = frozenset({"/", "/health", "/v1/health", "/api/version"})
"""Whether somebody is at home is no secret, nor are the files of the page (`/web/...`)."""
OPEN_PREFIX = "/web/"
_MINUTE_S = 60.0


def given_key(headers: Mapping[str, str]) -> str:
    """The key a request carries, in OpenAI's header or Anthropic's; empty without one."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def own_key() -> tuple[str, ClientKey]:
    """A key for the commands of whoever started this garra, and what it may do; known as long as garra runs."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    digest = hashlib.sha256(key.encode()).digest()
    return key, ClientKey("garra", Priority.INTERACTIVE, admin=True, digest=digest)


class Access:
    """The keys, and how often each was used lately."""

    def __init__(
        self, keys: Sequence[ClientKey], *, loopback: bool, keyless: bool, own: ClientKey | None = None
    ) -> None:
        self._keys = (*keys, *((own,) if own is not None else ()))
        self._keyless_served = loopback and (keyless or not keys)
        self.open = loopback and not keys
        """Nobody needs a key."""
        self._buckets: dict[str, tuple[float, float]] = {}

    def inherit(self, before: Access) -> Access:
        """Itself, with what was used under the settings before."""
        self._buckets = before._buckets
        return self

    def identify(self, headers: Mapping[str, str], path: str) -> ClientKey | None:
        """Whose key it is; None for a request that needs none. Raises Unauthorised."""
        given = given_key(headers)
        known = self._known(given) if given and self._keys else None
        if known is not None or path in OPEN_PATHS or path.startswith(OPEN_PREFIX):
            return known
        if self._keyless_served and not given.startswith(KEY_PREFIX):
            return None  # any client library sends some key: one that is none of ours is as good as none
        if given:
            raise Unauthorised(
                "this key is not known here: mistyped, or revoked", fix="garra keys list; garra keys create NAME"
            )
        raise Unauthorised("a key is needed", fix='send "Authorization: Bearer KEY"; garra keys create NAME makes one')

    def _known(self, given: str) -> ClientKey | None:
        digest = hashlib.sha256(given.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:  # all of them, whichever it is: the time tells nothing
            if hmac.compare_digest(digest, key.digest):
                found = key
        return found

    def check(self, key: ClientKey | None, profile: str, now: float) -> None:
        """Raises Forbidden for a profile that is not this key's, TooMany when it asks too often."""
        if key is None:
            return
        if not may_use(key, profile):
            raise Forbidden(
                f"the key {key.name} may not use {profile}", fix=f"it may use: {', '.join(sorted(key.profiles))}"
            )
        if key.rpm is None:
            return
        left, at = self._buckets.get(key.name, (float(key.rpm), now))
        left = min(float(key.rpm), left + (now - at) * key.rpm / _MINUTE_S)
        if left < 1.0:
            wait = max(1, round((1.0 - left) * _MINUTE_S / key.rpm + 0.5))
            raise TooMany(
                f"the key {key.name} may ask {key.rpm} times a minute", fix=f"try again in {wait} s", retry_after_s=wait
            )
        self._buckets[key.name] = (left - 1.0, now)

    def check_management(self, key: ClientKey | None, *, always_admin: bool = False) -> None:
        """Loading, unloading, bringing models; with `always_admin`: removing them, aliases. Raises Forbidden."""
        if key is not None and key.admin:
            return
        if self.open and not always_admin:
            return
        raise Forbidden(
            "this needs the key of an administrator, or the garra command on the machine itself",
            fix="garra keys create NAME --admin",
        )


def may_use(key: ClientKey | None, profile: str) -> bool:
    """Whether the profile is within the key's scope."""
    return key is None or not key.profiles or profile in key.profiles
