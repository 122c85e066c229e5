"""What a build needs on this machine: programs, headers, SDKs; and the command that brings what is missing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

from garra.engine import toolkit
from garra.engine.recipe import Kit
from garra.host import HostSpec
from garra.spec import Backend

_INCLUDES = ("/usr/include", "/usr/local/include", "/opt/homebrew/include")
_VULKAN_HEADERS = ("vulkan/vulkan.h", "spirv/unified1/spirv.hpp")
_VULKAN_LEAST = (1, 3, 272)
"""Headers that know VK_EXT_layer_settings, which the pinned engine uses."""
_VULKAN_FIX = (
    "apt install glslc libvulkan-dev spirv-headers   (Debian 13, Ubuntu 24.04 or newer; Fedora: dnf install glslc "
    "vulkan-loader-devel spirv-headers-devel, Arch: pacman -S shaderc vulkan-headers vulkan-icd-loader spirv-headers; "
    "elsewhere the Vulkan SDK, and VULKAN_SDK set to it)"
)
_VULKAN_VERSION = re.compile(
    r"VK_HEADER_VERSION (?P<patch>\d+)\b.*"
    r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(\d, (?P<major>\d+), (?P<minor>\d+)",
    re.DOTALL,
)


class Needs:
    """Looks things up and collects what is missing, so that a dry run can still show its plan."""

    def __init__(self) -> None:
        self.missing: list[tuple[str, str]] = []

    def tool(self, name: str, fix: str) -> str:
        """A program beside this Python (the `build` extra) or on PATH; its bare name when it is missing."""
        found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
        if found is None:
            self.missing.append((f"{name} is not installed", fix))
        return found or name

    def compiler(self) -> str:
        """The C++ compiler, CXX first."""
        named = os.environ.get("CXX")
        found = named or next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
        if found is None or shutil.which(found) is None:
            what = "there is no C++ compiler" + (f" ({found})" if found else "")
            fix = "apt install g++   (Fedora: dnf install gcc-c++, macOS: xcode-select --install)"
            self.missing.append((what, fix))
        return found or "c++"

    def of_backend(self, backend: Backend) -> dict[str, str]:
        """What to set in the build's environment; notes what the backend's SDK lacks."""
        if backend == "vulkan":
            lacking = missing_of_vulkan()
            if lacking:
                self.missing.append((f"Vulkan needs {' and '.join(lacking)}", _VULKAN_FIX))
        elif backend == "hip":
            hipconfig = shutil.which("hipconfig")
            if hipconfig is None:
                self.missing.append(("ROCm's hipconfig is not installed", "apt install hipcc rocm-hip-sdk"))
                return {}
            return {"HIPCXX": f"{_said(hipconfig, '-l')}/clang", "HIP_PATH": _said(hipconfig, "-R")}
        elif backend == "metal" and platform.system() != "Darwin":
            self.missing.append(("Metal is there on macOS only", "garra engine build --backend auto"))
        return {}


def kit(host: HostSpec) -> Kit:
    """What this machine could build with."""
    here, there = toolkit.installed(), toolkit.on_index(host)
    return Kit(
        system=platform.system(),
        cuda_release=here.release if here is not None else None,
        cuda_on_index=there.name if there is not None else None,
        hipcc=shutil.which("hipconfig") is not None,
        vulkan=not missing_of_vulkan(),
    )


def missing_of_vulkan() -> list[str]:
    """What Vulkan's part of the build would not find."""
    sdk = os.environ.get("VULKAN_SDK")
    folders = [Path(folder) for folder in ((f"{sdk}/include",) if sdk else ()) + _INCLUDES]
    glslc = shutil.which("glslc") or (shutil.which("glslc", path=f"{sdk}/bin") if sdk else None)
    lacking = [] if glslc else ["glslc"]
    lacking += [name for name in _VULKAN_HEADERS if not any((folder / name).exists() for folder in folders)]
    core = next(
        (folder / "vulkan/vulkan_core.h" for folder in folders if (folder / "vulkan/vulkan_core.h").exists()), None
    )
    version = vulkan_version(core.read_text(errors="replace")) if core is not None else None
    if version is not None and version < _VULKAN_LEAST:
        told, least = (".".join(map(str, one)) for one in (version, _VULKAN_LEAST))
        lacking.append(f"Vulkan headers of version {least} or newer (these are {told})")
    return lacking


def vulkan_version(header: str) -> tuple[int, int, int] | None:
    """Of `vulkan_core.h`; None when it does not say."""
    match = _VULKAN_VERSION.search(header)
    return (int(match["major"]), int(match["minor"]), int(match["patch"])) if match else None


def version_of(compiler: str) -> str:
    """The first line of `compiler --version`; empty when it is not there."""
    return _said(compiler, "--version").split("\n")[0] if shutil.which(compiler) else ""


def _said(program: str, *words: str) -> str:
    return subprocess.run([program, *words], capture_output=True, text=True, check=False).stdout.strip()
