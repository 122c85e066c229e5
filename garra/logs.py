"""How garra's log looks: lines for people, or one JSON object per line for machines, requests included."""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Literal

Format = Literal["console", "json"]
_REQUESTS = "garra.requests"


class _Stderr(logging.Handler):
    """Log lines to whatever stderr is now: a progress bar puts itself below what is printed."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 - this is the log


class JsonLines(logging.Formatter):
    """`{"at": ..., "level": ..., "logger": ..., "message": ..., ...}`; what a record was told in `extra` beside it."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.datetime.fromtimestamp(record.created, datetime.UTC).isoformat(timespec="milliseconds")
        line = {"at": at, "level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        line |= getattr(record, "told", {})
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def begin(how: Format) -> None:
    """From now on log like this."""
    handler = _Stderr()
    handler.setFormatter(
        JsonLines() if how == "json" else logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # malformed requests are answered, not traced
    # a line per request costs more than forwarding a small one: only where it was asked for
    logging.getLogger(_REQUESTS).setLevel(logging.INFO if how == "json" else logging.WARNING)
