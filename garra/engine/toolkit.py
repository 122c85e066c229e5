"""CUDA toolkits: the installed one, or one made of packages from the index, kept under garra's data folder.

Only what engines need at run time must stay: `strip` removes the compiler and leaves the libraries their rpath names.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from garra import package_index, paths
from garra.engine.recipe import CudaToolkit, releases_for
from garra.engine.source import Say
from garra.errors import BuildFailed, DownloadFailed
from garra.host import HostSpec

_UNPACKED_PER_DOWNLOADED = 2.6  # 525 MB of packages, 1.3 GB with the links resolved (measured)
_NVCC_RELEASE = re.compile(r"release (\d+\.\d+)")


@dataclass(frozen=True, slots=True)
class Release:
    """A toolkit the index can give."""

    name: str
    cuda: int
    folder: str
    download_mb: int
    requirements: tuple[str, ...]

    @property
    def root(self) -> Path:
        return paths.data_dir() / "toolkits" / f"cuda-{self.name}"

    @property
    def toolkit(self) -> CudaToolkit:
        return CudaToolkit(self.root, self.name, bundled=True)


def releases() -> tuple[Release, ...]:
    """All of them, as shipped."""
    table: dict[str, Any] = tomllib.loads((paths.shipped("llama.cpp") / "cuda.toml").read_text(encoding="utf-8"))
    return tuple(Release(**entry | {"requirements": tuple(entry["requirements"])}) for entry in table["release"])


def on_index(host: HostSpec) -> Release | None:
    """What the index would give for this driver; the newest of all where no driver is visible."""
    known = releases()
    name = releases_for(host.cuda or max(release.cuda for release in known), [(r.cuda, r.name) for r in known])
    return next((release for release in known if release.name == name), None)


def installed() -> CudaToolkit | None:
    """The toolkit of this machine: CUDA_HOME, CUDA_PATH, nvcc on PATH, then /usr/local/cuda."""
    named = [Path(value) for key in ("CUDA_HOME", "CUDA_PATH") if (value := os.environ.get(key))]
    found = shutil.which("nvcc")
    on_path = [Path(found).resolve().parent.parent] if found else []
    for root in (*named, *on_path, Path("/usr/local/cuda")):
        nvcc = root / "bin" / "nvcc"
        if nvcc.exists():
            return CudaToolkit(root.resolve(), _release_of(nvcc))
    return None


def choose(host: HostSpec) -> tuple[CudaToolkit, Release | None]:
    """The toolkit to build with; with its release when it must be fetched first. Raises BuildFailed."""
    here = installed()
    if here is not None:
        return here, None
    release = on_index(host)
    if release is None:
        raise BuildFailed(
            f"cannot build for CUDA: the driver runs CUDA {host.cuda // 1000}.{host.cuda % 1000 // 10} at most, "
            "and the package index has a compiler for 13.0 and newer only",
            fix="update the driver to the 580 series or newer, or install a CUDA 12 toolkit (apt install "
            "nvidia-cuda-toolkit), or: garra engine build --backend vulkan",
        )
    complete = (release.root / ".complete").exists()
    return release.toolkit, None if complete else release


def fetch(release: Release, say: Say) -> None:
    """Download and lay out a toolkit; whole or not at all. Raises DownloadFailed."""
    root = release.root
    root.parent.mkdir(parents=True, exist_ok=True)
    needed = int(release.download_mb * (1 + _UNPACKED_PER_DOWNLOADED))
    free = shutil.disk_usage(root.parent).free // 1_000_000
    if free < needed:
        raise DownloadFailed(
            f"cannot fetch CUDA {release.name}: it needs {needed} MB while unpacking, {free} MB are free",
            fix=f"free space in {root.parent}, or install a CUDA toolkit and set CUDA_HOME",
        )
    say(f"fetching the CUDA {release.name} compiler and cuBLAS ({release.download_mb} MB) from the package index")
    with tempfile.TemporaryDirectory(prefix=".cuda-", dir=root.parent) as folder:
        reason = package_index.download_wheels(release.requirements, Path(folder))
        if reason is not None:
            raise DownloadFailed(
                f"cannot fetch CUDA {release.name}: {reason}",
                fix="check the network or pip's index settings, or install a CUDA toolkit and set CUDA_HOME",
            )
        part = Path(folder) / "root"
        for wheel in sorted(Path(folder).glob("*.whl")):
            unpack(wheel, release.folder, part)
        link(part)
        (part / ".complete").touch()
        shutil.rmtree(root, ignore_errors=True)  # an incomplete or a stripped one
        part.rename(root)


def strip(toolkit: CudaToolkit) -> int:
    """Remove the compiler and the headers of garra's own toolkit; bytes freed. Engines go on running."""
    if not toolkit.bundled:
        return 0
    freed = 0
    (toolkit.root / ".complete").unlink(missing_ok=True)
    for name in ("bin", "include", "nvvm"):
        folder = toolkit.root / name
        freed += sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())
        shutil.rmtree(folder, ignore_errors=True)
    for leftover in [*toolkit.libraries.glob("*.a"), *toolkit.libraries.glob("libnvvm.so*")]:
        freed += leftover.lstat().st_size
        leftover.unlink()
    return freed


def unpack(wheel: Path, folder: str, root: Path) -> None:
    """The part of a package under `folder`, into `root`, programs executable."""
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = PurePosixPath(member.filename)
            if member.is_dir() or not path.is_relative_to(folder) or ".." in path.parts:
                continue
            target = root / path.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(member) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file)
            if "bin" in path.parts:
                target.chmod(0o755)


def link(root: Path) -> None:
    """What the linker and CMake look for besides: `libX.so` beside every `libX.so.N`, and `lib64`."""
    for library in (root / "lib").glob("lib*.so.*"):
        plain = library.with_name(library.name.split(".so")[0] + ".so")
        if not plain.exists():
            plain.symlink_to(library.name)
    (root / "lib64").symlink_to("lib")


def _release_of(nvcc: Path) -> str:
    told = subprocess.run([str(nvcc), "--version"], capture_output=True, text=True, check=False).stdout
    match = _NVCC_RELEASE.search(told)
    return match[1] if match else "unknown"
