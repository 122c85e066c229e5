"""Which engine is compiled, with which options, with which toolkit; and what a machine lacks for it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from garra.engine import needs, recipe, toolkit
from garra.engine.recipe import CudaToolkit, Kit, Recipe, architectures, choose, options, releases_for
from garra.errors import BuildFailed
from garra.host import Gpu, HostSpec


def host(*gpus: Gpu, cuda: int = 0) -> HostSpec:
    return HostSpec(cores=8, ram_total_mib=32768, ram_free_mib=24576, gpus=gpus, cuda=cuda)


AMPERE = Gpu(0, "NVIDIA GeForce RTX 3070", 8192, 7800, architecture="86")
ADA = Gpu(1, "NVIDIA GeForce RTX 4090", 24564, 24000, architecture="89")
RADEON = Gpu(0, "AMD Radeon RX 7900 XTX", 24560, 24000, vendor="amd", architecture="gfx1100")
ARC = Gpu(0, "Intel Arc A770", 16288, 16000, vendor="other")


def test_the_card_of_the_profiles_is_what_is_compiled_for_when_none_is_visible() -> None:
    assert architectures(host(), "cuda", "native") == ("86",)
    line = options(Recipe("cuda", architectures=architectures(host(), "cuda", "native")), 1, "b1")
    assert "-DGGML_CUDA=ON" in line
    assert "-DCMAKE_CUDA_ARCHITECTURES=86" in line


def test_visible_gpus_say_what_to_compile_for() -> None:
    assert architectures(host(ADA, AMPERE), "cuda", "native") == ("86", "89")
    assert architectures(host(AMPERE), "cuda", "portable") == recipe.PORTABLE_CUDA_ARCHITECTURES
    assert architectures(host(RADEON), "hip", "native") == ("gfx1100",)
    assert architectures(host(AMPERE), "vulkan", "native") == ()


def test_a_toolkit_from_the_index_needs_no_driver_to_link() -> None:
    bundled = options(Recipe("cuda", cuda=CudaToolkit(Path("/t"), "13.0", bundled=True)), 1, "b1")
    assert "-DGGML_CUDA_NO_VMM=ON" in bundled
    assert "-DCMAKE_EXE_LINKER_FLAGS=-Wl,-rpath-link,/t/lib" in bundled
    assert "-DCMAKE_INSTALL_RPATH=$ORIGIN;/t/lib" in bundled
    installed = options(Recipe("cuda", cuda=CudaToolkit(Path("/usr/local/cuda"), "12.4")), 1, "b1")
    assert not any("NO_VMM" in word for word in installed)
    assert "-DCMAKE_CUDA_COMPILER=/usr/local/cuda/bin/nvcc" in installed


def test_modes_differ_in_what_they_are_compiled_for() -> None:
    native, portable, dev = (options(Recipe("cpu", mode), 1, "b1") for mode in ("native", "portable", "dev"))
    assert "-DGGML_NATIVE=ON" in native
    assert {"-DGGML_NATIVE=OFF", "-DGGML_CPU_ALL_VARIANTS=ON", "-DGGML_BACKEND_DL=ON"} <= set(portable)
    assert "-DCMAKE_BUILD_TYPE=RelWithDebInfo" in dev
    assert "-DGGML_HIP=ON" in options(Recipe("hip", architectures=("gfx1100",)), 1, "b1")
    assert "-DGPU_TARGETS=gfx1100" in options(Recipe("hip", architectures=("gfx1100",)), 1, "b1")
    assert "-DGGML_METAL=ON" in options(Recipe("metal"), 1, "b1")


@pytest.mark.parametrize(
    ("machine", "kit", "backend"),
    [
        (host(AMPERE), Kit("Linux", cuda_release="12.4"), "cuda"),
        (host(AMPERE), Kit("Linux", cuda_on_index="13.0"), "cuda"),
        (host(AMPERE), Kit("Linux", vulkan=True), "vulkan"),
        (host(RADEON), Kit("Linux", hipcc=True, vulkan=True), "hip"),
        (host(RADEON), Kit("Linux", vulkan=True), "vulkan"),
        (host(ARC), Kit("Linux", vulkan=True), "vulkan"),
        (host(ARC), Kit("Linux"), "cpu"),
        (host(), Kit("Linux", cuda_release="13.0", vulkan=True), "cpu"),
        (host(), Kit("Darwin"), "metal"),
    ],
)
def test_auto_takes_what_the_gpu_and_the_tools_allow(machine: HostSpec, kit: Kit, backend: str) -> None:
    chosen, reason = choose(machine, kit)
    assert chosen == backend
    assert reason


def test_the_newest_release_a_driver_runs() -> None:
    known = [(12040, "12.4"), (13000, "13.0"), (13050, "13.5")]
    assert releases_for(13010, known) == "13.0"
    assert releases_for(13090, known) == "13.5"
    assert releases_for(12020, known) is None


def test_an_old_driver_is_told_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "installed", lambda: None)
    with pytest.raises(BuildFailed, match=r"the driver runs CUDA 12\.2") as caught:
        toolkit.choose(host(AMPERE, cuda=12020))
    assert "580 series" in str(caught.value.fix)
    assert "vulkan" in str(caught.value.fix)


def test_packages_become_one_toolkit(tmp_path: Path) -> None:
    wheel = tmp_path / "one.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("nvidia/cu13/bin/nvcc", "#!/bin/sh\necho release 13.0,\n")
        archive.writestr("nvidia/cu13/lib/libcublas.so.13", "x")
        archive.writestr("nvidia/cu13/lib/libnvvm.so.4", "x")
        archive.writestr("nvidia/cu13/include/cublas.h", "x" * 100)
        archive.writestr("nvidia/cu13/../../../../evil", "x")
        archive.writestr("elsewhere/file", "x")
    root = tmp_path / "root"
    toolkit.unpack(wheel, "nvidia/cu13", root)
    toolkit.link(root)
    (root / ".complete").touch()
    assert (root / "lib64/libcublas.so").resolve().name == "libcublas.so.13"
    assert (root / "bin/nvcc").stat().st_mode & 0o111
    assert not list(tmp_path.rglob("evil"))
    assert not (root / "elsewhere").exists()
    freed = toolkit.strip(CudaToolkit(root, "13.0", bundled=True))
    assert freed > 100
    assert (root / "lib/libcublas.so.13").exists(), "the engine needs it when it starts"
    assert not (root / "bin").exists()
    assert toolkit.strip(CudaToolkit(Path("/usr"), "12.4")) == 0, "the user's own is left alone"


def test_the_shipped_releases_pin_every_package() -> None:
    for release in toolkit.releases():
        assert release.cuda >= 13000
        assert all("==" in one and one.count("--hash=sha256:") == 2 for one in release.requirements)
        names = {one.split("==")[0] for one in release.requirements}
        assert {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-runtime", "nvidia-cublas"} <= names


def test_vulkan_headers_can_be_too_old() -> None:
    text = (
        "#define VK_HEADER_VERSION {}\n\n// Complete version\n"
        "#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, {}, VK_HEADER_VERSION)\n"
    )
    assert needs.vulkan_version(text.format(239, 3)) == (1, 3, 239)
    assert needs.vulkan_version(text.format(309, 4)) == (1, 4, 309)
    assert needs.vulkan_version("nothing of the kind") is None


def test_what_is_missing_comes_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    looked = needs.Needs()
    looked.compiler()
    looked.of_backend("hip")
    looked.of_backend("vulkan")
    told = dict(looked.missing)
    assert "apt install g++" in told["there is no C++ compiler"]
    assert any("hipconfig" in what for what in told)
    assert any("glslc" in what for what in told)
    assert any("apt install glslc libvulkan-dev" in fix for fix in told.values())
