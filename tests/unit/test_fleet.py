"""The fleet with fake engines: who is served when, and what is in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal

import pytest

from garra.errors import EngineDown, ModelNotPresent, ShuttingDown
from garra.spec import Cause, Phase
from garra.supervisor.machine import MAX_ATTEMPTS
from tests.fakes import settle
from tests.stage import Request, stage


async def test_waiters_share_one_load() -> None:
    async with stage("a") as s:
        requests = [s.request("a") for _ in range(5)]
        await settle()
        assert all(request.granted for request in requests)
        assert s.engines.log == ["spawn a"]
        assert s.fleet.status("a").leases == 5
        for request in requests:
            await request.done()
        assert s.fleet.status("a").leases == 0


async def test_a_swap_waits_for_running_answers_and_closes_before_it_stops() -> None:
    async with stage("a", "b") as s:
        first, second = s.request("a"), s.request("b")
        await settle()
        assert first.granted
        assert not second.granted
        late = s.request("a", "late a")
        await settle()
        assert not late.granted, "first come, first served: b was there before"
        await first.done()
        await settle()
        assert second.granted
        assert s.engines.log[:4] == ["spawn a", "read ahead b", "close a", "spawn b"]
        assert s.engines.alive() == ["b"]
        await second.done()
        await settle()
        await late.done()
        assert s.order == ["a", "b", "late a"]


async def test_a_client_that_leaves_the_queue_leaves_nothing() -> None:
    async with stage("a", "b") as s:
        first, second, third = s.request("a"), s.request("b"), s.request("a", "third")
        await settle()
        second.task.cancel()
        await settle()
        assert third.granted, "nobody waits for b any more"
        assert s.engines.log == ["spawn a", "read ahead b"]
        await first.done()
        await third.done()
        assert (s.fleet.status("a").leases, s.fleet.status("b").waiting) == (0, 0)


async def test_a_broken_model_refuses_its_waiters_and_harms_no_other() -> None:
    async with stage("a", "b") as s:
        s.engines.ready["a"] = False
        broken, other = s.request("a"), s.request("b")
        await settle()
        s.engines.spawned[0].end(code=1, cause=Cause.BAD_MODEL)
        await settle()
        with pytest.raises(EngineDown, match=r"a cannot be loaded \(bad_model\): last words"):
            await broken.task
        assert other.granted
        with pytest.raises(EngineDown):
            await s.request("a").task
        await other.done()


async def test_a_person_may_load_what_the_breaker_refuses() -> None:
    async with stage("a") as s:
        s.engines.ready["a"] = False
        loading = s.fleet.load("a")
        await settle()
        s.engines.spawned[0].end(code=1, cause=Cause.BAD_MODEL)
        with pytest.raises(EngineDown):
            await loading
        s.engines.ready["a"] = True
        await s.fleet.load("a")
        assert s.fleet.status("a").phase is Phase.READY


async def test_a_crashed_engine_comes_back_for_those_who_wait() -> None:
    async with stage("a") as s:
        request = s.request("a")
        await settle()
        assert request.lease is not None
        s.engines.spawned[0].end(signum=signal.SIGKILL)
        await settle()
        assert await request.lease.death(b"x") == "last words (ended by SIGKILL)"
        await request.done()
        waiting = s.request("a")
        await settle()
        assert s.fleet.status("a").phase is Phase.BACKOFF
        assert not waiting.granted
        s.clock.advance(5)
        await settle()
        assert waiting.granted
        assert s.fleet.status("a").restarts == 1
        await waiting.done()


async def test_an_engine_that_never_starts_opens_the_breaker() -> None:
    async with stage("a") as s:
        s.engines.refuses = True
        request = s.request("a")
        for _ in range(MAX_ATTEMPTS):
            await settle()
            s.clock.advance(60)
        with pytest.raises(EngineDown, match="cannot start it") as caught:
            await request.task
        assert caught.value.retry_after_s


async def test_an_engine_that_ignores_term_is_killed() -> None:
    async with stage("a") as s:
        s.engines.ignores_term = True
        await s.fleet.load("a")
        s.fleet.unload("a")
        await settle()
        process = s.engines.spawned[0]
        assert process.signals == [signal.SIGTERM]
        s.clock.advance(10)
        await settle()
        assert process.signals == [signal.SIGTERM, signal.SIGKILL]
        assert s.fleet.status("a").phase is Phase.COLD


async def test_unloading_a_loading_engine_ends_the_wish_for_it() -> None:
    async with stage("a") as s:
        s.engines.ready["a"] = False
        loading = s.fleet.load("a")
        await settle()
        s.fleet.unload("a")
        await settle()
        with pytest.raises(EngineDown, match="unloaded while it loaded"):
            await loading
        assert s.fleet.status("a").phase is Phase.COLD
        assert s.engines.alive() == []


async def test_a_grant_whose_engine_died_meanwhile_waits_for_the_next_one() -> None:
    async with stage("a") as s:
        request = s.request("a")
        while s.fleet.status("a").phase is not Phase.READY:  # noqa: ASYNC110 - the very breath is meant
            await asyncio.sleep(0)
        s.engines.spawned[0].end(signum=signal.SIGKILL)
        for _ in range(5):
            await settle()
            s.clock.advance(5)
        assert request.granted
        await request.done()
        assert s.fleet.status("a").leases == 0


async def test_an_idle_engine_is_unloaded_and_a_busy_one_is_not() -> None:
    async with stage("a", idle_ttl_s=100) as s:
        request = s.request("a")
        await settle()
        s.clock.advance(1000)
        assert s.fleet.status("a").phase is Phase.READY
        await request.done()
        s.clock.advance(99)
        again = s.request("a")
        await settle()
        await again.done()
        s.clock.advance(99)
        assert s.fleet.status("a").phase is Phase.READY, "the clock starts anew with every use"
        s.clock.advance(2)
        await settle()
        assert (s.fleet.status("a").phase, s.fleet.status("a").cause) == (Phase.COLD, Cause.IDLE)


async def test_a_model_that_is_not_here_is_not_loaded() -> None:
    async with stage("a", present=False) as s:
        with pytest.raises(ModelNotPresent) as caught:
            await s.request("a").task
        assert caught.value.fix == "garra pull a"
        assert s.engines.log == []


async def test_closing_refuses_waiters_and_lets_answers_end() -> None:
    async with stage("a", "b") as s:
        running, waiting = s.request("a"), s.request("b")
        await settle()
        closing = asyncio.ensure_future(s.fleet.close())
        await settle()
        with pytest.raises(ShuttingDown):
            await waiting.task
        with pytest.raises(ShuttingDown):
            await s.request("a").task
        assert not closing.done()
        await running.done()
        await closing
        assert s.engines.alive() == []


async def test_a_drain_that_takes_too_long_ends() -> None:
    async with stage("a") as s:
        running = s.request("a")
        await settle()
        closing = asyncio.ensure_future(s.fleet.close())
        await settle()
        s.clock.advance(10)
        await closing
        assert s.engines.alive() == []
        await running.done()


async def test_the_engine_does_not_outlive_a_cancelled_fleet() -> None:
    async with stage("a") as s:
        s.engines.ignores_term = True
        await s.fleet.load("a")
    assert s.engines.alive() == []


async def test_a_bug_in_one_runner_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    async with stage("a", "b") as s:
        await s.fleet.load("a")
        s.engines.props = None  # type: ignore[method-assign, assignment]
        s.fleet.unload("a")
        await settle()
        with contextlib.suppress(EngineDown):
            await s.fleet.load("b")
        assert s.fleet.status("b").phase is Phase.FAILED
        del s.engines.props
        await s.fleet.load("a")
        assert s.fleet.status("a").phase is Phase.READY
    assert "failed by a bug" in caplog.text


async def test_random_days_lose_nobody(soak: bool) -> None:
    """Clients come and go, engines crash: every request ends once, one engine lives at most, counts return to zero."""
    rng = random.Random(11)
    for _ in range(200 if soak else 20):
        async with stage("a", "b", "c") as s:
            requests: list[Request] = []
            for _ in range(60):
                match rng.randrange(6):
                    case 0 | 1 | 2:
                        requests.append(s.request(rng.choice("abc")))
                    case 3 if requests:
                        rng.choice(requests).release.set()
                    case 4 if requests:
                        rng.choice(requests).task.cancel()
                    case _:
                        if s.engines.spawned and rng.random() < 0.3:
                            s.engines.spawned[-1].end(signum=9)
                        s.clock.advance(rng.choice([0.1, 1, 40, 70]))
                await settle()
                assert len(s.engines.alive()) <= 1
            for request in requests:
                request.release.set()
            for _ in range(30):
                await settle()
                s.clock.advance(70)
            outcomes = await asyncio.gather(*(request.task for request in requests), return_exceptions=True)
            assert all(o is None or isinstance(o, EngineDown | asyncio.CancelledError) for o in outcomes)
            for name in "abc":
                status = s.fleet.status(name)
                assert (status.leases, status.waiting) == (0, 0)
