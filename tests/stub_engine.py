#!/usr/bin/env python3
"""A scripted stand-in for what a real llama-server will not do on demand. `STUB` in the environment says what.

ignore_term   serves, and ignores SIGTERM
exit3         exits with status 3 at once
deaf          never listens
flood         serves, and fills its log without a line end
garbage       healthy, but answers completions with bytes that are not HTTP
cut           healthy; streams one whole event and half of another, then dies
slots         says it has one slot more than asked for
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


def argument(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        slots = int(argument("-np"))
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
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/completion":
            self.answer({"tokens_predicted": 1})
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

    def answer(self, body: Any) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self) -> Any:
        connection, _ = super().get_request()
        return connection, ("local", 0)


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
    if STUB == "flood":
        threading.Thread(target=flood, daemon=True).start()
    Server(argument("--host"), Handler).serve_forever()


if __name__ == "__main__":
    main()
