"""GPUs that no driver library tells of, as the engine itself lists them. It opens each for a moment."""

from __future__ import annotations

import re
from collections.abc import Mapping

from garra.engine import tools
from garra.host import Gpu
from garra.spec import EngineBuild

_LINE = re.compile(r"^\s+[A-Za-z]+(?P<index>\d+): (?P<name>.+) \((?P<total>\d+) MiB, (?P<free>\d+) MiB free\)")
_LIMIT_S = 30.0


def listed(build: EngineBuild, environment: Mapping[str, str]) -> tuple[Gpu, ...]:
    """What `llama-server --list-devices` shows; nothing when it does not answer."""
    words = [str(build.tool("llama-server")), "--list-devices"]
    return parse(tools.said(words, environment, _LIMIT_S) or "")


def parse(text: str) -> tuple[Gpu, ...]:
    """The lines `Vulkan0: NAME (TOTAL MiB, FREE MiB free)` as GPUs."""
    found = (_LINE.match(line) for line in text.splitlines())
    return tuple(
        Gpu(int(m["index"]), m["name"], int(m["total"]), int(m["free"]), vendor="other") for m in found if m is not None
    )
