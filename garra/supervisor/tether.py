"""A prefix that ties a child's life to ours."""

from __future__ import annotations

import functools
import shutil
import subprocess


@functools.cache
def tether(signame: str) -> tuple[str, ...]:
    """Words to put before a command, so that the kernel signals it when garra dies, however it dies; Linux only.

    The kernel watches the thread that spawned: spawn from the main thread.
    """
    tool = shutil.which("setpriv")
    if tool is None:
        return ()
    told = subprocess.run([tool, "--help"], capture_output=True, text=True, check=False).stdout
    return (tool, "--pdeathsig", signame, "--") if "--pdeathsig" in told else ()
