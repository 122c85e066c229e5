"""The real nvidia-ml-py against a small stub of the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from garra import hardware

STUB = Path(__file__).parents[1] / "stub_nvml.c"
ASK = (
    "import json\nfrom garra import hardware\n"
    "print(json.dumps([[gpu.index, gpu.name, gpu.total_mib, gpu.free_mib] for gpu in hardware.detect().gpus]))"
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stub, compiled."""
    folder = tmp_path_factory.mktemp("nvml")
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)]
    subprocess.run(command, check=True)
    return folder


def gpus(driver: Path, free_mib: str) -> list[list[object]]:
    env = os.environ | {"LD_LIBRARY_PATH": str(driver), "STUB_NVML_FREE_MIB": free_mib}
    told = subprocess.run([sys.executable, "-c", ASK], env=env, capture_output=True, text=True, check=True)
    answer: list[list[object]] = json.loads(told.stdout)
    return answer


def test_gpus_are_seen_with_their_memory(driver: Path) -> None:
    assert gpus(driver, "7400,1200") == [
        [0, "NVIDIA GeForce RTX 3070", 8192, 7400],
        [1, "NVIDIA GeForce RTX 3070", 8192, 1200],
    ]


def test_a_gpu_that_fell_off_the_bus_hides_no_other(driver: Path) -> None:
    assert [gpu[0] for gpu in gpus(driver, "-,7400")] == [1]
    assert [gpu[0] for gpu in gpus(driver, "7400,-")] == [0]


def test_without_a_driver_there_is_no_gpu_and_no_error() -> None:
    host = hardware.detect()
    assert host.cores >= 1
    assert host.ram_total_mib >= host.ram_free_mib > 0
