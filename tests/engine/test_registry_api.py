"""`/registry/...` of a serving garra: search, downloads that are followed, paused and cancelled, removal."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.engine.conftest import Make
from tests.fake_hub import FakeHub, Repo
from tests.registry.conftest import gguf_bytes
from tests.support import Garra, Json, eventually

REF = "hf:o/r:Q8_0"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with FakeHub() as one:
        one.repos["o/r"] = Repo({"M-Q8_0.gguf": gguf_bytes(1, more=8 << 20)}, rate=4 << 20)
        yield one


@pytest.fixture
def there(stubbed: Make, hub: FakeHub) -> Garra:
    return stubbed("late", **hub.environment()).up("demo")


def ask(garra: Garra, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
    return httpx.request(method, garra.url + path, json=body, headers=headers, timeout=180)


def job_of(garra: Garra, number: str) -> Json:
    told: Json = ask(garra, "GET", f"/registry/download/{number}").json()
    return told


def worker(garra: Garra) -> psutil.Process | None:
    assert garra.process is not None
    children = psutil.Process(garra.process.pid).children()
    return next((child for child in children if "garra.registry.worker" in child.cmdline()), None)


def test_a_search_tells_sizes_and_fit(there: Garra) -> None:
    found = ask(there, "POST", "/registry/search", {"query": "r"}).json()["data"]
    assert found[0]["repo"] == "o/r"
    assert found[0]["models"][0]["quant"] == "Q8_0"
    assert found[0]["models"][0]["ref"] == REF
    assert found[0]["models"][0]["fit"] in ("GPU", "GPU+CPU", "CPU", "no")
    assert found[0]["licence"] == "apache-2.0"


def test_a_download_is_one_job_and_followed_to_its_end(there: Garra, hub: FakeHub) -> None:
    begun = ask(there, "POST", "/registry/download", {"ref": REF})
    assert begun.status_code == 202
    again = ask(there, "POST", "/registry/download", {"ref": REF.lower().replace("q8", "Q8")}).json()
    assert again["id"] == begun.json()["id"], "whoever asks for the same joins it"
    with httpx.stream("GET", f"{there.url}/registry/download/{again['id']}/events", timeout=180) as reply:
        news = [json.loads(line.removeprefix("data: ")) for line in reply.iter_lines() if line]
    assert [one["state"] for one in news[:-1]] == ["running"] * (len(news) - 1)
    assert news[-1]["state"] == "done"
    counts = [one["done_bytes"] for one in news]
    assert counts == sorted(counts)
    assert any(0 < one["bytes_per_s"] < 64 << 20 and one["eta_s"] is not None for one in news[:-1])
    assert Path(news[-1]["path"]).read_bytes() == hub.repos["o/r"].files["M-Q8_0.gguf"]
    assert len(hub.sent["M-Q8_0.gguf"]) == 1
    listed = ask(there, "GET", "/registry/models").json()["data"]
    assert [one["ref"] for one in listed] == [REF]


def test_pause_keeps_and_cancel_discards(there: Garra, hub: FakeHub) -> None:
    number = ask(there, "POST", "/registry/download", {"ref": REF}).json()["id"]
    eventually(lambda: job_of(there, number)["done_bytes"] > 0)
    ask(there, "POST", f"/registry/download/{number}/pause")
    eventually(lambda: job_of(there, number)["state"] == "paused")
    blobs = Path(there.env["XDG_CACHE_HOME"]) / "huggingface" / "hub" / "models--o--r" / "blobs"
    kept = sum(path.stat().st_size for path in blobs.iterdir())
    assert kept > 0
    ask(there, "POST", "/registry/download", {"ref": REF})
    eventually(lambda: job_of(there, number)["done_bytes"] > kept)
    assert hub.sent["M-Q8_0.gguf"][-1][0] == kept, "it goes on where it stopped"
    ask(there, "POST", f"/registry/download/{number}/cancel")
    eventually(lambda: job_of(there, number)["state"] == "cancelled")
    assert list(blobs.iterdir()) == []


def test_a_worker_that_is_killed_is_replaced_and_the_download_goes_on(there: Garra, hub: FakeHub) -> None:
    number = ask(there, "POST", "/registry/download", {"ref": REF}).json()["id"]
    eventually(lambda: job_of(there, number)["done_bytes"] > 0)
    process = worker(there)
    assert process is not None
    process.send_signal(signal.SIGKILL)
    eventually(lambda: job_of(there, number)["state"] == "done")
    begins = [begin for begin, _ in hub.sent["M-Q8_0.gguf"]]
    assert len(begins) == 2
    assert begins[1] > 0, "from where the first one was"


def test_errors_are_told_by_poll_and_by_status(there: Garra) -> None:
    number = ask(there, "POST", "/registry/download", {"ref": "hf:o/none:Q8_0"}).json()["id"]
    eventually(lambda: job_of(there, number)["state"] == "failed")
    assert job_of(there, number)["code"] == "not_offered"
    assert "there is no o/none on the hub" in job_of(there, number)["detail"]
    assert ask(there, "POST", "/registry/download", {"ref": "hf:o/r/x.bin"}).status_code == 422
    assert ask(there, "POST", "/registry/download", {"ref": "nonsense"}).status_code == 400
    assert ask(there, "POST", "/registry/download", {"model": REF}).status_code == 400
    assert ask(there, "GET", "/registry/download/none").status_code == 404
    assert ask(there, "GET", "/registry/nothing").status_code == 404


def test_strangers_and_browsers_of_other_pages_may_not(there: Garra, stubbed: Make, hub: FakeHub) -> None:
    assert ask(there, "POST", "/registry/download", {"ref": REF}, Origin="http://evil.example").status_code == 403
    assert ask(there, "DELETE", f"/registry/models/{REF}").status_code == 403
    digest = hashlib.sha256(b"known").hexdigest()
    keyed = stubbed("late", top=f'[keys.a]\nsha256 = "{digest}"\n', **hub.environment()).up("demo")
    for key, status in (("unknown", 401), ("known", 403)):
        headers = {"x-api-key": key}
        assert ask(keyed, "POST", "/registry/download", {"ref": REF}, **headers).status_code == status
        assert ask(keyed, "GET", "/registry/models", **headers).status_code == status
    assert not hub.requests


def test_the_control_socket_removes_what_no_engine_uses(there: Garra, hub: FakeHub) -> None:
    hub.repos["o/r"].rate = None
    number = ask(there, "POST", "/registry/download", {"ref": REF}).json()["id"]
    eventually(lambda: job_of(there, number)["state"] == "done")
    transport = httpx.HTTPTransport(uds=str(there.runtime / "control.sock"))
    with httpx.Client(transport=transport, base_url="http://garra", timeout=20) as client:
        assert client.get("/registry/models").json()["data"][0]["ref"] == REF
        assert client.delete(f"/registry/models/{REF}").json()["freed_bytes"] > 8 << 20
        assert client.delete(f"/registry/models/{REF}").status_code == 404
    assert ask(there, "GET", "/registry/models").json()["data"] == []


def test_shutdown_in_the_middle_of_a_download_keeps_what_came(there: Garra, hub: FakeHub) -> None:
    number = ask(there, "POST", "/registry/download", {"ref": REF}).json()["id"]
    eventually(lambda: job_of(there, number)["done_bytes"] > 0)
    process = worker(there)
    assert there.stop() == 0
    assert process is not None
    eventually(lambda: not process.is_running())
    blobs = Path(there.env["XDG_CACHE_HOME"]) / "huggingface" / "hub" / "models--o--r" / "blobs"
    assert [path.suffix for path in blobs.iterdir()] == [".garra-part"]
