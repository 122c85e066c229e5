"""GPUs that are not there: the stub of the driver's library, compiled, and the file that says what it shows."""

from __future__ import annotations

import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("stub_nvml.c")
RTX_3070 = "NVIDIA GeForce RTX 3070"
RTX_3090 = "NVIDIA GeForce RTX 3090"


class StubDriver:
    """Write what the driver shall say; the next call sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.machine = folder / "machine"
        self.machine.touch()
        library = folder / "libnvidia-ml.so.1"
        if not library.exists():
            subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(SOURCE)], check=True)

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": str(self.folder), "STUB_NVML": str(self.machine)}

    def show(self, *lines: str) -> None:
        """The whole machine, in one step: a reader sees the old or the new."""
        fresh = self.machine.with_suffix(".new")
        fresh.write_text("\n".join(lines) + "\n")
        fresh.replace(self.machine)

    def add(self, line: str) -> None:
        self.show(*self.machine.read_text().splitlines(), line)


def gpu(total_mib: int = 8192, used_mib: int = 300, *, name: str = RTX_3070, cc: str = "8.6", state: str = "ok") -> str:
    return f"gpu {total_mib} {used_mib} {cc} {state} {name}"
