"""Jobs of a serving garra: a worker on demand, ended when idle, replaced when it dies. Here it is a script."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from garra.downloads import DownloadState
from garra.errors import ConfigError, DownloadFailed, NotFound, Refused, UnknownModel
from garra.planner.room import Room
from garra.registry.catalog import Artifact, Catalog, StoredFile
from garra.registry.jobs import IDLE_S, Jobs
from garra.store import Store
from tests.fakes import FakeClock

SCRIPT = """
import json, os, sys
log = open(sys.argv[1], "a")
print("start", file=log, flush=True)
for line in sys.stdin:
    job = json.loads(line)
    print(job["do"], file=log, flush=True)
    tell = lambda now, **more: print(json.dumps({"id": job["id"], "now": now, **more}), flush=True)
    if job["do"] == "search":
        tell("done", result=[{"repo": "o/r", "models": [{"bytes": 1000}]}])
    elif job["do"] == "pull" and "Dies" in job["ref"]:
        os._exit(3)
    elif job["do"] == "pull" and "Junk" in job["ref"]:
        print("no json", flush=True)
    elif job["do"] == "pull" and "Slow" in job["ref"]:
        tell("progress", state="downloading", file="a/b.gguf", done_bytes=10, total_bytes=40)
        asked = job
    elif job["do"] in ("pause", "cancel"):
        tell("failed", code="stopped", what="it was stopped", fix=None)
    elif job["do"] == "pull":
        tell("progress", state="waiting", why="another one")
        tell("done", result={"ref": job["ref"], "path": "/m.gguf", "bytes": 7, "warnings": ["w"]})
print("end", file=log, flush=True)
"""


class World:
    """Jobs with a scripted worker, a clock that is turned by hand, and what the worker wrote down."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.log = folder / "log"
        self.log.touch()
        self.store = Store(folder / "state.db")
        self.in_use: list[str] = []
        room = Room(None, None, 0, 8000)
        command = (sys.executable, "-c", SCRIPT, str(self.log))
        self.catalog = Catalog(self.store)
        self.jobs = Jobs(self.catalog, self.clock, room=lambda: room, in_use=lambda: self.in_use, command=command)

    @property
    def said(self) -> list[str]:
        return self.log.read_text().split()

    async def ended(self, ref: str) -> Any:
        begun = self.jobs.download(ref)
        states = [status async for status in self.jobs.follow(begun.id)]
        return states[-1]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    one = World(tmp_path)
    yield one
    await one.jobs.close()
    one.store.close()


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the other process has no event for it
            await asyncio.sleep(0)


async def test_a_worker_starts_on_demand_serves_many_and_ends_when_idle(world: World) -> None:
    assert world.said == []
    found = await world.jobs.search("r", 5)
    assert found[0]["models"][0]["fit"] == "CPU"
    await world.jobs.search("r", 5)
    assert world.said == ["start", "search", "search"]
    world.clock.advance(IDLE_S - 1)
    await world.jobs.search("r", 5)
    world.clock.advance(IDLE_S - 1)
    assert world.said.count("end") == 0, "each job begins the waiting anew"
    world.clock.advance(2)
    await world.jobs.search("r", 5)
    assert world.said == ["start", "search", "search", "search", "end", "start", "search"]


async def test_a_download_is_told_from_its_begin_to_its_end(world: World) -> None:
    status = await world.ended("hf:o/r:q8_0")
    assert (status.state, status.path, status.warnings) == (DownloadState.DONE, "/m.gguf", ("w",))
    assert [one.id for one in world.jobs.downloads()] == [status.id]
    assert world.jobs.status(status.id) == status


async def test_one_artifact_is_one_job_while_it_runs(world: World) -> None:
    first = world.jobs.download("hf:o/Slow:q8_0")
    assert world.jobs.download("hf:o/Slow:Q8_0").id == first.id
    await until(lambda: world.jobs.status(first.id).done_bytes == 10)
    assert world.jobs.status(first.id).detail == "downloading b.gguf"
    assert world.said.count("pull") == 1
    world.jobs.stop(first.id, discard=False)
    last = [status async for status in world.jobs.follow(first.id)][-1]
    assert last.state is DownloadState.PAUSED
    assert world.jobs.download("hf:o/Slow:q8_0").state is DownloadState.RUNNING, "asked for again, it goes on"
    await until(lambda: world.jobs.status(first.id).done_bytes == 10)
    world.jobs.stop(first.id, discard=True)
    last = [status async for status in world.jobs.follow(first.id)][-1]
    assert last.state is DownloadState.CANCELLED


async def test_a_worker_that_dies_again_and_again_ends_its_download(world: World) -> None:
    status = await world.ended("hf:o/Dies:Q8_0")
    assert status.state is DownloadState.FAILED
    assert "exit status 3" in status.detail
    assert world.said.count("start") == 3
    assert (await world.jobs.search("r", 5))[0]["repo"] == "o/r", "others get a new one"


async def test_a_worker_that_says_nonsense_is_ended(world: World) -> None:
    status = await world.ended("hf:o/Junk:Q8_0")
    assert status.state is DownloadState.FAILED
    assert "signal 9" in status.detail


async def test_closing_pauses_what_runs(world: World) -> None:
    begun = world.jobs.download("hf:o/Slow:Q8_0")
    await until(lambda: world.jobs.status(begun.id).done_bytes == 10)
    await world.jobs.close()
    assert world.said[-1] == "end"


async def test_what_is_no_model_of_the_hub_is_refused_at_once(world: World) -> None:
    for ref, error in (("file:/m.gguf", ConfigError), ("hf:o/r/x.bin", Refused), ("what", ConfigError)):
        with pytest.raises(error):
            world.jobs.download(ref)
    with pytest.raises(NotFound):
        world.jobs.status("none")
    with pytest.raises(NotFound):
        [one async for one in world.jobs.follow("none")]


async def test_a_search_whose_worker_died_is_an_error_not_a_bug(world: World) -> None:
    world.jobs._command = (sys.executable, "-c", "pass")
    with pytest.raises(DownloadFailed, match="exit status 0"):
        await world.jobs.search("r", 5)


async def test_a_model_in_use_is_not_removed(world: World, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    world.catalog.keep(Artifact("file:m", "folder", str(path), 4, (StoredFile("model", str(path), 4),)))
    world.in_use = [str(path)]
    with pytest.raises(Exception, match="in use"):
        await world.jobs.remove("file:m")
    world.in_use = []
    assert await world.jobs.remove("file:m") == 0
    assert path.exists(), "it was never garra's"
    with pytest.raises(UnknownModel):
        await world.jobs.remove("file:m")
    assert await world.jobs.models() == []
