"""Browsers' rules for pages of other origins: off unless `cors_origins` names them. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_METHODS = "GET, POST"
_HEADERS = "Authorization, Content-Type, X-Api-Key, X-Request-Id, X-Garra-Priority, X-Garra-Client, Anthropic-Version"
_SHOWN = "X-Request-Id, X-Garra-Mended, X-Garra-Profile, X-Garra-Truncated, X-Garra-Context, Server-Timing, Retry-After"
_A_DAY_S = 86_400


def headers_for(origin: str) -> dict[str, str]:
    """What lets a page of this origin read an answer."""
    return {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _SHOWN, "Vary": "Origin"}


def preflight(origin: str, asked: Mapping[str, str]) -> dict[str, str]:
    """The answer to a browser that asks first. `asked`: its headers; what Anthropic's SDK adds is let through."""
    wanted = asked.get("Access-Control-Request-Headers", "")
    named = [
        name.strip() for name in wanted.split(",") if name.strip().lower().startswith(("x-stainless-", "anthropic-"))
    ]
    return {
        **headers_for(origin),
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": ", ".join([_HEADERS, *named[:40]]),
        "Access-Control-Max-Age": str(_A_DAY_S),
    }
