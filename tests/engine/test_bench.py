"""`garra bench` as people run it, held against what a tap between it and the server sees."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import Garra, eventually, words

QUICK = "-c 1,2 -n 3 --repeats 2 --prompt-tokens 64 --output-tokens 24".split()


Pieces = list[tuple[float, bytes]]


@dataclass
class Exchange:
    """The bytes of one connection, each piece with the time it passed."""

    asked: Pieces = field(default_factory=list)
    answered: Pieces = field(default_factory=list)

    def tokens(self) -> list[float]:
        """When token-bearing chunks passed, found by search in the raw bytes and not by garra's own reader."""
        seen, times = b"", []
        for at, piece in self.answered:
            before = len(re.findall(rb'"delta":\{[^}]*"content":"(?!")', seen))
            seen += piece
            after = len(re.findall(rb'"delta":\{[^}]*"content":"(?!")', seen))
            times += [at] * (after - before)
        return times


@contextmanager
def tapped(url: str) -> Iterator[tuple[str, list[Exchange]]]:
    """The address of a relay to `url`, and what passes through it."""
    host, port = url.removeprefix("http://").split(":")
    seen: list[Exchange] = []
    ready, over = threading.Event(), asyncio.Event()
    address = ""
    loop = asyncio.new_event_loop()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        exchange = Exchange()
        seen.append(exchange)

        async def pump(
            source: asyncio.StreamReader, sink: asyncio.StreamWriter, kept: list[tuple[float, bytes]]
        ) -> None:
            while piece := await source.read(65536):
                kept.append((loop.time(), piece))
                sink.write(piece)
            sink.close()

        pumps = (pump(reader, up_writer, exchange.asked), pump(up_reader, writer, exchange.answered))
        await asyncio.gather(*pumps, return_exceptions=True)

    async def main() -> None:
        nonlocal address
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await over.wait()
        server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    ready.wait(60)
    try:
        yield address, seen
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def completions(seen: list[Exchange], n_tokens: int) -> list[Exchange]:
    return [one for one in seen if one.asked and b"/v1/chat/completions" in one.asked[0][1] and len(one.tokens()) > 1]


def test_its_figures_are_those_of_a_tap_in_the_same_run(served: Garra, tmp_path: Path) -> None:
    """Within 1 %. A burst of another program between tap and bench may spoil one run; not three."""
    off: dict[str, float] = {}
    for _ in range(3):
        off = {name: ratio for name, ratio in told_over_tapped(served, tmp_path).items() if abs(ratio - 1) > 0.01}
        if not off:
            return
    raise AssertionError(off)


def told_over_tapped(served: Garra, tmp_path: Path) -> dict[str, float]:
    out = tmp_path / "run.json"
    words = ["bench", "", "--model", "demo", "-c", "2", "-n", "6", "--repeats", "2", "--prompt-tokens", "200"]
    with tapped(served.url) as (address, seen):
        words[1] = address
        done = served.run(*words, "--output-tokens", "48", "-o", str(out), timeout=300)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(out.read_text())["cells"]
    assert cell["completed"] == 12
    assert cell["prompt_off_by"] == 0
    measured = completions(seen, 48)[-12:]
    ttfts = [one.tokens()[0] - one.asked[0][0] for one in measured]
    tpots = [(one.tokens()[-1] - one.tokens()[0]) / 47 for one in measured]
    rounds = (measured[:6], measured[6:])
    spans = [max(one.answered[-1][0] for one in some) - min(one.asked[0][0] for one in some) for some in rounds]
    return {
        "ttft": cell["median_ttft_ms"] / (statistics.median(ttfts) * 1e3),
        "tpot": cell["median_tpot_ms"] / (statistics.median(tpots) * 1e3),
        "throughput": cell["output_throughput"] / (12 * 48 / sum(spans)),
    }


def test_a_profile_nobody_serves_is_served_for_the_measurement(garra: Garra, tmp_path: Path) -> None:
    out, picture = tmp_path / "run.json", tmp_path / "run.svg"
    done = garra.run("bench", "demo", *QUICK, "--label", "first", "-o", str(out), "--plot", str(picture), timeout=300)
    assert done.returncode == 0, done.stderr
    assert "garra is not running: it serves demo" in done.stderr
    assert garra.run("status").returncode == 8
    assert re.search(r"chat c1\s+chat c2", done.stdout)
    assert "load: " in done.stdout
    told = json.loads(out.read_text())
    for cell in told["cells"]:
        assert cell["completed"] == 6
        assert cell["prompt_off_by"] == 0
        assert set(cell["input_lens"]) == {64}
        assert set(cell["output_lens"]) == {24}
        assert cell["p50_prefill_ms"] < cell["p50_ttft_ms"]
        assert cell["seen_ram_mib"] > 100
    assert picture.read_text().startswith("<?xml")
    listed = json.loads(garra.run("bench", "list", "--json").stdout)
    assert [row["label"] for row in listed] == ["first"]
    again = garra.run("bench", "compare", "first", str(out))
    assert again.returncode == 0
    assert "faster" not in again.stdout
    assert "slower" not in again.stdout


def test_loops_workloads_and_leaving_clients(served: Garra) -> None:
    def cells(*words: str) -> list[dict[str, Any]]:
        done = served.run("bench", "demo", *words, "--json", timeout=300)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["cells"]
        return found

    tokens = ["--output-tokens", "8", "--repeats", "1"]
    kinds = [word for name in ("agent", "shared_prefix", "json", "code_edit") for word in ("-w", name)]
    many = cells("-c", "2", "-n", "2", "--prompt-tokens", "160", *tokens, *kinds)
    by_name = {cell["workload"]: cell for cell in many}
    assert by_name["agent"]["completed"] == 8  # four turns each
    assert by_name["agent"]["cache_hit_rate"] > 0.3
    assert by_name["shared_prefix"]["cache_hit_rate"] > 0.2
    assert all(cell["failed"] == 0 for cell in many)
    (opened,) = cells("--rate", "4", "--pattern", "constant", "-n", "4", "--prompt-tokens", "64", *tokens)
    assert opened["request_rate"] == 4
    assert opened["duration"] > 0.75
    (left,) = cells(
        "-c", "2", "-n", "4", "--cancel", "1", "--prompt-tokens", "64", "--output-tokens", "64", "--repeats", "1"
    )
    assert left["endings"] == {"cancelled": 4}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:9"], "nobody at http://127.0.0.1:9 answers"),
        (["demo", "-w", "chta"], 'there is no workload "chta"'),
        (["demo", "-c", "0"], "not above 0"),
        (["demo", "--slo", "speed=3"], "as a limit"),
        (["compare", "a", "b"], 'no run is called "a"'),
    ],
)
def test_what_is_wrong_is_named(served: Garra, words: list[str], said: str) -> None:
    done = served.run("bench", *words)
    assert done.returncode != 0
    assert said in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr


def test_live_traffic_is_recorded_without_a_word_of_it_and_asked_again(garra: Garra, tmp_path: Path) -> None:
    garra.configure("[profiles.demo]\nslots = 1").up("demo")  # so that who comes early finds what the one before left
    path = tmp_path / "day.jsonl"
    command = [sys.executable, "-m", "garra", "bench", "record", "-o", str(path)]
    with subprocess.Popen(command, env=garra.env, stderr=subprocess.PIPE, text=True) as recorder:
        assert recorder.stderr is not None
        assert "recording" in recorder.stderr.readline()
        handbook = "The secret handbook says: " + words(120)
        for question in ("Who?", "Why?", "And then?"):
            messages = [{"role": "system", "content": handbook}, {"role": "user", "content": question}]
            body = {"model": "demo", "max_tokens": 12, "messages": messages, "ignore_eos": True}
            assert httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=180).status_code == 200
        eventually(lambda: path.read_text().count("\n") >= 4)
        recorder.send_signal(signal.SIGINT)
        assert recorder.wait(60) == 0
        assert f"3 requests in {path}" in recorder.stderr.read()
    told = path.read_text()
    assert "secret" not in told
    rows = [json.loads(line) for line in told.splitlines()[1:]]
    assert rows[0]["blocks"][:2] == rows[1]["blocks"][:2]
    assert rows[1]["n_cached"] > 100
    assert [said["role"] for said in rows[0]["messages"]] == ["system", "user"]
    done = garra.run("bench", "replay", str(path), "--speed", "2", "--json", timeout=120)
    assert done.returncode == 0, done.stderr
    (cell,) = json.loads(done.stdout)["cells"]
    assert cell["completed"] == 3
    assert set(cell["output_lens"]) == {12}
    assert cell["cache_hit_rate"] > 0.3  # what shared a beginning shares one again
    path.write_text("{}\n")
    assert "is no recording" in garra.run("bench", "replay", str(path)).stderr


def test_loads_and_swaps_are_timed(garra: Garra, demo_model: Path) -> None:
    garra.configure(
        f'memory_budget_mib = 900\n[profiles.other]\nmodel = "file:{demo_model}"\ncontext = 8192\nmin_resident_s = 0\n'
        "[profiles.demo]\nmin_resident_s = 0"
    ).up("demo")
    words = "-c 1 -n 1 --repeats 2 --prompt-tokens 48 --output-tokens 8 --cold 2 --swap other".split()
    done = garra.run("bench", "demo", *words, "--json", timeout=200)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["garra_run"]
    assert len(told["load_ms"]) == 2
    assert len(told["swap_ms"]) == 2
    assert min(told["load_ms"] + told["swap_ms"]) > 50
    too_long = garra.run("bench", "demo", "--prompt-tokens", "9000")
    assert too_long.returncode == 2
    assert "do not fit into a context of 8192" in too_long.stderr
