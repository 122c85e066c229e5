"""Who may talk to the proxy. Pure: decided from the headers, before a body is read.

Any web page can make a browser send a simple POST to loopback, and any name can be made to resolve there. So the Host
must be one of ours, and a browser must not come from somebody else's page.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def host_allow_list(bind: str, extra: Collection[str]) -> frozenset[str]:
    """Host names clients may use, in lower case and without port. "*" in the result: any IP literal."""
    names = {"localhost", "127.0.0.1", "::1", bind.lower(), *(name.lower() for name in extra)}
    return frozenset(names | {"*"} if _is_wildcard(bind) else names)


@functools.lru_cache(maxsize=256)
def objection(
    host: str | None,
    origin: str | None,
    fetch_site: str | None,
    hosts: frozenset[str],
    pages: frozenset[str] = frozenset(),
) -> str | None:
    """Why a request with these `Host`, `Origin` and `Sec-Fetch-Site` headers is refused, or None. `pages`: origins that
    may call from elsewhere."""
    if host is not None and not _allowed(_hostname(f"//{host}"), hosts):
        return f'the Host "{host[:100]}" is not one of ours; allowed_hosts in profiles.toml adds names'
    if origin is not None and origin in pages:
        return None
    if origin is not None and not _allowed(_hostname(origin), hosts):
        return f'a page of "{origin[:100]}" may not call this server'
    if fetch_site == "cross-site":
        return "a page of another site may not call this server"
    return None


def _hostname(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def _allowed(name: str, hosts: frozenset[str]) -> bool:
    if name in hosts:
        return True
    return "*" in hosts and _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_loopback(bind: str) -> bool:
    """Whether a listener there is reached from this machine only."""
    try:
        return bind == "localhost" or ipaddress.ip_address(bind).is_loopback
    except ValueError:
        return False


def _is_wildcard(bind: str) -> bool:
    return bind in ("", "0.0.0.0", "::")
