"""Asks a worker process of its own for one thing after the other. For commands, not for the proxy."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

from garra import paths
from garra.errors import DownloadFailed, of_code

COMMAND = (sys.executable, "-m", "garra.registry.worker")
_STOP_LIMIT_S = 5.0

Progress = Callable[[dict[str, Any]], None]


class Courier:
    """A worker for as long as the `with` lasts."""

    def __enter__(self) -> Courier:
        log = paths.state_dir() / "logs" / "worker.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            # A session of its own: Ctrl-C at the terminal is ours to handle, the worker only sees its stdin end.
            self._process = subprocess.Popen(
                COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True
            )
        self._n_jobs = 0
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *exc: object) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError):
            stdin.close()
        try:
            self._process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, do: str, on_progress: Progress | None = None, limit_s: float | None = None, **more: Any) -> Any:
        """What the job comes to. Raises what it failed with; DownloadFailed where the worker ends or `limit_s` pass."""
        self._n_jobs += 1
        number = str(self._n_jobs)
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):
            stdin.write(json.dumps({"id": number, "do": do, **more}).encode() + b"\n")
            stdin.flush()
        deadline = time.monotonic() + limit_s if limit_s is not None else None
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()) if deadline is not None else None)
            except queue.Empty:
                self._process.kill()
                raise DownloadFailed(
                    f"the model hub gave no answer within {limit_s:g} s", fix="check the network"
                ) from None
            if not line:
                raise DownloadFailed(
                    f"the download process ended ({_how(self._process.wait())})",
                    fix="the same command again: it goes on where it stopped",
                )
            told = json.loads(line)
            if told["id"] != number:
                continue
            if told["now"] == "done":
                return told["result"]
            if told["now"] == "failed":
                raise of_code(told["code"], told["what"], told["fix"])
            if on_progress is not None:
                on_progress(told)

    def _read(self, stdout: IO[bytes]) -> None:
        for line in stdout:
            self._lines.put(line)
        self._lines.put(b"")


def _how(returncode: int) -> str:
    return f"signal {-returncode}" if returncode < 0 else f"exit status {returncode}"
