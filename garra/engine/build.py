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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

import psutil

from garra import hardware, paths
from garra.engine import needs as needed
from garra.engine import recipe as recipes
from garra.engine import smoke, source, store
from garra.engine import toolkit as toolkits
from garra.engine.recipe import CudaToolkit, Recipe
from garra.engine.toolkit import Release
from garra.errors import BuildFailed, Taken
from garra.spec import MIB, Backend, BuildMode, EngineBuild
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
    recipe: Recipe
    reason: str
    """Why this backend."""
    stamp: str
    given: Path | None
    cmake: str
    ninja: str
    work: Path
    target: Path
    options: tuple[str, ...]
    jobs: int
    toolkit: Release | None = None
    """To be fetched first."""
    missing: tuple[tuple[str, str], ...] = ()
    """What this machine lacks for it, each with what brings it."""
    environment: tuple[tuple[str, str], ...] = ()

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


def plan_build(
    given: Path | None = None,
    jobs: int | None = None,
    *,
    backend: Backend | Literal["auto"] = "auto",
    mode: BuildMode = "native",
) -> BuildPlan:
    """What `garra engine build` would do on this machine. Raises BuildFailed where no toolkit can be had."""
    pin = source.load_pin()
    needs = needed.Needs()
    cmake = needs.tool("cmake", "pip install 'garra[build]'   (or: apt install cmake)")
    ninja = needs.tool("ninja", "pip install 'garra[build]'   (or: apt install ninja-build)")
    compiler = needs.compiler()
    host = hardware.detect()
    chosen, reason = recipes.choose(host, needed.kit(host)) if backend == "auto" else (backend, "as asked")
    cuda, release = toolkits.choose(host) if chosen == "cuda" else (None, None)
    recipe = Recipe(chosen, mode, recipes.architectures(host, chosen, mode), cuda)
    environment = needs.of_backend(chosen)
    options = recipes.options(recipe, pin.build, pin.tag)
    stamp = f"b{pin.build}-{chosen}-{_fingerprint(pin, given, options, compiler, mode, cuda)}"
    engines = paths.engines_dir()
    return BuildPlan(
        pin=pin,
        recipe=recipe,
        reason=reason,
        stamp=stamp,
        given=given,
        cmake=cmake,
        ninja=ninja,
        work=engines / f".work-{stamp}",
        target=engines / stamp,
        options=options,
        jobs=jobs or _jobs(),
        toolkit=release,
        missing=tuple(needs.missing),
        environment=tuple(environment.items()),
    )


def build(plan: BuildPlan, *, on_step: OnStep, say: source.Say) -> EngineBuild:
    """Build, prove and switch; at once where this engine exists. Raises BuildFailed, DownloadFailed, Taken."""
    for what, fix in plan.missing:
        raise BuildFailed(f"cannot build the engine: {what}", fix=fix)
    engines = paths.engines_dir()
    engines.mkdir(parents=True, exist_ok=True)
    with (engines / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Taken("another garra is building an engine", fix="wait until it is done") from None
        built = store.read(plan.target)
        if built is None:
            if plan.toolkit is not None:
                toolkits.fetch(plan.toolkit, say)
            patches = source.obtain(plan.pin, plan.work / "src", given=plan.given, say=say)
            _compile(plan, lock.fileno(), on_step, say)
            built = _install(plan, patches)
        say("testing the new engine: it loads a model and produces a token")
        smoke.prove(built)
        store.switch_to(built)
        shutil.rmtree(plan.work, ignore_errors=True)
        return built


def _jobs() -> int:
    fits = psutil.virtual_memory().available // MIB // _RAM_PER_JOB_MIB
    return max(1, min(hardware.usable_cpus(), fits))


def _fingerprint(
    pin: source.Pin,
    given: Path | None,
    options: tuple[str, ...],
    compiler: str,
    mode: BuildMode,
    cuda: CudaToolkit | None,
) -> str:
    """Eight hex digits over all that shapes the programs: sources, patches, options, compilers and CPU."""
    parts = [str(given or pin.sha256), *options, needed.version_of(compiler), platform.machine()]
    parts += [_cpu_features()] if mode != "portable" else []
    parts += [cuda.release] if cuda is not None else []
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
    environment = {**os.environ, **dict(plan.environment), "NINJA_STATUS": "[%f/%t] ", "LC_ALL": "C"}
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
            whole = 0
            for line in process.stdout:
                log.write(line)
                step = _STEP.match(line)
                if step and on_step and int(step[2]) > whole // 2:  # else it is a small build within this one
                    whole = int(step[2])
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
    recipe = plan.recipe
    built = EngineBuild(
        plan.stamp,
        plan.pin.build,
        plan.target,
        recipe.backend,
        patches,
        mode=recipe.mode,
        origin="built" if plan.given is None else "own sources",
        provenance="" if plan.given is None else str(plan.given),
        toolkit=recipe.cuda.release if recipe.cuda is not None else "",
    )
    store.write_manifest(part, built)
    part.rename(plan.target)
    return built
