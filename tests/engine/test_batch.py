"""`garra batch` over two garras, each in a network namespace of its own like two workstations, and killed."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests import shapes
from tests.support import Garra, eventually
from tests.tiny_gguf import write

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces"),
    pytest.mark.skipif(shutil.which("ip") is None, reason="needs iproute2"),
]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


KEY = "garra-for-this-test-alone"
DIGEST = hashlib.sha256(KEY.encode()).hexdigest()


class Workstation(Garra):
    """A garra in a namespace, reached over a cable."""

    def __init__(self, number: int, model: Path) -> None:
        super().__init__(OPENAI_API_KEY=KEY)
        self.name = f"gt{os.getpid() % 10_000}n{number}"
        self.address = f"10.213.{number}.2"
        ip("netns", "add", self.name)
        ip("link", "add", f"{self.name}h", "type", "veth", "peer", "name", "eth0", "netns", self.name)
        ip("addr", "add", f"10.213.{number}.1/24", "dev", f"{self.name}h")
        ip("link", "set", f"{self.name}h", "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", self.name, "link", "set", "eth0", "up")
        ip("-n", self.name, "link", "set", "lo", "up")
        self.configure(
            f'host = "{self.address}"\nport = 8080\n[keys.fleet]\nsha256 = "{DIGEST}"\n'
            f'[profiles.demo]\nmodel = "file:{model}"\ncontext = 512\nslots = 4\n'
            'mode = "high_throughput"\nthreads = 1'
        )

    def start(self, *words: str, port: int = 0) -> Garra:
        command = ["ip", "netns", "exec", self.name, sys.executable, "-m", "garra", "up", "demo"]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, env=self.env, stdout=output, stderr=output)
        return self

    def close(self) -> None:
        super().close()
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)


@pytest.fixture
def two(tmp_path: Path, demo_model: Path) -> Iterator[tuple[Workstation, Workstation]]:
    model = write(tmp_path / "tiny.gguf", shapes.qwen35(kind="F32"), seed=3)
    made = (Workstation(1, model), Workstation(2, model))
    try:
        for one in made:
            one.up()
        yield made
    finally:
        for one in made:
            one.close()


def requests(path: Path, n: int) -> Path:
    with path.open("w") as file:
        for number in range(n):
            body = {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": f"{number}"}]}
            row = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(row) + "\n")
    return path


def begin(garra: Garra, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "garra", "batch", *words]
    return subprocess.Popen(command, env=garra.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def grown(path: Path, n_lines: int) -> bool:
    return path.exists() and path.read_bytes().count(b"\n") >= n_lines


def ids(path: Path) -> list[str]:
    return [
        json.loads(line)["custom_id"] for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
    ]


@pytest.mark.timeout(900)
def test_every_request_once_over_two_machines_killed_three_times(
    two: tuple[Workstation, Workstation], tmp_path: Path
) -> None:
    n, dice = 5000, random.Random(11)
    out = tmp_path / "out.jsonl"
    words = [str(requests(tmp_path / "in.jsonl", n)), "-o", str(out)]
    words += [word for one in two for word in ("--url", f"http://{one.address}:8080/v1")]
    so_far = 0
    for kill in range(3):
        child = begin(two[0], *words)
        goal = so_far + dice.randrange(n // 10, n // 5)
        eventually(partial(grown, out, goal), 120)
        child.kill()
        child.communicate()
        so_far = len(ids(out))
        assert so_far < n, f"kill {kill} came too late"
        with out.open("ab") as file:
            file.write(b'{"id":"batch_req_torn","custom_id":"r')  # what a kill in the middle of a write leaves
    done = two[0].run("batch", *words, "--json", timeout=600)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["answered"] + told["answered_before"], told["failed"]) == (n, 0)
    assert Counter(ids(out)) == Counter(f"r{number}" for number in range(n))
    for line in out.read_text().splitlines():
        answer: dict[str, Any] = json.loads(line)
        assert answer["response"]["body"]["choices"][0]["finish_reason"]
    shares = told["servers"].values()
    assert all(share > 0.2 * sum(shares) for share in shares)
    again = two[0].run("batch", *words, "--json")
    assert json.loads(again.stdout)["answered"] == 0


@pytest.mark.timeout(300)
def test_a_machine_that_goes_away_costs_nothing_and_failures_are_written_down(
    two: tuple[Workstation, Workstation], tmp_path: Path
) -> None:
    path, out = requests(tmp_path / "in.jsonl", 400), tmp_path / "out.jsonl"
    with path.open("a") as file:
        body = {"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}
        file.write(json.dumps({"custom_id": "wrong", "body": body}) + "\n")
    words = [str(path), "-o", str(out)]
    words += [word for one in two for word in ("--url", f"http://{one.address}:8080")]
    child = begin(two[0], *words)
    eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= 50)
    two[1].stop()
    said, complaint = child.communicate(timeout=200)
    assert child.returncode == 6, complaint
    assert "1 of 401 requests failed" in complaint
    assert Counter(ids(out)) == Counter(f"r{number}" for number in range(400))
    (wrong,) = [json.loads(line) for line in (tmp_path / "out.errors.jsonl").read_text().splitlines()]
    assert wrong["custom_id"] == "wrong"
    assert wrong["response"]["status_code"] == 404
    assert "400 answered now" in said
    two[0].stop()
    gone = two[0].run("batch", *words, "--retry-errors", "--patience", "2s")
    assert gone.returncode == 6
    assert "no server answers for 2 s" in gone.stderr
    assert "400 of 401 are done and kept" in gone.stderr
