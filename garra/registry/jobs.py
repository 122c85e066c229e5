"""Downloads and searches for a serving garra: a worker process on demand, any number of jobs, one per artifact.

The event loop only passes on what the worker tells. A worker that dies is replaced, and its downloads go on where they
stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

from garra import paths
from garra.downloads import DownloadState, DownloadStatus
from garra.errors import ConfigError, DownloadFailed, GarraError, NotFound, Taken, UnknownModel, of_code
from garra.planner.guess import fit
from garra.planner.room import Room
from garra.ports import Clock, Timer
from garra.registry import removal
from garra.registry.catalog import Catalog
from garra.registry.courier import COMMAND
from garra.registry.source import HubSource, parse_source

log = logging.getLogger(__name__)

IDLE_S = 60.0
"""So long after its last job the worker ends."""
_MOST_DEATHS = 3
"""Of workers under one download."""
_LINE_LIMIT = 64 * 1024 * 1024
_SMOOTH = 0.3
_AGAIN = "ask for it again: it goes on where it stopped"

Message = dict[str, Any]


class Jobs:
    """The `Registry` port."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        *,
        room: Callable[[], Room],
        in_use: Callable[[], Iterable[str]],
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        self._catalog = catalog
        self._clock = clock
        self._room = room
        self._in_use = in_use
        """Paths of models whose engines are up."""
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._idle: Timer | None = None
        self._starting = asyncio.Lock()
        self._answers: dict[str, asyncio.Future[Any]] = {}
        self._downloads: dict[str, _Download] = {}
        self._n_asked = 0
        self._leaving = False
        """The worker was told to end."""

    # -- the port

    async def search(self, query: str, limit: int) -> list[Message]:
        found: list[Message] = await self._ask("search", query=query, limit=limit)
        room = await asyncio.to_thread(self._room)
        for repo in found:
            for model in repo["models"]:
                model["fit"] = fit(model["bytes"], room)
        return found

    def download(self, ref: str, *, projector: bool = True) -> DownloadStatus:
        source = parse_source(ref)
        if not isinstance(source, HubSource):
            raise ConfigError(f"{ref} is not on the model hub", fix="write hf:owner/repo:QUANT")
        plain = dataclasses.replace(source, quant=source.quant.upper() if source.quant else None).ref
        number = hashlib.sha256(plain.encode()).hexdigest()[:12]
        job = self._downloads.get(number)
        if job is None or job.task.done():
            told = DownloadStatus(number, ref, DownloadState.RUNNING, "asking the hub")
            self._downloads.pop(number, None)
            job = self._downloads[number] = _Download(told, self._clock.now())
            loop = asyncio.get_running_loop()
            job.task = loop.create_task(self._pull(job, ref, projector), name=f"download {ref}")
        return job.status

    def downloads(self) -> list[DownloadStatus]:
        return [job.status for job in self._downloads.values()]

    def status(self, job: str) -> DownloadStatus:
        return self._job(job).status

    async def follow(self, job: str) -> AsyncGenerator[DownloadStatus, None]:
        one = self._job(job)
        while True:
            changed = one.changed
            yield one.status
            if one.status.state is not DownloadState.RUNNING:
                return
            await changed.wait()

    def stop(self, job: str, *, discard: bool) -> DownloadStatus:
        one = self._job(job)
        if one.status.state is DownloadState.RUNNING:
            one.discarded = one.discarded or discard
            one.stopped = True
            self._send({"id": one.asked, "do": "cancel" if discard else "pause"})
            one.tell(detail="it is being stopped")
        return one.status

    async def models(self) -> list[Message]:
        def read() -> list[Message]:
            return [dataclasses.asdict(one) | {"present": one.present} for one in self._catalog.all()]

        return await asyncio.to_thread(read)

    async def remove(self, ref: str) -> int:
        in_use = set(self._in_use())

        def work() -> int:
            one = self._catalog.get(ref)
            if one is None:
                raise UnknownModel(f"garra knows no model {ref}", fix="garra models list")
            if one.path in in_use:
                raise Taken(f"{one.ref} is in use by an engine", fix="garra unload PROFILE")
            return removal.remove(one, self._catalog)

        return await asyncio.to_thread(work)

    async def close(self) -> None:
        """End the worker: downloads pause where they are."""
        tasks = [job.task for job in self._downloads.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._idle is not None:
            self._idle.cancel()
        if self._process is not None:
            self._close_stdin()
            await self._process.wait()
        if self._reader is not None:
            await self._reader

    # -- one download

    def _job(self, number: str) -> _Download:
        if (job := self._downloads.get(number)) is None:
            raise NotFound(f"there is no download {number}", fix="POST /registry/download begins one")
        return job

    async def _pull(self, job: _Download, ref: str, projector: bool) -> None:
        n_deaths = 0
        while True:
            try:
                done = await self._ask("pull", job, ref=ref, projector=projector)
                size = job.status.total_bytes or done["bytes"]
                job.tell(
                    state=DownloadState.DONE, detail="", path=done["path"], warnings=tuple(done["warnings"]),
                    done_bytes=size, total_bytes=size, bytes_per_s=0.0, eta_s=None,
                )  # fmt: skip
            except _WorkerDied as died:
                n_deaths += 1
                if n_deaths < _MOST_DEATHS and not job.stopped:
                    log.warning("%s: %s; another one goes on", ref, died)
                    continue
                job.fail(died)
            except GarraError as error:
                job.fail(error)
            return

    # -- the worker

    async def _ask(self, do: str, job: _Download | None = None, **more: Any) -> Any:
        """What the job comes to. Raises what it failed with."""
        await self._ensure_worker()
        self._n_asked += 1
        number = str(self._n_asked)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        if job is not None:
            job.asked = number
        try:
            if job is None or not job.stopped:
                self._send({"id": number, "do": do, **more})
                return await answer
            raise of_code("stopped", "it was stopped before it began")
        finally:
            del self._answers[number]
            self._rest_if_idle()

    async def _ensure_worker(self) -> None:
        async with self._starting:
            if self._idle is not None:
                self._idle.cancel()
                self._idle = None
            if self._leaving and self._reader is not None:
                await self._reader
            if self._process is not None:
                return
            self._leaving = False
            path = paths.state_dir() / "logs" / "worker.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as output:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=output,
                    limit=_LINE_LIMIT,
                    start_new_session=True,
                )
            self._reader = asyncio.get_running_loop().create_task(self._read(self._process), name="registry worker")

    def _send(self, line: Message) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._process.stdin.write(json.dumps(line).encode() + b"\n")

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        with contextlib.suppress(ValueError, LookupError, TypeError):  # no worker of ours says such things
            async for line in process.stdout:
                self._hear(json.loads(line))
        self._close_stdin()
        if process.returncode is None and not process.stdout.at_eof():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)  # not `process.kill`: that may take the exit status for itself
        status = await process.wait()
        self._process = None
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(_WorkerDied(f"the download process ended ({how})", fix=_AGAIN))

    def _hear(self, told: Message) -> None:
        answer = self._answers.get(told["id"])
        if answer is None or answer.done():
            return
        if told["now"] == "done":
            answer.set_result(told["result"])
        elif told["now"] == "failed":
            answer.set_exception(of_code(told["code"], told["what"], told["fix"]))
        else:
            for job in self._downloads.values():
                if job.asked == told["id"]:
                    job.progress(told, self._clock.now())

    def _rest_if_idle(self) -> None:
        if not self._answers and self._process is not None and self._idle is None:
            self._idle = self._clock.call_later(IDLE_S, self._close_stdin)

    def _close_stdin(self) -> None:
        self._leaving = True
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


class _WorkerDied(DownloadFailed):
    """The process ended under its jobs."""


class _Download:
    """One download and who follows it."""

    task: asyncio.Task[None]

    def __init__(self, status: DownloadStatus, now: float) -> None:
        self.status = status
        self.changed = asyncio.Event()
        self.asked = ""
        """Number of the worker's job."""
        self.stopped = self.discarded = False
        self._seen = (now, -1)

    def tell(self, **changes: Any) -> None:
        self.status = dataclasses.replace(self.status, **changes)
        before, self.changed = self.changed, asyncio.Event()
        before.set()

    def fail(self, error: GarraError) -> None:
        ended = DownloadState.CANCELLED if self.discarded else DownloadState.PAUSED
        state = ended if error.code == "stopped" else DownloadState.FAILED
        detail = f"{error.what}. Fix: {error.fix}" if error.fix else error.what
        self.tell(state=state, detail=detail, code=error.code, bytes_per_s=0.0, eta_s=None)

    def progress(self, told: Message, now: float) -> None:
        if told["state"] == "waiting":
            self.tell(detail=told["why"])
            return
        done, total = told["done_bytes"], told["total_bytes"]
        then, before = self._seen
        speed = self.status.bytes_per_s
        if 0 <= before <= done and now > then:
            fresh = (done - before) / (now - then)
            speed = fresh if not speed else speed + _SMOOTH * (fresh - speed)
        self._seen = (now, done)
        eta_s = (total - done) / speed if speed else None
        name = Path(told["file"]).name
        self.tell(done_bytes=done, total_bytes=total, bytes_per_s=speed, eta_s=eta_s, detail=f"downloading {name}")
