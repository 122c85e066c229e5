"""The unit's text, what systemd is told, and whose runtime folder a command means."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from aiohttp import web

from garra import paths
from garra.ports import Fleet
from garra.service.herald import Herald
from garra.service.notify import Notifier
from garra.service.unit import Wish, text


class Nothing:
    """A fleet without profiles."""

    def profiles(self) -> tuple[()]:
        return ()


WISH = Wish("system", ("/opt/my tools/garra", "up", "demo"), 10, ("/home/a b/.local/share/garra",), user="alice")


def lines(wish: Wish) -> list[str]:
    return text(wish).splitlines()


def test_whose_streams_end_whole() -> None:
    told = lines(replace(WISH, drain_s=120))
    for line in ("Type=notify", "KillMode=mixed", "TimeoutStopSec=150", "OOMPolicy=continue", "User=alice"):
        assert line in told
    assert "WantedBy=multi-user.target" in told
    assert "RuntimeDirectory=garra" in told


def test_gpus_are_the_only_devices_and_may_compile() -> None:
    cpu = lines(WISH)
    assert "PrivateDevices=yes" in cpu
    assert "MemoryDenyWriteExecute=yes" in cpu
    gpu = lines(replace(WISH, gpus=("nvidia",)))
    assert not [line for line in gpu if line.startswith(("PrivateDevices", "MemoryDenyWriteExecute"))]
    assert {"DevicePolicy=closed", "DeviceAllow=char-nvidia* rw"} <= set(gpu)
    assert "DeviceAllow=/dev/kfd rw" in lines(replace(WISH, gpus=("amd",)))


def test_words_are_quoted_as_systemd_reads_them() -> None:
    odd = replace(WISH, command=("/a b/garra", 'say "50 %"', "$HOME"), environment={"HF_HOME": "/mnt/big disk"})
    told = lines(odd)
    assert 'ExecStart="/a b/garra" "say \\"50 %%\\"" $$HOME' in told
    assert 'Environment="HF_HOME=/mnt/big disk"' in told
    assert 'ReadWritePaths="/home/a b/.local/share/garra"' in told


def test_a_users_unit_asks_for_nothing_a_user_cannot_have() -> None:
    told = lines(replace(WISH, scope="user", user=""))
    forbidden = ("User=", "CapabilityBoundingSet", "DevicePolicy", "PrivateDevices", "ProtectKernel", "ProtectClock")
    assert not [line for line in told if line.startswith(forbidden)]
    assert "ProtectSystem=strict" in told
    bare = lines(replace(WISH, scope="user", user="", namespaces=False))
    assert not [line for line in bare if line.startswith(("ProtectSystem", "PrivateTmp", "ReadWritePaths"))]
    assert "NoNewPrivileges=yes" in bare


def test_what_it_keeps_in_tmp_is_not_hidden() -> None:
    assert "PrivateTmp=yes" in lines(WISH)
    assert "PrivateTmp=yes" not in lines(replace(WISH, writable=("/tmp/garra-1000",)))
    assert "PrivateTmp=yes" not in lines(replace(WISH, read=("/tmp/checkout/.venv",)))


def test_memory_high_is_optional() -> None:
    assert "MemoryHigh=24G" in lines(replace(WISH, memory_high="24G"))
    assert not [line for line in lines(WISH) if line.startswith("MemoryHigh")]


# -- notifications


@pytest.fixture
def ear() -> Iterator[socket.socket]:
    with tempfile.TemporaryDirectory(prefix="gn-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.bind(f"{folder}/notify")
        one.setblocking(False)
        yield one


def heard(ear: socket.socket) -> list[str]:
    told: list[str] = []
    while True:
        try:
            told += ear.recv(4096).decode().split("\n")
        except BlockingIOError:
            return told


def test_the_variables_are_taken_out(ear: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    notifier = Notifier(environment)
    assert environment == {}
    assert notifier.watchdog_s == 30
    notifier.tell(READY="1", STATUS="x")
    assert heard(ear) == ["READY=1", "STATUS=x"]
    assert Notifier({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_s == 0, "meant for another process"


def test_nobody_to_tell_and_a_manager_that_is_gone_cost_nothing() -> None:
    Notifier({}).tell(READY="1")
    Notifier({"NOTIFY_SOCKET": "/nowhere/at/all"}).tell(READY="1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as abstract:
        abstract.bind("\0garra-test-notify")
        Notifier({"NOTIFY_SOCKET": "@garra-test-notify"}).tell(READY="1")
        assert abstract.recv(100) == b"READY=1"


async def test_signs_of_health_need_a_listener_that_answers(ear: socket.socket) -> None:
    statuses, refused = [200], asyncio.Semaphore(0)

    async def health(request: web.BaseRequest) -> web.Response:
        if statuses[-1] != 200:
            refused.release()
        return web.Response(status=statuses[-1])

    runner = web.ServerRunner(web.Server(health))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    notifier = Notifier({"NOTIFY_SOCKET": ear.getsockname(), "WATCHDOG_USEC": "30000"})
    loop = asyncio.get_running_loop()
    async with (
        asyncio.timeout(10),
        Herald(notifier, cast(Fleet, Nothing()), f"http://127.0.0.1:{runner.addresses[0][1]}"),
    ):
        told = b""
        while b"WATCHDOG=1" not in told:
            told += await loop.sock_recv(ear, 4096)
        statuses.append(500)
        await refused.acquire()  # the one before may have been on its way
        heard(ear)
        for _ in range(5):
            await refused.acquire()
        assert "WATCHDOG=1" not in heard(ear)
    await runner.cleanup()


# -- whose runtime folder


def test_a_session_means_the_service_of_the_machine_where_that_is_its_users(
    private_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions, service = private_folders / "sessions", private_folders / "run"
    mine = sessions / str(os.getuid())
    service.mkdir(mode=0o700)
    monkeypatch.setattr(paths, "_SESSIONS", str(sessions))
    monkeypatch.setattr(paths, "_SERVICE", service)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(mine))
    assert paths.runtime_dir() == mine / "garra"
    paths.control_socket(service).touch()
    assert paths.runtime_dir() == service
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(private_folders / "elsewhere"))
    assert paths.runtime_dir() == private_folders / "elsewhere" / "garra", "a folder of one's own is meant"
