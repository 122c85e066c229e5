"""One engine process: spawned in a session of its own, tethered to garra, read to its last word, never left behind."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import psutil

from garra import paths
from garra.errors import EngineDown
from garra.hardware import engine_environment
from garra.spec import EngineExit, LaunchPlan
from garra.supervisor import runfile
from garra.supervisor.diagnose import LogRing, explain
from garra.supervisor.tether import tether

log = logging.getLogger(__name__)

LOG_LIMIT_BYTES = 8 * 1024 * 1024
_READ_BYTES = 64 * 1024
_LAST_WORDS_S = 2.0  # a grandchild may hold the pipe open long after the engine is gone

MakeArgv = Callable[[LaunchPlan, Path], list[str]]


class ProcessSpawner:
    """Starts engines on fresh sockets in `folder` (private, 0700). Use it from the main thread only: the parent-death
    signal follows the thread that spawned."""

    def __init__(
        self,
        folder: Path,
        make_argv: MakeArgv,
        environment: Callable[[LaunchPlan], dict[str, str]] = lambda plan: engine_environment(),
    ) -> None:
        self._folder = folder
        self._make_argv = make_argv
        self._environment = environment
        self._serial = itertools.count(1)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def spawn(self, plan: LaunchPlan) -> RealProcess:
        name = f"{plan.profile.name[:24]}-{next(self._serial)}-{secrets.token_hex(3)}"
        socket = self._folder / f"{name}.sock"
        argv = self._make_argv(plan, socket)
        output = _LogFile(paths.engine_log(plan.profile.name))
        output.write(f"--- {' '.join(argv)}\n".encode())
        try:
            child = await asyncio.create_subprocess_exec(
                *tether("KILL"),
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment(plan),
                start_new_session=True,  # uvloop refuses process_group; a session is a group too
            )
        except OSError as error:
            output.close()
            raise EngineDown(f"cannot start {argv[0]}: {error.strerror or error}", fix="garra engine build") from None
        run_file = self._folder / f"{name}.json"
        runfile.write(run_file, child.pid, socket)
        return RealProcess(child, socket, run_file, output)


class RealProcess:
    """A running engine. `wait` must be awaited once; it cleans up."""

    def __init__(self, child: asyncio.subprocess.Process, socket: Path, run_file: Path, output: _LogFile) -> None:
        self._child = child
        self._run_file = run_file
        self._output = output
        self._ring = LogRing()
        self._socket = socket
        self._handle = _open_pidfd(child.pid)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def socket(self) -> Path:
        return self._socket

    def send_signal(self, signum: int) -> None:
        if self._child.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signum)
            else:
                self._child.send_signal(signum)

    async def wait(self) -> EngineExit:
        reading = asyncio.ensure_future(self._read_output())
        reaped = asyncio.ensure_future(self._child.wait())
        try:
            await self._ended(reaped)
            self._end_group()
            await asyncio.wait((reading, reaped), timeout=_LAST_WORDS_S)
        finally:
            reading.cancel()
            reaped.cancel()
            self._clean_up()
        status = self._child.returncode
        code, signum = (status, None) if status is None or status >= 0 else (None, -status)
        return explain(code, signum, self._ring.lines())

    async def _ended(self, reaped: asyncio.Future[int]) -> None:
        """Wait for the process itself: asyncio's own wait may go on while a grandchild holds the pipe open."""
        if self._handle is None:
            await asyncio.wait((reaped,))
            return
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._handle, ended.set)
        try:
            await ended.wait()
        finally:
            loop.remove_reader(self._handle)

    def progress(self) -> int:
        return self._ring.n_bytes + (self.rss_bytes() or 0)

    def rss_bytes(self) -> int | None:
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return None

    async def _read_output(self) -> None:
        pipe = self._child.stdout
        assert pipe is not None
        while chunk := await pipe.read(_READ_BYTES):  # chunks, not lines: a line may be longer than any buffer
            self._ring.feed(chunk)
            self._output.write(chunk)

    def _end_group(self) -> None:
        """Whatever the engine started goes with it. Its group cannot be reused while a member lives."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def _clean_up(self) -> None:
        self._output.close()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self._socket.unlink(missing_ok=True)
        self._run_file.unlink(missing_ok=True)
        transport = getattr(self._child, "_transport", None)  # asyncio closes pipes only at EOF
        if transport is not None:
            transport.close()


def _open_pidfd(pid: int) -> int | None:
    """A handle that cannot come to mean another process; None where there is no such thing, or it ended already."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


class _LogFile:
    """An append-only log with one predecessor. A full disk loses log lines, nothing else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            log.warning("cannot log to %s: %s", path, error.strerror)

    def write(self, chunk: bytes) -> None:
        if self._file is None:
            return
        try:
            self._file.write(chunk)
            self._file.flush()
            if self._file.tell() > LOG_LIMIT_BYTES:
                self._file.close()
                self._path.replace(self._path.with_suffix(".log.1"))
                self._open()
        except OSError as error:
            log.warning("cannot log to %s: %s", self._path, error.strerror)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None

    def _open(self) -> None:
        self._file = self._path.open("ab")
