"""What an engine's last words mean. Pure; patterns were read off the pinned engine's real failures."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

from garra.spec import Cause, EngineExit

# In this order: an allocation that fails while loading also says "error loading model".
_SIGNS: tuple[tuple[Cause, re.Pattern[str]], ...] = (
    (
        Cause.OOM,
        re.compile(
            r"insufficient memory|out of memory|cudaMalloc failed|failed to allocate|unable to allocate|bad_alloc",
            re.IGNORECASE,
        ),
    ),
    (Cause.BAD_FLAG, re.compile(r"^error: invalid argument|^error while handling argument|Unsupported cache type")),
    (
        Cause.BAD_MODEL,
        re.compile(
            r"failed to open GGUF file|invalid magic|failed to read magic|failed to read key-value|gguf_init_from"
            r"|not within the file bounds|corrupted or incomplete|unknown model architecture"
            r"|error loading model|doesn't contain MTP layers|quantized V cache requires flash_attn"
        ),
    ),
)
_HINTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"rope\.dimension_sections"), "the file was converted by an old tool: download a newer conversion"),
    (re.compile(r"doesn't contain MTP layers"), 'this file has no MTP layer: set speculation = "none"'),
    (re.compile(r"corrupted or incomplete|file bounds|failed to read"), "the file is cut short: download it again"),
    (re.compile(r"unknown model architecture"), "the pinned engine does not know this model"),
)
_PREFIX = re.compile(r"^(?:\d+\.\d+\.\d+\.\d+ )?(?P<level>[IWED]) (?P<text>.*)")
_NOISE = re.compile(r"common_fit_params|exiting due to model loading error")


def explain(code: int | None, signum: int | None, lines: Sequence[str]) -> EngineExit:
    """The exit with its cause and the line that names it. Without a known sign the cause is CRASH."""
    cause, detail = Cause.CRASH, ""
    for candidate, pattern in _SIGNS:
        named = next((line for line in lines if pattern.search(_text(line))), None)
        if named is not None:
            cause, detail = candidate, _text(named)
            break
    if not detail:
        errors = [_text(line) for line in lines if _level(line) == "E" and not _NOISE.search(line)]
        plain = [line for line in lines if line.strip()]
        detail = errors[0] if errors else (plain[-1].strip() if plain and code not in (0, None) else "")
    hint = next((advice for pattern, advice in _HINTS if any(pattern.search(line) for line in lines)), None)
    if hint and cause is Cause.BAD_MODEL:
        detail = f"{detail}; {hint}"
    return EngineExit(code=code, signal=signum, cause=cause, detail=detail[:500], log_tail=tuple(lines[-40:]))


def _text(line: str) -> str:
    match = _PREFIX.match(line)
    return (match["text"] if match else line).strip()


def _level(line: str) -> str:
    match = _PREFIX.match(line)
    return match["level"] if match else ""


class LogRing:
    """The last lines of a byte stream that may hold anything: bounded in lines and in bytes per line."""

    __slots__ = ("_lines", "_partial", "n_bytes")

    MAX_LINES = 200
    MAX_LINE_BYTES = 4096

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=self.MAX_LINES)
        self._partial = b""
        self.n_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take what came; lines longer than the limit are cut."""
        self.n_bytes += len(chunk)
        *whole, rest = (self._partial + chunk).split(b"\n")
        self._partial = rest[: self.MAX_LINE_BYTES]
        self._lines.extend(line[: self.MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r") for line in whole)

    def lines(self) -> tuple[str, ...]:
        """Oldest first, the unfinished one included."""
        rest = (self._partial.decode("utf-8", "replace"),) if self._partial else ()
        return (*self._lines, *rest)
