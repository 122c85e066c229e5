"""What clients feel of a download: latency per chunk while 2 GB come and are hashed, against quiet in between.

The engine is the C stub (100 streams, about 50 events a second each), the hub a small server of its own on this machine
that sends at a fixed rate, as a line would: by default 200 Mbit/s. Three kinds of rounds take turns in one garra: quiet
ones; the line alone, where curl throws the same bytes away (the sending costs time here that is another machine's
elsewhere); and the download, within which its rounds lie wholly.

    python benchmarks/download_beside.py [--check] [--rate MB_PER_S] [--size GB]

`--check` fails when a target is missed. The last line is one JSON object.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.stubs import compile_tool, stubbed  # noqa: E402
from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from garra.engine import smoke  # noqa: E402

REPO, NAME = "bench/big", "big-Q8_0.gguf"
ROUNDS, N_STREAMS, N_EVENTS = 10, 100, 120
TARGETS = {"event_p95_ratio": 1.3}
SETTINGS = f'mode = "high_throughput"\nslots = {N_STREAMS}\ncontext = 512\n'
_PIECE = 1 << 14


class Hub(BaseHTTPRequestHandler):
    """One repository with one file, sent at a fixed rate."""

    protocol_version = "HTTP/1.1"
    path_of_file: Path
    sha256: str
    bytes_per_s: float

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):
            size = self.path_of_file.stat().st_size
            lfs = {"sha256": self.sha256, "size": size, "pointerSize": 130}
            files = [{"rfilename": NAME, "size": size, "blobId": "b" * 40, "lfs": lfs}]
            body = json.dumps({"id": REPO, "sha": "c" * 40, "siblings": files, "tags": []}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        begin = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
        size = self.path_of_file.stat().st_size
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(size - begin))
        self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        self.end_headers()
        with self.path_of_file.open("rb") as file, contextlib.suppress(OSError):
            at, due = begin, time.monotonic()
            while at < size:
                at += os.sendfile(self.connection.fileno(), file.fileno(), at, _PIECE)
                due += _PIECE / self.bytes_per_s
                time.sleep(max(0.0, due - time.monotonic()))


def serve(file: str, sha256: str, rate: str) -> None:
    """The hub's process: its port is the first line it prints."""
    os.nice(19)  # it stands for another machine
    Hub.path_of_file, Hub.sha256, Hub.bytes_per_s = Path(file), sha256, float(rate) * 1e6
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextlib.contextmanager
def hub(file: Path, rate: float) -> Iterator[str]:
    """Its address."""
    with file.open("rb") as content:
        sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    words = [sys.executable, __file__, "--serve", str(file), sha256, str(rate)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def measure(load: Path, target: str, body: Path) -> dict[str, float]:
    done = subprocess.run(
        [str(load), "streams", target, str(body), str(N_STREAMS), str(N_STREAMS)],
        capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    told: dict[str, float] = json.loads(done.stdout)
    return told


def ratio(some: list[dict[str, float]], others: list[dict[str, float]], key: str) -> float:
    """The median over rounds that follow each other: the machine's mood changes from minute to minute."""
    return round(statistics.median(a[key] / b[key] for a, b in zip(some, others, strict=False)), 3)


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--rate", type=float, default=25.0, help="of the line, MB/s")
    options.add_argument("--size", type=float, default=2.0, help="of the file, GB")
    chosen = options.parse_args()
    quiet: list[dict[str, float]] = []
    line: list[dict[str, float]] = []
    busy: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="gb-") as name:
        folder = Path(name)
        load = compile_tool("load", folder)
        model = smoke.write_noise_model(folder / NAME)
        os.truncate(model, int(chosen.size * 1e9))
        body = folder / "body.json"
        asked = {"model": "demo", "stream": True, "events": N_EVENTS, "interval_us": 20_000, "jitter_us": 20_000}
        body.write_text(json.dumps(asked, separators=(",", ":")))
        with (
            hub(model, chosen.rate) as url,
            stubbed(SETTINGS, HF_ENDPOINT=url, HF_HUB_CACHE=str(folder / "hub")) as garra,
        ):
            target = garra.url.removeprefix("http://")
            measure(load, target, body)  # warms up
            ref = {"ref": f"hf:{REPO}:Q8_0"}
            number = httpx.post(f"{garra.url}/registry/download", json=ref).json()["id"]

            def state() -> dict[str, Any]:
                told: dict[str, Any] = httpx.get(f"{garra.url}/registry/download/{number}").json()
                return told

            def wait_for(states: tuple[str, ...]) -> None:
                while state()["state"] not in states or (states == ("running",) and not state()["done_bytes"]):
                    time.sleep(0.05)

            mb_per_s = []
            for _ in range(ROUNDS):
                wait_for(("running", "done"))
                began = state()
                if began["state"] == "done":
                    break
                wait_for(("running",))
                first, then = state()["done_bytes"], time.monotonic()
                sample = measure(load, target, body)
                after = state()
                if after["state"] == "running":
                    busy.append(sample)
                    mb_per_s.append((after["done_bytes"] - first) / (time.monotonic() - then) / 1e6)
                httpx.post(f"{garra.url}/registry/download/{number}/pause")
                wait_for(("paused", "done"))
                quiet.append(measure(load, target, body))
                with subprocess.Popen(["nice", "-n", "19", "curl", "-s", "-o", os.devnull, f"{url}/bytes"]) as sink:
                    line.append(measure(load, target, body))
                    sink.kill()
                httpx.post(f"{garra.url}/registry/download", json=ref)
            wait_for(("done", "failed"))
            ended = state()
    result: dict[str, Any] = {
        "event_p50_ratio": ratio(busy, quiet, "event_p50_us"),
        "event_p95_ratio": ratio(busy, quiet, "event_p95_us"),
        "event_p99_ratio": ratio(busy, quiet, "event_p99_us"),
        "event_p95_ratio_of_the_line_alone": ratio(line, quiet, "event_p95_us"),
        "ttft_p50_ratio": ratio(busy, quiet, "ttft_p50_us"),
        "quiet_event_p95_us": round(statistics.median(sample["event_p95_us"] for sample in quiet), 1),
        "download_mb_per_s": round(statistics.mean(mb_per_s), 1),
        "rounds": len(busy),
        "failed_streams": sum(sample["failed"] for sample in [*busy, *quiet]),
        "download": ended["state"],
    }
    missed = [name for name, limit in TARGETS.items() if result[name] > limit]
    missed += ["failed_streams"] if result["failed_streams"] else []
    missed += ["download"] if ended["state"] != "done" else []
    missed += ["rounds"] if len(busy) < 2 else []
    return conclude(result, missed, check=chosen.check)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:5])
    sys.exit(main())
