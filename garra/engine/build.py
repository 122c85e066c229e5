"""Compile the pinned engine: configure, build, prove, switch.

A build lives in a work folder named after its stamp until it is whole, so an interrupted one goes on where it stopped
(ninja keeps what is compiled). `current` moves only to an engine that has produced a token.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import psutil

from garra import hardware, paths
from garra.engine import smoke, source, store
from garra.errors import BuildFailed, Taken
from garra.spec import MIB, EngineBuild
from garra.supervisor.tether import tether

TARGETS = (
    "llama-server",
    "llama-fit-params",
    "llama-bench",
    "llama-batched-bench",
    "llama-perplexity",
    "llama-quantize",
)
_RAM_PER_JOB_MIB = 1500  # the largest translation units of llama.cpp's chat parsers take about this much
_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")

OnStep = Callable[[int, int, str], None]
"""Called with (done, all, what) as ninja goes on."""


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """One build, decided but not started."""

    pin: source.Pin
    stamp: str
    given: Path | None
    cmake: str
    ninja: str
    work: Path
    target: Path
    options: tuple[str, ...]
    jobs: int

    @property
    def configure(self) -> list[str]:
        """The CMake command line."""
        where = ["-S", str(self.work / "src"), "-B", str(self.work / "build")]
        return [self.cmake, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={self.ninja}", *where, *self.options]

    @property
    def compile(self) -> list[str]:
        """The ninja command line."""
        return [self.ninja, "-C", str(self.work / "build"), "-j", str(self.jobs), *TARGETS]

    @property
    def log(self) -> Path:
        return paths.state_dir() / "logs" / f"engine-build-{self.stamp}.log"


def plan_build(given: Path | None = None, jobs: int | None = None) -> BuildPlan:
    """What `garra engine build` would do on this machine. Raises BuildFailed naming a missing tool."""
    pin = source.load_pin()
    cmake = _tool("cmake", "pip install 'garra[build]'   (or: apt install cmake)")
    ninja = _tool("ninja", "pip install 'garra[build]'   (or: apt install ninja-build)")
    compiler = os.environ.get("CXX") or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
    if compiler is None or shutil.which(compiler) is None:
        raise BuildFailed(
            "cannot build the engine: there is no C++ compiler" + (f" ({compiler})" if compiler else ""),
            fix="apt install g++   (Fedora: dnf install gcc-c++, macOS: xcode-select --install)",
        )
    options = (
        "-DCMAKE_BUILD_TYPE=Release",
        "-DGGML_NATIVE=ON",
        f"-DLLAMA_BUILD_NUMBER={pin.build}",
        f"-DLLAMA_BUILD_COMMIT={pin.tag}",
        "-DLLAMA_BUILD_IS_DEV=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_APP=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",  # nothing is fetched while compiling
        "-DLLAMA_OPENSSL=OFF",  # engines listen on Unix sockets and download nothing
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        "-DCMAKE_INSTALL_RPATH=$ORIGIN",  # programs and libraries move together
    )
    stamp = f"b{pin.build}-cpu-{_fingerprint(pin, given, options, compiler)}"
    engines = paths.engines_dir()
    return BuildPlan(
        pin=pin,
        stamp=stamp,
        given=given,
        cmake=cmake,
        ninja=ninja,
        work=engines / f".work-{stamp}",
        target=engines / stamp,
        options=options,
        jobs=jobs or _jobs(),
    )


def build(plan: BuildPlan, *, on_step: OnStep, say: source.Say) -> EngineBuild:
    """Build, prove and switch; returns at once when this very engine exists. Raises BuildFailed, Taken."""
    engines = paths.engines_dir()
    engines.mkdir(parents=True, exist_ok=True)
    with (engines / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Taken("another garra is building an engine", fix="wait until it is done") from None
        built = store.read(plan.target)
        if built is None:
            patches = source.obtain(plan.pin, plan.work / "src", given=plan.given, say=say)
            _compile(plan, lock.fileno(), on_step, say)
            built = _install(plan, patches)
        say("testing the new engine: it loads a model and produces a token")
        smoke.prove(built)
        store.switch_to(built)
        shutil.rmtree(plan.work, ignore_errors=True)
        return built


def _tool(name: str, fix: str) -> str:
    """A program beside this Python (the `build` extra) or on PATH."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise BuildFailed(f"cannot build the engine: {name} is not installed", fix=fix)
    return found


def _jobs() -> int:
    fits = psutil.virtual_memory().available // MIB // _RAM_PER_JOB_MIB
    return max(1, min(hardware.usable_cpus(), fits))


def _fingerprint(pin: source.Pin, given: Path | None, options: tuple[str, ...], compiler: str) -> str:
    """Eight hex digits over all that shapes the programs: sources, patches, options, compiler and CPU."""
    told = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    parts = [str(given or pin.sha256), *options, told, platform.machine(), _cpu_features()]
    parts += [patch.read_text() for patch in pin.patches]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _cpu_features() -> str:
    """What a native build depends on: a data folder may be shared between machines."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        return platform.processor()


def _compile(plan: BuildPlan, lock: int, on_step: OnStep, say: source.Say) -> None:
    plan.log.parent.mkdir(parents=True, exist_ok=True)
    with plan.log.open("w", encoding="utf-8") as log:
        say(f"configuring (log: {plan.log})")
        _run(plan.configure, plan, lock, log, None)
        say(f"compiling llama.cpp {plan.pin.tag} with {plan.jobs} jobs")
        _run(plan.compile, plan, lock, log, on_step)


def _run(command: list[str], plan: BuildPlan, lock: int, log: TextIO, on_step: OnStep | None) -> None:
    """Run one step, its output into the log; a failure shows the lines that matter.

    The step inherits the lock: should garra be killed, the next build waits for its last compiler.
    """
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
    with subprocess.Popen(
        [*tether("TERM"), *command],  # ninja ends its compilers at SIGTERM
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
        pass_fds=(lock,),
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.write(line)
                step = _STEP.match(line)
                if step and on_step:
                    on_step(int(step[1]), int(step[2]), step[3].rsplit("/", 1)[-1].strip())
        except BaseException:  # Ctrl-C, SIGTERM: stop the compilers too; the work folder stays for the next try
            os.killpg(process.pid, signal.SIGTERM)
            raise
    log.flush()
    if process.returncode != 0:
        what = "configure" if on_step is None else "compile"
        raise BuildFailed(
            f"cannot {what} the engine:\n{telling_lines(plan.log)}\nThe whole log: {plan.log}", fix=_fix(plan.log)
        )


def telling_lines(log: Path, limit: int = 12) -> str:
    """The lines of a build log that name errors, with a little of what follows; else its end."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    hits = [
        number for number, line in enumerate(lines) if re.search(r"\berror\b[: ]|CMake Error|FAILED:|No space", line)
    ]
    if not hits:
        return "\n".join(lines[-limit:])
    shown = sorted({number + offset for number in hits for offset in range(3) if number + offset < len(lines)})
    return "\n".join(lines[number] for number in shown[:limit])


def _fix(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    if "No space left" in text:
        return f"free 2 GB under {paths.data_dir()}, then run: garra engine build"
    if "Killed signal" in text or "cc1plus: out of memory" in text:
        return "memory ran out: garra engine build --jobs 1"
    return "garra engine build --clean   starts from nothing; a newer compiler helps with unknown options"


def _install(plan: BuildPlan, patches: tuple[str, ...]) -> EngineBuild:
    """Programs and libraries into their final folder, in one rename."""
    part = plan.target.with_name(f".part-{plan.stamp}")
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(plan.work / "build" / "bin", part / "bin", symlinks=True)
    license_file = plan.work / "src" / "LICENSE"
    if license_file.exists():
        shutil.copy(license_file, part / "LICENSE")
    built = EngineBuild(plan.stamp, plan.pin.build, plan.target, "cpu", patches)
    store.write_manifest(part, built)
    part.rename(plan.target)
    return built
