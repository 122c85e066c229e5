"""What garra's proxy costs: engine direct, garra, and nginx where it is installed, interleaved in one run.

Two parts. With a C stub for an engine (same wire format, no model) the proxy's own cost shows: latency per event, CPU
per event, requests per second, added time to the first token; garra and nginx share one core, stub and load client
another. With the real engine and the demo model: tokens per second at 1 and 4 streams, and 500 short streams back to
back.

    python benchmarks/proxy_overhead.py [--quick] [--check]

`--check` fails when a gate is missed. The last line is one JSON object. Ratios are medians over rounds of paired
values.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness.stubs import compile_tool, stubbed  # noqa: E402
from benchmarks.harness.verdict import conclude, parser  # noqa: E402
from tests.support import Garra  # noqa: E402

Sample = dict[str, float]
PROXY_CORE, LOAD_CORE = 0, 1
STUB_SETTINGS = 'mode = "high_throughput"\nslots = 128\ncontext = 512\n'

GATES: dict[str, tuple[Callable[[float], bool], str, str]] = {
    # name: (holds, gate, stretch)
    "tok_s_ratio_c1": (lambda v: v >= 0.97, ">= 0.97", ">= 0.99"),
    "tok_s_ratio_c4": (lambda v: v >= 0.97, ">= 0.97", ">= 0.99"),
    "added_ttft_ratio": (lambda v: v <= 2.5, "<= 2.5", "<= 1.6"),
    "event_p50_ratio": (lambda v: v <= 1.3, "<= 1.3", "<= 1.1"),
    "event_p95_ratio": (lambda v: v <= 2.0, "<= 2", "<= 1.5"),
    "cpu_event_ratio": (lambda v: v <= 1.4, "<= 1.4", "<= 1.15"),
    "req_s_ratio": (lambda v: v >= 0.15, ">= 0.15", ">= 0.25"),
    "failed_streams": (lambda v: v == 0, "0", "0"),
    "idle_rss_mb": (lambda v: v <= 80, "<= 80", "<= 50"),
}


@dataclass
class Bench:
    """Compiled tools, a scratch folder, and what was measured so far."""

    folder: Path
    load: Path = field(init=False)

    def __post_init__(self) -> None:
        self.load = compile_tool("load", self.folder)

    def body(self, **fields: Any) -> Path:
        """A request body as a file."""
        path = self.folder / f"body-{abs(hash(json.dumps(fields)))}.json"
        path.write_text(json.dumps({"model": "demo", **fields}, separators=(",", ":")))
        return path

    def run(self, mode: str, target: str, body: Path, concurrency: int, amount: float, *, pin: bool) -> Sample:
        """One run of the load client."""
        command = [str(self.load), mode, target, str(body), str(concurrency), f"{amount:g}"]
        pinned = {"preexec_fn": lambda: os.sched_setaffinity(0, {LOAD_CORE})} if pin else {}
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600, **pinned)  # type: ignore[call-overload]
        sample: Sample = json.loads(done.stdout)
        return sample


@contextlib.contextmanager
def nginx_for(bench: Bench, socket: str) -> Iterator[tuple[str, int] | None]:
    """One nginx worker in front of the same engine: its address and the worker's pid."""
    program = shutil.which("nginx")
    if program is None:
        yield None
        return
    port = 18_080
    conf = bench.folder / "nginx.conf"
    conf.write_text(f"""
worker_processes 1;
{"user root;" if os.getuid() == 0 else ""}
pid {bench.folder}/nginx.pid;
error_log {bench.folder}/nginx.err;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  client_body_temp_path {bench.folder}/cb; proxy_temp_path {bench.folder}/pt; fastcgi_temp_path {bench.folder}/ft;
  uwsgi_temp_path {bench.folder}/ut; scgi_temp_path {bench.folder}/st;
  keepalive_requests 1000000;
  upstream engine {{ server unix:{socket}; keepalive 64; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
""")
    process = subprocess.Popen([program, "-c", str(conf), "-g", "daemon off;"], start_new_session=True)
    try:
        worker = eventually(lambda: psutil.Process(process.pid).children())[0]
        yield f"127.0.0.1:{port}", worker.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise SystemExit("the benchmark's set-up did not come up")


def pin_to(pid: int, core: int) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def cpu_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def stub_part(bench: Bench, rounds: int, quick: bool) -> dict[str, Any]:
    """The proxy's own cost, in front of an engine that costs nothing."""
    with stubbed(STUB_SETTINGS) as garra:
        assert garra.process is not None
        rss_mb = psutil.Process(garra.process.pid).memory_info().rss / 1e6
        pin = (os.cpu_count() or 1) > 1
        with nginx_for(bench, garra.engine_socket()) as nginx:
            pids = {"garra": garra.process.pid} | ({"nginx": nginx[1]} if nginx else {})
            targets = {"direct": f"unix:{garra.engine_socket()}", "garra": garra.url.removeprefix("http://")}
            if nginx:
                targets["nginx"] = nginx[0]
            if pin:
                pin_to(garra.engine_pid(), LOAD_CORE)
                for pid in pids.values():
                    pin_to(pid, PROXY_CORE)
            n_events = 100 if quick else 250
            ttft = bench.body(stream=True, events=2, delay_us=2000)
            ticking = bench.body(stream=True, events=n_events, interval_us=20_000, jitter_us=20_000)
            plain = bench.body()
            measured: dict[str, list[Sample]] = {name: [] for name in targets}
            for number in range(rounds + 1):  # the first round warms up
                for name, target in list(targets.items())[:: 1 if number % 2 else -1]:
                    first = bench.run("streams", target, ttft, 1, 200 if quick else 400, pin=pin)
                    before = cpu_s(pids[name]) if name in pids else 0.0
                    ticks = bench.run("streams", target, ticking, 100, 100, pin=pin)
                    spent = cpu_s(pids[name]) - before if name in pids else 0.0
                    small = bench.run("requests", target, plain, 32, 1 if quick else 2, pin=pin)
                    if number:
                        measured[name].append(
                            {
                                "ttft_us": first["ttft_p50_us"],
                                "p50_us": ticks["event_p50_us"],
                                "p95_us": ticks["event_p95_us"],
                                "p99_us": ticks["event_p99_us"],
                                "cpu_event_us": spent / ticks["events"] * 1e6,
                                "req_s": small["req_s"],
                                "failed": first["failed"] + ticks["failed"] + small["failed"],
                            }
                        )
            for name, samples in measured.items():
                told = {key: round(statistics.median(s[key] for s in samples), 1) for key in samples[0]}
                print(f"stub, {name:<7} {told}", file=sys.stderr)
            return judge_stub(measured) | {"idle_rss_mb": round(rss_mb, 1)}


def judge_stub(measured: dict[str, list[Sample]]) -> dict[str, Any]:
    def added(name: str) -> float:
        pairs = zip(measured[name], measured["direct"], strict=True)
        return statistics.median((s["ttft_us"] - d["ttft_us"]) / 1e3 for s, d in pairs)

    result: dict[str, Any] = {"added_ttft_ms": round(added("garra"), 3), "nginx_added_ttft_ms": None}
    names = {
        "event_p50_ratio": "p50_us",
        "event_p95_ratio": "p95_us",
        "cpu_event_ratio": "cpu_event_us",
        "req_s_ratio": "req_s",
    }
    if "nginx" not in measured:
        return result | dict.fromkeys([*names, "added_ttft_ratio"])
    for ratio, key in names.items():
        pairs = zip(measured["garra"], measured["nginx"], strict=True)
        result[ratio] = round(statistics.median(g[key] / n[key] for g, n in pairs), 3)
    result["nginx_added_ttft_ms"] = round(added("nginx"), 3)
    result["added_ttft_ratio"] = round(added("garra") / added("nginx"), 2)
    result["failed_streams"] = sum(sample["failed"] for sample in measured["garra"])
    return result


def engine_part(bench: Bench, rounds: int, quick: bool) -> dict[str, Any]:
    """The same engine asked directly and through garra: tokens per second, and streams back to back."""
    garra = Garra().up("demo")
    try:
        targets = {"direct": f"unix:{garra.engine_socket()}", "garra": garra.url.removeprefix("http://")}
        answer = bench.body(
            stream=True,
            max_tokens=96,
            ignore_eos=True,
            messages=[{"role": "user", "content": "Tell me about the sea."}],
        )
        short = bench.body(stream=True, max_tokens=4, messages=[{"role": "user", "content": "Say hi."}])
        result: dict[str, Any] = {}
        for concurrency, count in ((1, 4), (4, 12)):
            ratios, firsts = [], []
            for number in range(rounds + 1):
                pair: dict[str, Sample] = {}
                for name, target in list(targets.items())[:: 1 if number % 2 else -1]:
                    pair[name] = bench.run("streams", target, answer, concurrency, count, pin=False)
                if number:
                    rates = {name: sample["events"] / sample["seconds"] for name, sample in pair.items()}
                    ratios.append(rates["garra"] / rates["direct"])
                    firsts.append(pair["garra"]["ttft_p50_us"] - pair["direct"]["ttft_p50_us"])
                    print(
                        f"engine, c={concurrency}: events/s { ({k: round(v, 1) for k, v in rates.items()}) }",
                        file=sys.stderr,
                    )
            result[f"tok_s_ratio_c{concurrency}"] = round(statistics.median(ratios), 4)
            result[f"engine_added_ttft_ms_c{concurrency}"] = round(statistics.median(firsts) / 1e3, 2)
        n_streams = 100 if quick else 500
        failed = 0.0
        for concurrency in (1, 4):
            run = bench.run("streams", targets["garra"], short, concurrency, n_streams // 2, pin=False)
            failed += run["failed"]
        print(f"engine: {n_streams} streams back to back, {failed:g} failed", file=sys.stderr)
        return result | {"engine_failed_streams": failed}
    finally:
        garra.close()


def main() -> int:
    options_parser = parser(__doc__)
    options_parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    options = options_parser.parse_args()
    rounds = 3 if options.quick else 5
    with tempfile.TemporaryDirectory(prefix="gb-") as folder:
        bench = Bench(Path(folder))
        result = stub_part(bench, rounds, options.quick) | engine_part(bench, rounds, options.quick)
    result["failed_streams"] = int(result.get("failed_streams", 0) + result.pop("engine_failed_streams"))
    missed = []
    for name, (holds, gate, stretch) in GATES.items():
        value = result.get(name)
        verdict = "not measured" if value is None else "ok" if holds(value) else "MISSED"
        if verdict == "MISSED":
            missed.append(name)
        print(f"{name:<18} {value!s:>9}   gate {gate:<8} stretch {stretch:<8} {verdict}", file=sys.stderr)
    return conclude(result, missed, check=options.check)


if __name__ == "__main__":
    sys.exit(main())
