"""The terminal view: goldens of what it shows, and that it fits whatever there is to show."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from garra.downloads import DownloadState, DownloadStatus
from garra.snapshot import Device, EngineStatus, ProfileReport, Recent, SlotState, Snapshot
from garra.spec import Cause, Phase
from garra.traffic import Outcome
from garra.tui.bits import duration, milliseconds, slots, sparkline, stacked
from garra.tui.keys import typed
from garra.tui.pace import Pace
from garra.tui.view import Screen
from garra.tui.words import Page, Told, Watched

GOLDEN = Path(__file__).parents[1] / "golden" / "tui"
TREND = (None,) * 20 + (80.0, 95.0, 120.0, None, 240.0, 480.0, 300.0, 120.0, 90.0, 85.0)


def report(name: str, engine: EngineStatus | None = None, **more: object) -> ProfileReport:
    bare = ProfileReport(
        engine=engine or EngineStatus(name, Phase.COLD, slots=2, slot_context=16384),
        model=f"hf:somebody/{name}:Q4_K_M",
        present=True,
        aliases=(),
        requests={},
        swaps=0,
        retries=0,
        load_s=None,
        decoded=0,
        recent=Recent(),
    )
    return replace(bare, **more)  # type: ignore[arg-type]


BUSY = report(
    "turbo_4b",
    EngineStatus(
        "turbo_4b", Phase.READY, since_s=4321, pid=4711, slots=4, slot_context=32768, leases=2, lingering=1,
        waiting=3, oldest_wait_s=12.4, max_queue=64, pinned=True, restarts=1, rss_mib=812,
        planned_mib={"gpu0": 4872, "host": 597}, drafting="on: 1.6x",
    ),
    requests={Outcome.COMPLETE: 1234, Outcome.LEFT: 3},
    swaps=2,
    decoded=98_765,
    recent=Recent(87, 143.2, 95.0, 480.0, 9.1, TREND),
    slots=(SlotState(True, 7, 812, 0), SlotState(True, 9, 40, 57), SlotState(False, 2, 0, 0), SlotState(True, 8, 1, 5)),
)  # fmt: skip
LOADING = report(
    "balanced_9b", EngineStatus("balanced_9b", Phase.LOADING, since_s=3.2, load_fraction=0.42, slots=2, pid=4712)
)
CRASHED = report(
    "cpu_fallback",
    EngineStatus(
        "cpu_fallback", Phase.BACKOFF, Cause.CRASH, "killed by SIGSEGV at decode; last line: ggml_abort", since_s=2.0,
        slots=2, slot_context=16384, restarts=3,
    ),
)  # fmt: skip
GPU = Device(
    "gpu0", "NVIDIA GeForce RTX 3070", 8192, 1900, planned_mib=4872, used_mib=4790, others_mib=1502,
    temperature_c=71, power_w=188.4, power_limit_w=220, throttled=("power",),
)  # fmt: skip
RAM = Device("host", "RAM", 32000, 20100, planned_mib=597, used_mib=812, others_mib=11088, temperature_c=64.0)
FETCHING = DownloadStatus(
    "d1", "hf:unsloth/Qwen3.5-9B-GGUF:Q4_K_M", DownloadState.RUNNING, done_bytes=2_400_000_000,
    total_bytes=5_700_000_000, bytes_per_s=21_500_000, eta_s=153,
)  # fmt: skip
BROKEN = DownloadStatus("d2", "hf:unsloth/Qwen3.5-2B-GGUF:Q8_0", DownloadState.FAILED, "the disk is full")
SEEN = Snapshot(
    "0.1.0", 31913, "http://127.0.0.1:11434", 7510, "b11434-cuda-3d9c761a", 42,
    (BUSY, LOADING, CRASHED, report("demo", present=False)), (RAM, GPU), (FETCHING, BROKEN),
)  # fmt: skip
EVENTS = tuple(
    Told(f"18:50:{n:02}", kind, profile, detail)
    for n, (kind, profile, detail) in enumerate(
        [
            ("phase", "turbo_4b", "loading"),
            ("phase", "turbo_4b", "ready"),
            ("swap", "demo", "makes room"),
            ("phase", "demo", "cold (evicted)"),
            ("phase", "cpu_fallback", "backoff (crash) killed by SIGSEGV at decode; last line: ggml_abort"),
            ("phase", "balanced_9b", "loading"),
        ]
    )
)
WATCHED = Watched("18:51:17", pace={"turbo_4b": 141.7}, events=EVENTS)


def shown(snapshot: Snapshot, watched: Watched, width: int, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, legacy_windows=False)
    console.print(Screen(snapshot, watched), end="")
    file = console.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().split("\n")]


@pytest.mark.parametrize(
    ("name", "watched", "size"),
    [
        ("80x24", WATCHED, (80, 24)),
        ("160x50", WATCHED, (160, 50)),
        ("crashed_80x24", replace(WATCHED, chosen=2, notice="loading cpu_fallback"), (80, 24)),
        ("silent_80x24", replace(WATCHED, silent_s=12.0), (80, 24)),
        ("help_80x24", replace(WATCHED, page=Page.HELP), (80, 24)),
        ("log_80x24", replace(WATCHED, page=Page.LOG, log=tuple(f"line {n}" for n in range(100))), (80, 24)),
    ],
)
def test_goldens(name: str, watched: Watched, size: tuple[int, int]) -> None:
    lines = shown(SEEN, watched, *size)
    file = GOLDEN / f"{name}.txt"
    if os.environ.get("GARRA_TEST_WRITE"):
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    assert lines == file.read_text().split("\n")[:-1]


@pytest.mark.parametrize("height", [6, 10, 15, 24, 50])
@pytest.mark.parametrize("width", [20, 40, 80, 99, 131, 160, 300])
def test_it_fills_any_terminal_exactly(width: int, height: int) -> None:
    many = replace(SEEN, profiles=tuple(report(f"profile_{n}") for n in range(40)))
    for seen in (SEEN, many, replace(SEEN, profiles=(), devices=(), downloads=())):
        for page in Page:
            lines = shown(
                seen, replace(WATCHED, page=page, chosen=min(33, max(0, len(seen.profiles) - 1))), width, height
            )
            assert len(lines) == height
            assert max(map(len, lines)) <= width


def test_the_chosen_one_of_many_is_seen() -> None:
    many = replace(SEEN, profiles=tuple(report(f"profile_{n}") for n in range(40)))
    for chosen in (0, 1, 20, 38, 39):
        lines = shown(many, replace(WATCHED, chosen=chosen), 80, 24)
        assert [line for line in lines if line.startswith(f"▸ profile_{chosen} ")]


def test_keys() -> None:
    assert typed(b"l\x1b[A\x1bOBq") == ["l", "up", "down", "q"]
    assert typed(b"\x1b") == ["esc"]
    assert typed(b"\x1bl") == ["esc", "l"]
    assert typed(b"\x1b[5~x\x00\xff") == ["x"]


def test_pace_is_of_the_last_seconds() -> None:
    pace = Pace()
    rates: Mapping[str, float] = {}
    for second in range(10):
        rates = pace.note(replace(SEEN, profiles=(replace(BUSY, decoded=100 * second),)), float(second))
    assert rates == {"turbo_4b": 100.0}
    assert pace.note(replace(SEEN, profiles=(replace(BUSY, decoded=3),)), 10.0) == {"turbo_4b": 0.0}, "it began anew"
    assert pace.note(replace(SEEN, profiles=(replace(BUSY, decoded=23),)), 11.0) == {"turbo_4b": 20.0}


def test_bits() -> None:
    assert [duration(s) for s in (0.4, 99, 100, 5999, 7510, 200_000)] == ["0s", "99s", "2m", "100m", "2h05", "2d"]
    assert [milliseconds(ms) for ms in (None, 85.2, 1234, 34_000)] == ["-", "85ms", "1.2s", "34s"]
    assert sparkline([None, 1.0, 4.0, 8.0]) == " ▁▄█"
    assert sparkline([]) == ""
    assert slots(2, 1, 4).plain == "■■◧□"
    assert slots(12, 0, 16).plain == "12/16"
    assert stacked([(1, "█", ""), (5, "▒", "")], 100, 10).plain == "█▒░░░░░░░░", "a little is seen, too"
    assert stacked([(90, "█", ""), (90, "▒", "")], 100, 10).plain == "█████████▒"
    assert stacked([(1, "█", "")], 0, 4).plain == "░░░░"
