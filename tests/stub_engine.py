#!/usr/bin/env python3
"""A scripted stand-in for what a real llama-server will not do on demand. `STUB` in the environment says what.

ignore_term   serves, and ignores SIGTERM
exit3         exits with status 3 at once
deaf          never listens
flood         serves, and fills its log without a line end
garbage       healthy, but answers completions with bytes that are not HTTP
cut           healthy; streams one whole event and half of another, then dies
slots         says it has one slot more than asked for
sick          healthy and warm, and answers 500 to every request; after five of them to its warm-up as well
dies          dies at each request, before it answers; a body with "fine" in it is answered
late          streams 10 events, the first after 0.1 s, 50 a second
ledger        like late, and writes every request it gets, and every first byte it sends, to the file LEDGER
hungry        runs out of GPU memory while loading if its cache has more than STUB_CELLS cells
starves       the same, but only at its first request
stuck         streams one event, and then nothing more, though it is healthy and says that its slots are busy
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from typing import Any

STUB = os.environ.get("STUB", "")
EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\n\n'
LAST = (
    b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"timings":{"prompt_n":3,"prompt_ms":2.0,"predicted_n":10}}\n\n'
)

ENDS = {
    "/v1/messages": b'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    "/v1/responses": b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
}
"""How streams of other APIs say that they are whole; what they say before is of no matter here."""

LOCK = threading.Lock()
COUNT = {"busy": 0, "failed": 0}


def argument(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        slots = int(argument("-np"))
        if self.path == "/slots":
            self.answer([{"id": n, "is_processing": n < COUNT["busy"], "id_task": 1} for n in range(slots)])
            return
        context = int(argument("-c")) // slots
        self.answer(
            {
                "total_slots": slots + (STUB == "slots"),
                "default_generation_settings": {"n_ctx": context},
                "model_path": argument("--model"),
                "build_info": "stub",
            }
        )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/completion" and COUNT["failed"] < 5:
            self.answer({"tokens_predicted": 1})
        elif STUB == "starves" and cells() > int(os.environ["STUB_CELLS"]):
            run_out("decode")
        elif STUB == "sick":
            COUNT["failed"] += 1
            self.answer({"error": {"code": 500, "message": "the stub is sick"}}, 500)
        elif STUB == "dies" and b"fine" not in body:
            os._exit(9)
        elif STUB in ("late", "ledger", "stuck"):
            self.stream(json.loads(body).get("user", ""))
        elif STUB == "garbage":
            self.wfile.write(b"\x00\x01 what?\r\n\r\n")
            self.close_connection = True
        elif STUB == "cut":
            event = b'data: {"choices":[]}\n\n'
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"%x\r\n%b\r\n" % (len(event), event)
                + b"%x\r\ndata: {" % len(event)
            )
            self.wfile.flush()
            os._exit(9)
        else:
            self.answer({"choices": [{"message": {"role": "assistant", "content": "stub"}}]})

    def stream(self, name: str) -> None:
        COUNT["busy"] += 1
        try:
            enter(f"got {name}")
            time.sleep(0.1)
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
                + b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
            )
            enter(f"sent {name}")
            while STUB == "stuck":
                time.sleep(0.1)
            for event in (*[EVENT] * 9, LAST, ENDS.get(self.path, b""), b"data: [DONE]\n\n"):
                if not event:
                    continue
                time.sleep(0.02)
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass
        finally:
            COUNT["busy"] -= 1
            self.close_connection = True

    def answer(self, body: Any, status: int = 200) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> Any:
        connection, _ = super().get_request()
        return connection, ("local", 0)


def enter(line: str) -> None:
    """One line of the ledger, on disk before anything else happens."""
    if STUB == "ledger":
        with LOCK, open(os.environ["LEDGER"], "a") as ledger:
            ledger.write(line + "\n")
            ledger.flush()
            os.fsync(ledger.fileno())


def cells() -> int:
    """Of its whole cache, as if a q8_0 cell were half as large as an f16 one."""
    return int(argument("-c")) // (2 if argument("--cache-type-k") == "q8_0" else 1)


def run_out(where: str) -> None:
    print(
        f"0.00.001.000 E ggml_backend_cuda_buffer_type_alloc_buffer: {where}: cudaMalloc failed: out of memory",
        flush=True,
    )
    os._exit(1)


def hold_vram(mib: str) -> None:
    """Be seen by the stub of the driver's library, for as long as it lives."""
    machine = os.environ["STUB_NVML"]
    mine = f"process 0 {os.getpid()} {mib}\n"

    def rewrite(change: Any) -> None:
        with open(machine) as file:
            lines = file.readlines()
        with open(f"{machine}.{os.getpid()}", "w") as file:
            file.writelines(change(lines))
        os.replace(f"{machine}.{os.getpid()}", machine)

    def let_go(*_: object) -> None:
        rewrite(lambda lines: [line for line in lines if line != mine])
        os._exit(0)

    signal.signal(signal.SIGTERM, let_go)
    rewrite(lambda lines: [*lines, mine])


def flood() -> None:
    while True:
        sys.stdout.write("x" * 100_000)
        time.sleep(0.001)


def main() -> None:
    if STUB == "exit3":
        print("0.00.001.000 E srv  the stub wants to exit", flush=True)
        sys.exit(3)
    if STUB == "ignore_term":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if STUB == "deaf":
        signal.pause()
    if STUB == "hungry" and cells() > int(os.environ["STUB_CELLS"]):
        run_out("KV cache")
    if "STUB_VRAM_MIB" in os.environ:
        hold_vram(os.environ["STUB_VRAM_MIB"])
    if STUB == "flood":
        threading.Thread(target=flood, daemon=True).start()
    Server(argument("--host"), Handler).serve_forever()


if __name__ == "__main__":
    main()
