"""Who owns the runtime folder, and which processes in it are provably ours.

A process id alone proves nothing, it is reused. A run file holds the boot it was written in and the process's start
time as the kernel counts it; only a process that matches both is ever signalled.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil

from garra.errors import AlreadyRunning

log = logging.getLogger(__name__)
_DEATH_LIMIT_S = 10.0


@contextlib.contextmanager
def runtime_lock(runtime: Path) -> Iterator[None]:
    """Hold the runtime folder for this process. Raises AlreadyRunning, naming the holder.

    Taken before anything else is touched, so that a second garra never sweeps the first one's engines.
    """
    descriptor = os.open(runtime / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 32).decode("ascii", "replace").strip()
            raise AlreadyRunning(
                f"garra already runs (pid {holder or 'unknown'}) in {runtime}", fix="garra status, or: garra down"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def identity(pid: int) -> str | None:
    """A process's start time in this boot, or None when there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return stat.rpartition(")")[2].split()[19]  # field 22; the name before it may hold anything
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (ProcessLookupError, IndexError):
        return None
    try:
        return str(psutil.Process(pid).create_time())  # no /proc: macOS
    except psutil.NoSuchProcess:
        return None


def boot_id() -> str:
    """The same until the machine restarts."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return str(int(psutil.boot_time()))


def write(path: Path, pid: int, socket: Path) -> None:
    """Leave the proof for a later sweep."""
    facts = {"boot": boot_id(), "pid": pid, "started": identity(pid), "socket": str(socket)}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(facts))
    part.replace(path)


def sweep(folder: Path) -> int:
    """Kill what an earlier garra left behind and remove its traces; how many processes that were."""
    killed = 0
    for path in folder.glob("*.json"):
        try:
            facts = json.loads(path.read_text())
            pid, started, boot = int(facts["pid"]), facts["started"], facts["boot"]
        except (OSError, ValueError, KeyError, TypeError):
            path.unlink(missing_ok=True)
            continue
        if boot == boot_id() and started is not None and _kill(pid, started):
            killed += 1
            log.warning("killed an engine that an earlier garra left behind (pid %d)", pid)
        path.unlink(missing_ok=True)
    for leftover in (*folder.glob("*.sock"), *folder.glob("*.part")):
        leftover.unlink(missing_ok=True)
    return killed


def _kill(pid: int, started: str) -> bool:
    """Whether the process with this identity was there; it is gone afterwards."""
    if not hasattr(os, "pidfd_open"):
        if identity(pid) != started:
            return False
        os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait(_DEATH_LIMIT_S)
        return True
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Compared after the handle is open: from here on the pid cannot come to mean another process.
        if identity(pid) != started:
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
        select.select([handle], [], [], _DEATH_LIMIT_S)
        return True
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
