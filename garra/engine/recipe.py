"""Which engine to compile and with which options: backend, mode and toolkit -> CMake options. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from garra.host import HostSpec
from garra.spec import Backend, BuildMode

DEFAULT_CUDA_ARCHITECTURE = "86"
"""RTX 30 (the card of the shipped profiles): used when no GPU is visible to ask."""
PORTABLE_CUDA_ARCHITECTURES = ("75", "80", "86", "89", "90", "120")
"""Turing to Blackwell."""


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """A root with `bin/nvcc`, `include` and the libraries."""

    root: Path
    release: str
    bundled: bool = False
    """Made of packages from the index: garra's own, without a stub of the driver to link against."""

    @property
    def libraries(self) -> Path:
        """Where the engine finds cuBLAS and the runtime when it starts."""
        return self.root / ("lib" if self.bundled else "lib64")


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is compiled, before anything is looked up on this machine."""

    backend: Backend
    mode: BuildMode = "native"
    architectures: tuple[str, ...] = ()
    """GPU architectures: `86` for CUDA, `gfx1100` for HIP."""
    cuda: CudaToolkit | None = None


def options(recipe: Recipe, build: int, tag: str) -> tuple[str, ...]:
    """CMake options, in a fixed order: the stamp is made of them."""
    first = {
        "native": ("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON"),
        "dev": ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DGGML_NATIVE=ON"),
        # one library per CPU generation, chosen when the engine starts
        "portable": (
            "-DCMAKE_BUILD_TYPE=Release",
            "-DGGML_NATIVE=OFF",
            "-DGGML_BACKEND_DL=ON",
            "-DGGML_CPU_ALL_VARIANTS=ON",
        ),
    }[recipe.mode]
    rpath = ["$ORIGIN"]  # programs and libraries move together
    if recipe.cuda is not None:
        rpath.append(str(recipe.cuda.libraries))
    return (
        *first,
        f"-DLLAMA_BUILD_NUMBER={build}",
        f"-DLLAMA_BUILD_COMMIT={tag}",
        "-DLLAMA_BUILD_IS_DEV=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
        "-DLLAMA_BUILD_APP=OFF",
        "-DLLAMA_BUILD_UI=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",  # nothing is fetched while compiling
        "-DLLAMA_OPENSSL=OFF",  # engines listen on Unix sockets and download nothing
        "-DCMAKE_BUILD_WITH_INSTALL_RPATH=ON",
        f"-DCMAKE_INSTALL_RPATH={';'.join(rpath)}",
        *_backend(recipe),
    )


def _backend(recipe: Recipe) -> tuple[str, ...]:
    match recipe.backend:
        case "cpu":
            return ()
        case "vulkan":
            return ("-DGGML_VULKAN=ON",)
        case "metal":
            return ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON")
        case "hip":
            targets = (f"-DGPU_TARGETS={';'.join(recipe.architectures)}",) if recipe.architectures else ()
            return ("-DGGML_HIP=ON", *targets)
        case "cuda":
            architectures = recipe.architectures or (DEFAULT_CUDA_ARCHITECTURE,)
            found: tuple[str, ...] = (f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(architectures)}",)
            if recipe.cuda is None:
                return ("-DGGML_CUDA=ON", *found)
            root = recipe.cuda.root
            found += (f"-DCUDAToolkit_ROOT={root}", f"-DCMAKE_CUDA_COMPILER={root}/bin/nvcc")
            if recipe.cuda.bundled:
                # No stub of libcuda to link against; and ld does not look behind libggml-cuda.so for cuBLAS by itself.
                found += (
                    "-DGGML_CUDA_NO_VMM=ON",
                    f"-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,{recipe.cuda.libraries}",
                )
            return ("-DGGML_CUDA=ON", *found)


def architectures(host: HostSpec, backend: Backend, mode: BuildMode) -> tuple[str, ...]:
    """The GPU architectures to compile for: those of the visible GPUs, or a whole range for a portable build."""
    if backend == "hip":
        return tuple(sorted({gpu.architecture for gpu in host.gpus if gpu.architecture.startswith("gfx")}))
    if backend != "cuda":
        return ()
    if mode == "portable":
        return PORTABLE_CUDA_ARCHITECTURES
    seen = {gpu.architecture for gpu in host.gpus if gpu.architecture.isdigit()}
    return tuple(sorted(seen, key=int)) or (DEFAULT_CUDA_ARCHITECTURE,)


@dataclass(frozen=True, slots=True)
class Kit:
    """What this machine could build with: compilers and headers that are there, or can be had."""

    system: str
    """`Linux` or `Darwin`."""
    cuda_release: str | None = None
    """Of a toolkit that is installed."""
    cuda_on_index: str | None = None
    """The release that the package index would give for this driver."""
    hipcc: bool = False
    vulkan: bool = False


def choose(host: HostSpec, kit: Kit) -> tuple[Backend, str]:
    """The backend for this machine, with the reason."""
    if kit.system == "Darwin":
        return "metal", "this is a Mac"
    nvidia = [gpu for gpu in host.gpus if gpu.vendor == "nvidia"]
    others = [gpu for gpu in host.gpus if gpu.vendor != "nvidia"]
    if nvidia and kit.cuda_release is not None:
        return "cuda", f"{nvidia[0].name}, CUDA {kit.cuda_release} is installed"
    if nvidia and kit.cuda_on_index is not None:
        return "cuda", f"{nvidia[0].name}; CUDA {kit.cuda_on_index} comes from the package index"
    if others and kit.hipcc and any(gpu.architecture.startswith("gfx") for gpu in others):
        return "hip", f"{others[0].name}, ROCm is installed"
    if host.gpus and kit.vulkan:
        return "vulkan", f"{host.gpus[0].name}, Vulkan's headers and shader compiler are installed"
    if host.gpus:
        return "cpu", f"{host.gpus[0].name} is there, but neither a CUDA toolkit, ROCm nor Vulkan's headers are"
    return "cpu", "no GPU is visible"


def releases_for(driver_cuda: int, known: Sequence[tuple[int, str]]) -> str | None:
    """The newest known CUDA release a driver can run; numbers as NVML gives them, 13000 for 13.0."""
    fitting = [(number, name) for number, name in known if number <= driver_cuda]
    return max(fitting)[1] if fitting else None
