"""Whether a model of so many bytes may fit: a guess for lists."""

from __future__ import annotations

import pytest

from garra.host import Gpu
from garra.planner.guess import fit
from garra.planner.room import Room

GB = 1_000_000_000
CARD = Room("CUDA0", Gpu(0, "NVIDIA GeForce RTX 3070", 8192, 7800), 7400, 20_000)
LAPTOP = Room(None, None, 0, 14_000)


@pytest.mark.parametrize(
    ("gigabytes", "on_card", "on_laptop"),
    [
        (0.1, "GPU", "CPU"), (2.7, "GPU", "CPU"), (5.6, "GPU", "CPU"), (9.5, "GPU+CPU", "CPU"), (18, "GPU+CPU", "no"),
        (40, "no", "no"),
    ],
)  # fmt: skip
def test_the_gpu_first_then_both_then_the_cpu(gigabytes: float, on_card: str, on_laptop: str) -> None:
    assert fit(int(gigabytes * GB), CARD) == on_card
    assert fit(int(gigabytes * GB), LAPTOP) == on_laptop
