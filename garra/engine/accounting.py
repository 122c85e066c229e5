"""The engine's own accounting of a launch: `llama-fit-params` with the very command line, nothing loaded, 0.1 to 0.5 s.

garra's build of the tool (patch 0002) takes the server's flags as they are and prints bytes per buffer type. An engine
the user brought may have upstream's tool, or none: then there is no bill, and the formula serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from garra.bill import HOST, Bill
from garra.engine import tools
from garra.engine.argv import server_argv
from garra.spec import EngineBuild, LaunchPlan

TOOL = "llama-fit-params"
_LIMIT_S = 60.0
_PARTS = ("weights", "KV cache", "compute buffer")
_UNTOLD = ("device context", "output buffer", "projector")
_ANY_SOCKET = Path("accounting.sock")


def account(build: EngineBuild, plan: LaunchPlan, environment: Mapping[str, str]) -> Bill | None:
    """The bill of this plan as the engine makes it out; None where it does not tell. Opens the GPU for a moment."""
    tool = build.tool(TOOL)
    if not tool.exists():
        return None
    words = [*server_argv(tool, plan, _ANY_SOCKET), "--fit-print", "on"]
    told = tools.said(words, environment, _LIMIT_S)
    return parse(told) if told is not None else None


def parse(text: str) -> Bill | None:
    """The tool's lines as a bill: `memory ROLE BUFFER MODEL CONTEXT COMPUTE`, in bytes."""
    parts: dict[str, dict[str, int]] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) != 6 or words[0] != "memory" or not all(word.isdigit() for word in words[3:]):
            continue
        prefix = "" if words[1] == "target" else "draft "
        here = parts.setdefault(_device(words[2]), {})
        for name, value in zip(_PARTS, map(int, words[3:]), strict=True):
            if value:
                here[prefix + name] = here.get(prefix + name, 0) + value
    return Bill(parts, source="engine") if parts else None


def complete(told: Bill, formula: Bill | None) -> Bill:
    """With what the tool does not know: the driver's own part, the output buffer, the projector, what grows.

    The tool's context is divided into KV cache and recurrent state, of which the formula is exact.
    """
    if formula is None:
        return told
    parts = {device: dict(here) for device, here in told.parts.items()}
    for device, by_formula in formula.parts.items():
        here = parts.setdefault(device, {})
        state = by_formula.get("recurrent state", 0)
        if state and here.get("KV cache", 0) >= state:
            here["KV cache"] -= state
            here["recurrent state"] = state
        here |= {name: by_formula[name] for name in _UNTOLD if name in by_formula}
    return Bill(parts, formula.grows, source=told.source)


def _device(buffer: str) -> str:
    """Buffers of the host have many names: CPU, CPU_REPACK, CUDA_Host; a GPU's are named like the GPU."""
    return HOST if buffer.startswith("CPU") or buffer.endswith("_Host") else buffer
