"""The process that talks to the model hub, downloads and hashes: `python -m garra.registry.worker`.

JSON lines on stdin ask, JSON lines on stdout tell; both carry the `id` of the job.

    {"id": "1", "do": "search", "query": "qwen", "limit": 10}
    {"id": "2", "do": "look", "ref": "hf:o/r:Q4_K_M"}          which files, how large, and the model's header
    {"id": "3", "do": "pull", "ref": "hf:o/r:Q4_K_M"}
    {"id": "4", "do": "hash", "paths": ["/m/a.gguf"]}
    {"id": "3", "do": "pause"}    {"id": "3", "do": "cancel"}  (cancel throws away what has come)

    {"id": "3", "now": "progress", ...}   {"id": "3", "now": "done", "result": {...}}
    {"id": "3", "now": "failed", "code": "...", "what": "...", "fix": "..."}

It ends when stdin does, so it never outlives who started it; what has come of a download stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from garra import paths
from garra.errors import ConfigError, GarraError, Stopped
from garra.registry import hashing
from garra.registry.catalog import Catalog
from garra.registry.names import Variant, quant_of, variants
from garra.registry.source import HubSource, parse_source
from garra.spec import MIB
from garra.store import Store

_TELL_EVERY_S = 0.2
_TELL_EVERY_BYTES = 64 * MIB
_SEARCHERS = 4
_MOST_MEMORY = 4096 * MIB
"""Of address space: a hub's answer of any size is an error, not a machine that swaps."""

Job = dict[str, Any]


class Worker:
    """Runs jobs in threads."""

    def __init__(self, write: Callable[[Job], None]) -> None:
        self._write = write
        self._catalog = Catalog(Store(paths.state_db()))
        self._stops: dict[str, threading.Event] = {}
        self._abandoned: set[str] = set()
        self._lock = threading.Lock()

    def take(self, job: Job) -> None:
        """Begin a job, or end one."""
        number, do = str(job.get("id", "")), job.get("do")
        if do in ("pause", "cancel"):
            with self._lock:
                if do == "cancel":
                    self._abandoned.add(number)
                if (stop := self._stops.get(number)) is not None:
                    stop.set()
            return
        work = {"search": self._search, "look": self._look, "pull": self._pull, "hash": self._hash}.get(str(do))
        if work is None:
            self._tell(number, "failed", code="internal_error", what=f"the worker cannot {do}", fix=None)
            return
        stop = self._stops[number] = threading.Event()
        threading.Thread(target=self._run, args=(number, work, job, stop), name=f"job-{number}", daemon=True).start()

    def _run(self, number: str, work: Callable[[Job, threading.Event], Any], job: Job, stop: threading.Event) -> None:
        try:
            result = work(job, stop)
            self._tell(number, "done", result=result)
        except GarraError as error:
            self._tell(number, "failed", code=error.code, what=error.what, fix=error.fix)
        except Exception as error:  # noqa: BLE001 - one job's bug must not end the others
            self._tell(number, "failed", code="internal_error", what=f"a bug in garra: {error!r}", fix=None)
        finally:
            with self._lock:
                self._stops.pop(number, None)
                self._abandoned.discard(number)

    def _search(self, job: Job, stop: threading.Event) -> Any:
        from garra.registry.hub import Hub

        hub = Hub(stop)
        found = hub.search(str(job["query"]), int(job.get("limit", 10)))

        def describe(name: str) -> Job | None:
            try:
                repo = hub.repo(name)
            except GarraError:
                return None  # gone, or gated off, between the two questions
            offered = [_described(name, one) for one in variants(repo.files) if one.whole]
            return {
                "repo": name, "commit": repo.commit, "downloads": repo.downloads, "licence": repo.licence,
                "gated": repo.gated, "base_model": repo.base_model, "models": offered,
            }  # fmt: skip

        with ThreadPoolExecutor(_SEARCHERS) as pool:
            return [one for one in pool.map(describe, found) if one is not None and one["models"]]

    def _look(self, job: Job, stop: threading.Event) -> Any:
        from garra.registry.pull import Puller, reference

        hub, repo, choice = self._chosen(job, stop)
        puller = Puller(hub, repo, choice, lambda _: None, stop)
        header = puller.head(_headers()) if job.get("header", True) else None
        files = [
            {"path": file.path, "bytes": file.n_bytes, "role": choice.role(file), "sha256": file.sha256}
            for file in choice.files
        ]
        return {
            "ref": reference(repo, choice),
            "repo": repo.repo,
            "commit": repo.commit,
            "licence": repo.licence,
            "gated": repo.gated,
            "publisher": repo.publisher,
            "files": files,
            "bytes": sum(file.n_bytes for file in choice.files),
            "header": str(header) if header is not None else None,
        }

    def _pull(self, job: Job, stop: threading.Event) -> Any:
        from garra.registry.pull import Puller

        number, last = str(job["id"]), 0.0

        def tell(progress: Job) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= _TELL_EVERY_S or progress.get("done_bytes") == progress.get("total_bytes"):
                last = now
                self._tell(number, "progress", **progress)

        hub, repo, choice = self._chosen(job, stop)
        puller = Puller(hub, repo, choice, tell, stop)
        try:
            artifact = puller.run(self._catalog)
        except Stopped:
            if number in self._abandoned:
                puller.abandon()
                raise Stopped("the download was cancelled: what had come was removed") from None
            raise
        shutil.rmtree(_headers() / choice.model.files[0].blob, ignore_errors=True)
        return {"ref": artifact.ref, "path": artifact.path, "bytes": artifact.n_bytes, "warnings": artifact.warnings}

    def _chosen(self, job: Job, stop: threading.Event) -> Any:
        from garra.registry.hub import Hub
        from garra.registry.pull import choose

        source = parse_source(str(job["ref"]))
        if not isinstance(source, HubSource):
            raise ConfigError(f"{job['ref']} is not on the model hub", fix="write hf:owner/repo:QUANT")
        hub = Hub(stop)
        repo = hub.repo(source.repo)
        return hub, repo, choose(repo, source, projector=bool(job.get("projector", True)), sha256=job.get("sha256"))

    def _hash(self, job: Job, stop: threading.Event) -> Any:
        """Path -> sha256, None where it cannot be read."""
        done = 0

        def moved(n_bytes: int) -> None:
            nonlocal done
            done += n_bytes
            if stop.is_set():
                raise Stopped("it was stopped")
            if done // _TELL_EVERY_BYTES != (done - n_bytes) // _TELL_EVERY_BYTES:
                self._tell(str(job["id"]), "progress", state="hashing", file=path, done_bytes=done)

        hashes: dict[str, str | None] = {}
        for path in job["paths"]:
            try:
                hashes[path] = hashing.of_file(Path(path), hashlib.sha256(), moved)
            except OSError:
                hashes[path] = None
        return hashes

    def _tell(self, number: str, now: str, **more: Any) -> None:
        with self._lock:
            self._write({"id": number, "now": now, **more})


def _headers() -> Path:
    """Headers of models that were looked at and not yet downloaded."""
    return paths.cache_dir() / "headers"


def _described(repo: str, one: Variant) -> Job:
    path = one.files[0].path
    quant = quant_of(path)
    source = HubSource(repo, quant=quant) if quant else HubSource(repo, file=path)
    told = {"label": one.label, "file": path, "bytes": one.n_bytes, "shards": len(one.files), "quant": quant}
    return told | {"ref": source.ref}


def main() -> None:
    """Serve stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started us: it closes our stdin
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_MEMORY, _MOST_MEMORY))
    os.nice(19)  # a token that waits for a hash is a token late
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # whatever a library prints is no answer

    def write(line: Job) -> None:
        try:
            out.write(json.dumps(line).encode() + b"\n")
        except BrokenPipeError:
            os._exit(0)

    worker = Worker(write)
    for line in sys.stdin.buffer:
        try:
            job = json.loads(line)
        except ValueError:
            continue
        worker.take(job)
    os._exit(0)  # threads may be in the middle of a read: what they have written down is enough


if __name__ == "__main__":
    main()
