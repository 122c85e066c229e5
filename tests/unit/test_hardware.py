"""What the machine has. The real nvidia-ml-py against a stub of the driver's library; AMD in a made-up sysfs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from garra import gpus, hardware
from garra.engine import devices
from tests.stub_driver import RTX_3070, RTX_3090, StubDriver, gpu

ASK = (
    "import dataclasses, json, sys\nfrom garra import gpus, hardware\n"
    "host = hardware.detect(set(map(int, sys.argv[1:])))\n"
    "print(json.dumps({**dataclasses.asdict(host), 'held': gpus.held_mib(4711), 'free': gpus.free_mib()}))"
)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> StubDriver:
    return StubDriver(tmp_path_factory.mktemp("nvml"))


def ask(driver: StubDriver, *lines: str, ours: tuple[int, ...] = ()) -> dict[str, Any]:
    driver.show(*lines)
    words = [sys.executable, "-c", ASK, *map(str, ours)]
    told = subprocess.run(words, env=os.environ | driver.environment(), capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(told.stdout)
    return answer


def test_gpus_are_seen_with_what_planning_needs(driver: StubDriver) -> None:
    host = ask(driver, gpu(8192, 792), gpu(24576, 400, name=RTX_3090))
    first, second = host["gpus"]
    assert (first["name"], first["total_mib"], first["free_mib"], first["architecture"]) == (RTX_3070, 8192, 7400, "86")
    assert (second["index"], second["name"], second["free_mib"]) == (1, RTX_3090, 24176)
    assert (first["driver"], host["cuda"], first["temperature_c"]) == ("580.65.06", 13000, 41)
    assert first["power_w"] == 30.0
    assert first["power_limit_w"] is None, "this one does not tell"
    assert host["free"] == 7400 + 24176


def test_other_processes_memory_is_told_from_ours(driver: StubDriver) -> None:
    host = ask(driver, gpu(8192, 200), "process 0 4711 3000", "process 0 99 1500", ours=(4711,))
    assert host["gpus"][0]["free_mib"] == 8192 - 4700
    assert host["gpus"][0]["others_mib"] == 1700, "the other process, and what the driver keeps"
    assert host["held"] == 3000


def test_a_hot_gpu_says_why_it_is_slow(driver: StubDriver) -> None:
    host = ask(driver, gpu(), "thermal 0 92 219500 810 64")
    assert host["gpus"][0]["throttled"] == ["power", "thermal"]
    assert (host["gpus"][0]["temperature_c"], host["gpus"][0]["clock_mhz"]) == (92, 810)


@pytest.mark.parametrize("state", ["lost", "mute"])
def test_a_gpu_that_fell_off_the_bus_hides_no_other(driver: StubDriver, state: str) -> None:
    assert [one["index"] for one in ask(driver, gpu(state=state), gpu())["gpus"]] == [1]
    assert [one["index"] for one in ask(driver, gpu(), gpu(state=state))["gpus"]] == [0]


def test_an_old_driver_tells_what_it_runs(driver: StubDriver) -> None:
    assert ask(driver, gpu(), "driver 535.183.01 12020")["cuda"] == 12020


def test_without_a_driver_there_is_no_gpu_and_no_error() -> None:
    host = hardware.detect()
    assert host.cores >= 1
    assert host.ram_total_mib >= host.ram_free_mib > 0
    assert host.disk_free_mib > 0
    assert host.cuda == 0


def test_amd_gpus_are_read_from_the_kernel(tmp_path: Path) -> None:
    card, node = tmp_path / "drm/card1/device", tmp_path / "kfd/1"
    (card / "hwmon/hwmon3").mkdir(parents=True)
    node.mkdir(parents=True)
    facts = {"vendor": "0x1002", "device": "0x744c", "mem_info_vram_total": str(24560 << 20)}
    facts |= {"mem_info_vram_used": str(560 << 20), "hwmon/hwmon3/temp1_input": "48000"}
    for name, text in facts.items():
        (card / name).write_text(text + "\n")
    (node / "properties").write_text("cpu_cores_count 0\ngfx_target_version 110000\n")
    other = tmp_path / "drm/card0/device"
    other.mkdir(parents=True)
    (other / "vendor").write_text("0x8086\n")
    (one,) = gpus.amd(tmp_path / "drm", tmp_path / "kfd")
    assert (one.name, one.total_mib, one.free_mib) == ("AMD GPU 0x744c", 24560, 24000)
    assert (one.architecture, one.temperature_c, one.vendor) == ("gfx1100", 48, "amd")


def test_other_devices_are_what_the_engine_lists() -> None:
    told = "Available devices:\n  Vulkan0: Intel(R) Arc(tm) A770 (16288 MiB, 15900 MiB free)\n"
    (one,) = devices.parse(told)
    assert (one.index, one.name, one.total_mib, one.free_mib) == (0, "Intel(R) Arc(tm) A770", 16288, 15900)
    assert devices.parse("Available devices:\n  (none)\n") == ()


def test_a_cgroup_bounds_memory_and_cpus(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text("4294967296\n")
    (tmp_path / "memory.current").write_text("1073741824\n")
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert hardware.cgroup_limit_mib(tmp_path) == (4096, 1024)
    assert hardware.cgroup_cpus(tmp_path) == 2
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert hardware.cgroup_limit_mib(tmp_path) is None
    assert hardware.cgroup_cpus(tmp_path) is None


def test_a_cpu_with_two_kinds_of_cores(tmp_path: Path) -> None:
    for number, clock in enumerate([5000, 5000, 3800, 3800]):
        folder = tmp_path / f"cpu{number}"
        (folder / "topology").mkdir(parents=True)
        (folder / "cpufreq").mkdir()
        (folder / "topology/core_cpus_list").write_text(str(number))
        (folder / "cpufreq/cpuinfo_max_freq").write_text(str(clock * 1000))
    assert hardware.performance_cores(4, tmp_path) == 2
    (tmp_path / "cpu2/cpufreq/cpuinfo_max_freq").write_text("4900000")
    (tmp_path / "cpu3/cpufreq/cpuinfo_max_freq").write_text("4900000")
    assert hardware.performance_cores(4, tmp_path) is None


def test_an_engine_sees_one_gpu_and_no_flag_of_the_environment() -> None:
    assert hardware.only_gpu("cuda", 1) == {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": "1"}
    assert hardware.only_gpu("cuda", None)["CUDA_VISIBLE_DEVICES"] == ""
    assert hardware.only_gpu("cpu", None) == {}


WAIT = (
    "import os, sys\nfrom pathlib import Path\nfrom garra.supervisor.memory import HostMemory\n"
    "memory, machine = HostMemory(), Path(os.environ['STUB_NVML'])\n"
    "is_back = memory.asked_back(4711)\nprint(is_back(), memory.holders())\n"
    "lines = machine.read_text().splitlines()\n"
    "machine.write_text('\\n'.join([*lines[:-1], 'process 0 4711 2500']))\nprint(is_back())\n"
    "machine.write_text('\\n'.join(lines[:-1]))\nprint(is_back())\n"
)


def test_vram_is_waited_for_until_the_driver_has_it_back(driver: StubDriver) -> None:
    driver.show(gpu(8192, 300), "process 0 99 1000", "process 0 4711 5000")
    words = [sys.executable, "-c", WAIT]
    told = subprocess.run(words, env=os.environ | driver.environment(), capture_output=True, text=True, check=True)
    first, half, whole = told.stdout.splitlines()
    assert first.startswith("False")
    assert "(pid 4711) holds 5000 MiB" in first, "and who holds it is known"
    assert (half, whole) == ("False", "True")


def test_a_measurement_sees_heat_power_and_throttling(driver: StubDriver) -> None:
    driver.show(gpu(8192, 792), "thermal 0 92 219500 810 64")
    script = (
        "import json, os; from garra.bench.machine import Watch; from garra.tuner.heat import hot\n"
        "with Watch(lambda: [os.getpid()]) as watch: pass\n"
        "print(json.dumps(watch.seen() | {'hot': hot()}))"
    )
    words = [sys.executable, "-c", script]
    told = subprocess.run(words, env=os.environ | driver.environment(), capture_output=True, text=True, check=True)
    seen = json.loads(told.stdout)
    assert seen["vram_mib"] == 792
    assert (seen["gpu_celsius"], seen["power_w"], seen["throttled"], seen["hot"]) == (92, 219.5, "power, thermal", True)
    assert seen["ram_mib"] > 5
