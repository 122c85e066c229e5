"""Requests no client should send: garra answers in the shape of the API, or closes; it never errs, hangs or grows."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from garra.apis.routes import ROUTES
from tests.engine.conftest import Make
from tests.support import Garra, eventually

ROUNDS = 20_000 if os.environ.get("GARRA_TEST_SOAK") else 3_000
AT_ONCE = 64
GROWTH_MIB = 24
PATHS = [route.path for route in ROUTES] + [
    "/api/chat", "/api/generate", "/api/embed", "/api/show", "/api/pull", "/api/copy", "/api/delete", "/api/tags", "/",
    "/v1/models", "/v1/models/demo", "/registry/search", "/registry/download", "/models/load", "/health", "/metrics",
]  # fmt: skip
GOOD = b'{"model":"demo","messages":[{"role":"user","content":"hi"}],"stream":true}'


def head(method: str, path: str, *lines: str, length: int | None = None) -> bytes:
    told = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", *lines]
    told += [f"Content-Length: {length}"] if length is not None else []
    return "\r\n".join([*told, "", ""]).encode("latin-1", "replace")


def post(rng: random.Random, body: bytes, *lines: str) -> bytes:
    return head("POST", rng.choice(PATHS), *lines, length=len(body)) + body


def mangled(rng: random.Random, data: bytes) -> bytes:
    """A few bytes changed, lost or doubled."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(changed)) if changed else 0
        match rng.randint(0, 2):
            case 0 if changed:
                changed[at] = rng.randrange(256)
            case 1 if changed:
                del changed[at]
            case _:
                changed[at:at] = bytes([rng.randrange(256)])
    return bytes(changed)


def value(rng: random.Random, depth: int = 0) -> object:
    """Any JSON."""
    kinds: list[Callable[[], object]] = [
        lambda: None, lambda: rng.choice((True, False)), lambda: rng.choice((-1, 0, 10**30, 1e308, -0.0)),
        lambda: rng.choice(("", "demo", "x" * 300, "\u0000", "\ud83d", "system", "data:image/png;base64,x")),
    ]  # fmt: skip
    if depth < 4:
        kinds += [
            lambda: [value(rng, depth + 1) for _ in range(rng.randint(0, 4))],
            lambda: {rng.choice(FIELDS): value(rng, depth + 1) for _ in range(rng.randint(0, 5))},
        ]
    return rng.choice(kinds)()


FIELDS = (
    "model messages role content stream tools tool_choice input prompt suffix options format think keep_alive images "
    "instructions text type function name arguments system response_format max_tokens stop truncate source destination"
).split()


def odd_json(rng: random.Random) -> bytes:
    asked = {rng.choice(FIELDS): value(rng) for _ in range(rng.randint(0, 6))}
    if rng.random() < 0.7:
        asked["model"] = "demo"
    return json.dumps(asked).encode()


def numbers(rng: random.Random) -> bytes:
    return rng.choice((b"-1", b"1e3", b"+5", b"0x10", b"", b" ", b"99999999999999999999", b"5, 6", b"\xb2"))


def encoded(rng: random.Random) -> bytes:
    return (
        head("POST", rng.choice(PATHS), f"Content-Encoding: {rng.choice(('gzip', 'br', 'x'))}", length=9) + b"not gzip!"
    )


def wrong_length(rng: random.Random) -> bytes:
    line = b"Host: localhost\r\nContent-Length: " + numbers(rng)
    return b"POST /v1/chat/completions HTTP/1.1\r\n" + line + b"\r\n\r\n" + GOOD


BAD_LINES = ("Bad Header: x", ": x", "X\x00: y", "X-A: \x7f\x01", " folded: y", "Host: other")
BAD_PATHS = ("/%00", "/../../etc/passwd", "//", "/v1/models/%zz", "*", "http://evil.example/", "/\u00e9")
METHODS = ("GET", "PUT", "PATCH", "TRACE", "CONNECT", "OPTIONS", "NONSENSE", "")
OTHER_HTTP = (b"GET /health\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n")
CHUNKED = "Transfer-Encoding: chunked"
KINDS: list[Callable[[random.Random], bytes]] = [
    lambda rng: post(rng, mangled(rng, GOOD)),
    lambda rng: post(rng, odd_json(rng)),
    lambda rng: post(rng, odd_json(rng)),
    lambda rng: post(rng, rng.randbytes(rng.randint(0, 400))),
    lambda rng: post(rng, b"\xff\xfe" + GOOD),
    lambda rng: post(rng, rng.choice((b"[", b'{"model":', b'{"a":[')) * rng.randint(1, 4000)),
    lambda rng: post(rng, b'{"model":"demo","x":' + b"[" * 3000 + b"]" * 3000 + b"}"),
    lambda rng: post(rng, GOOD, "X-Long: " + "a" * rng.randint(7_000, 70_000)),
    lambda rng: post(rng, GOOD, *(f"X-{n}: {n}" for n in range(rng.randint(100, 400)))),
    lambda rng: post(rng, GOOD, rng.choice(BAD_LINES)),
    lambda rng: post(rng, GOOD, CHUNKED),
    lambda rng: head("POST", rng.choice(PATHS), "Content-Length: 5", length=len(GOOD)) + GOOD,
    lambda rng: head("POST", rng.choice(PATHS), f"{CHUNKED}, identity") + GOOD,
    lambda rng: head("POST", rng.choice(PATHS), CHUNKED) + chunks(rng),
    encoded,
    wrong_length,
    lambda rng: head("GET", "/v1/models/" + "a" * rng.randint(100, 20_000)),
    lambda rng: head("GET", rng.choice(BAD_PATHS)),
    lambda rng: head(rng.choice(METHODS), rng.choice(PATHS)),
    lambda rng: rng.choice(OTHER_HTTP),
    lambda rng: rng.randbytes(rng.randint(1, 300)),
    lambda rng: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
    lambda rng: mangled(rng, head("POST", "/v1/chat/completions", length=len(GOOD)) + GOOD),
    lambda rng: head("GET", "/health") * rng.randint(2, 60),
    lambda rng: (head("POST", "/v1/chat/completions", length=len(GOOD)) + GOOD) * 2 + b"garbage",
    lambda rng: post(rng, GOOD, "Host: evil.example"),
    lambda rng: post(rng, GOOD, "Origin: https://evil.example"),
    lambda rng: post(rng, GOOD, "Authorization: Bearer " + "\u00ff" * rng.randint(1, 3000)),
    lambda rng: post(rng, GOOD, "Expect: 100-continue"),
    lambda rng: post(rng, GOOD, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Key: x"),
]


def chunks(rng: random.Random) -> bytes:
    """A chunked body that is wrong in one of many ways."""
    size = b"%x" % len(GOOD)
    return rng.choice((
        b"zz\r\n" + GOOD + b"\r\n0\r\n\r\n",
        b"-5\r\n" + GOOD + b"\r\n0\r\n\r\n",
        b"ffffffffffffffffff\r\n" + GOOD,
        size + b";" + b"x" * 9000 + b"\r\n" + GOOD + b"\r\n0\r\n\r\n",
        size + b"\n" + GOOD + b"\n0\n\n",
        size + b"\r\n" + GOOD + b"XX0\r\n\r\n",
        size + b"\r\n" + GOOD + b"\r\n0\r\nTrailer: x\r\n\r\n",
        b"1\r\n{\r\n" * 500 + b"0\r\n\r\n",
        b"0\r\n\r\n" + GOOD,
    ))  # fmt: skip


def endings(rng: random.Random, data: bytes) -> bytes:
    """Now and then only a part is sent."""
    return data[: rng.randrange(len(data))] if data and rng.random() < 0.15 else data


STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


def statuses(answer: bytes) -> list[tuple[int, bytes]]:
    """Every response in what came back, with what follows its head."""
    borders = [*(found.start() for found in STATUS.finditer(answer)), len(answer)]
    parts = [answer[a:b] for a, b in itertools.pairwise(borders)]
    return [(int(part[9:12]), part.partition(b"\r\n\r\n")[2]) for part in parts]


async def send(port: int, data: bytes, silence_s: float = 30) -> bytes:
    """What comes back until the server ends it, or is silent for so long."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = bytearray()
    try:
        with contextlib.suppress(ConnectionError, TimeoutError):
            writer.write(data)
            await writer.drain()
            while piece := await asyncio.wait_for(reader.read(65536), silence_s):
                answer += piece
        return bytes(answer)
    finally:
        writer.transport.abort()


@pytest.fixture
def garra(stubbed: Make) -> Garra:
    return stubbed("", "slots = 8\nmax_queue = 1000", 'log_format = "json"\nbody_limit_mib = 4').up("demo")


def rss_mib(garra: Garra) -> float:
    assert garra.process is not None
    return float(psutil.Process(garra.process.pid).memory_info().rss / 2**20)


def test_malformed_requests(garra: Garra) -> None:
    port = int(garra.url.rpartition(":")[2])
    assert garra.process is not None
    own = psutil.Process(garra.process.pid)

    answered: Counter[int] = Counter()

    async def storm(rounds: range) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def one(n: int) -> None:
            rng = random.Random(n)
            data = endings(rng, KINDS[n % len(KINDS)](rng))
            async with limit:
                answer = await send(port, data, silence_s=0.7)  # most that is cut short is waited for, and rightly
            for status, body in statuses(answer):
                answered[status] += 1
                assert status < 500 or status in (501, 503), (n, status, data[:300], body[:300])
                if status >= 400 and body.strip():
                    error = json.loads(body)["error"]
                    assert isinstance(error, str) or error["message"], (n, data[:300])

        await asyncio.gather(*(one(n) for n in rounds))

    asyncio.run(storm(range(500)))  # what grows once is no leak
    before = rss_mib(garra), own.num_fds(), garra.status()["tasks"]
    asyncio.run(storm(range(500, 500 + ROUNDS)))
    eventually(lambda: own.num_fds() <= before[1] + 4)
    eventually(lambda: garra.status()["tasks"] <= before[2] + 2)
    assert rss_mib(garra) - before[0] < GROWTH_MIB
    assert answered.total() > 0.75 * ROUNDS
    assert {200, 400, 403, 404} <= set(answered)
    assert garra.engine()["restarts"] == 0
    assert [line for line in garra.said.splitlines() if "a bug in garra" in line] == []
    report = garra.report()
    assert report["engine"]["leases"] == report["engine"]["waiting"] == 0


def test_those_who_never_finish_hold_nobody_up(garra: Garra) -> None:
    """Slow heads and bodies by the hundred, and half-open connections; others are served all the while."""
    port = int(garra.url.rpartition(":")[2])
    good = head("POST", "/v1/chat/completions", length=len(GOOD)) + GOOD

    async def crowd() -> list[bytes]:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for n, (_, writer) in enumerate(slow):
            part = good[: 20 + n % (len(good) - 30)]
            writer.write(part)
        answers = [await send(port, good) for _ in range(20)]
        for n, (_, writer) in enumerate(slow):
            if n % 2:
                writer.write(b"X")
        answers += [await send(port, good) for _ in range(20)]
        for _, writer in slow:
            writer.transport.abort()
        return answers

    answers = asyncio.run(crowd())
    assert all(answer.startswith(b"HTTP/1.1 200") for answer in answers)
    eventually(lambda: garra.engine()["leases"] == 0)


def test_a_body_past_the_limit_is_a_413(garra: Garra) -> None:
    port = int(garra.url.rpartition(":")[2])
    for path, where in (("/v1/chat/completions", "message"), ("/v1/messages", "message"), ("/api/chat", None)):
        data = head("POST", path, length=5 * 2**20) + b" " * (5 * 2**20)
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(lambda data=data: asyncio.run(send(port, data))).result(30)  # type: ignore[misc]
        ((status, body),) = statuses(answer)
        assert status == 413, answer[:300]
        error = json.loads(body)["error"]
        assert "4 MiB" in (error[where] if where else error)
