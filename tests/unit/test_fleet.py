"""The fleet with fake engines: who is served when, and what is in memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from garra.errors import EngineDown, ModelNotPresent, ShuttingDown
from garra.ports import Lease
from garra.spec import Cause, Phase, Policy, SlotState
from garra.supervisor.fleet import EngineFleet
from garra.supervisor.machine import MAX_ATTEMPTS
from garra.traffic import Outcome, Wish
from tests.fakes import FakeClock, FakeEngines, plan_for, profiles, settle


class Stage:
    """A running fleet, its fakes, and requests as tasks a test can hold and release."""

    def __init__(self, fleet: EngineFleet, engines: FakeEngines, clock: FakeClock) -> None:
        self.fleet = fleet
        self.engines = engines
        self.clock = clock
        self.order: list[str] = []

    def request(self, profile: str, label: str = "", wish: Wish | None = None) -> Request:
        return Request(self, profile, label or profile, wish)


class Request:
    """One lease, held until released."""

    def __init__(self, stage: Stage, profile: str, label: str, wish: Wish | None) -> None:
        self.wish = wish or Wish(profile)
        self.outcome = Outcome.COMPLETE
        self.release = asyncio.Event()
        self.lease: Lease | None = None
        self._stage = stage
        self.task = asyncio.ensure_future(self._run(profile, label))

    async def _run(self, profile: str, label: str) -> None:
        async with self._stage.fleet.lease(self.wish) as lease:
            self.lease = lease
            self._stage.order.append(label)
            await self.release.wait()
            lease.ended(self.outcome)

    @property
    def granted(self) -> bool:
        return self.lease is not None

    async def done(self) -> None:
        self.release.set()
        await self.task


@contextlib.asynccontextmanager
async def stage(*names: str, present: bool = True, budget_mib: int = 1000, **changes: object) -> AsyncIterator[Stage]:
    engines, clock = FakeEngines(), FakeClock()
    changes = {"slots": 8, "mode": "high_throughput"} | changes
    fleet = EngineFleet(
        profiles(*names, **changes),
        Policy(budget_mib, fifo=True),
        make_plan=plan_for,
        locate=lambda model: Path(model) if present else None,
        spawner=engines,
        http=engines,
        connections=engines,
        memory=engines,
        clock=clock,
    )
    async with fleet:
        yield Stage(fleet, engines, clock)


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


async def test_the_next_model_waits_until_the_memory_is_back_but_not_for_ever() -> None:
    async with stage("a", "b") as s:
        await s.fleet.load("a")
        s.engines.memory_is_back = False
        request = s.request("b")
        for _ in range(20):
            await settle()
            s.clock.advance(0.1)
        assert s.engines.alive() == []
        s.engines.memory_is_back = True
        await settle()
        s.clock.advance(0.1)
        await settle()
        assert request.granted
        await request.done()
        s.engines.memory_is_back = False
        again = s.request("a")
        for _ in range(60):
            await settle()
            s.clock.advance(0.1)
        await settle()
        assert again.granted, "after three seconds it is tried all the same"
        await again.done()


async def test_an_engine_whose_answers_fail_must_prove_itself() -> None:
    async with stage("a") as s:
        await s.fleet.load("a")
        for _ in range(5):
            request = s.request("a")
            request.outcome = Outcome.FAILED
            await settle()
            await request.done()
        await settle()
        assert s.fleet.status("a").phase is Phase.READY, "it still can: the requests were wrong"
        s.engines.sick = True
        for _ in range(5):
            request = s.request("a")
            request.outcome = Outcome.FAILED
            await settle()
            await request.done()
        await settle()
        status = s.fleet.status("a")
        assert (status.phase, status.cause) == (Phase.BACKOFF, Cause.CRASH)
        assert "5 answers in a row failed; no token" in status.detail


async def test_the_slot_of_a_client_that_left_is_watched_until_it_is_free() -> None:
    async with stage("a", slots=1) as s:
        first = s.request("a")
        await settle()
        s.engines.slots_said = (SlotState(busy=True, task=1, n_prompt_tokens=9, n_decoded=0),)
        first.task.cancel()
        await settle()
        second = s.request("a")
        for _ in range(5):
            await settle()
            s.clock.advance(1.2)
        assert (s.fleet.status("a").lingering, second.granted) == (1, False)
        s.engines.slots_said = (SlotState(busy=False, task=1, n_prompt_tokens=0, n_decoded=0),)
        s.clock.advance(1.2)
        await settle()
        assert (s.fleet.status("a").lingering, second.granted) == (0, True)
        await second.done()


@pytest.mark.parametrize("slots", [None, (SlotState(busy=True, task=1, n_prompt_tokens=64, n_decoded=0),)])
async def test_a_stuck_engine_is_killed_and_comes_back(slots: tuple[SlotState, ...] | None) -> None:
    async with stage("a", stall_s=5, batch=64, ubatch=64) as s:
        request = s.request("a")
        await settle()
        s.engines.slots_said = slots
        for second in range(60):
            s.engines.pieces += second < 10
            s.clock.advance(1)
            await settle()
            if s.fleet.status("a").phase is not Phase.READY:
                break
        assert second >= 15, "it spoke for ten seconds, and five of silence are allowed"
        assert s.engines.spawned[0].signals == [signal.SIGKILL]
        assert s.fleet.status("a").cause is Cause.STALLED
        await request.done()
        s.clock.advance(5)
        await settle()
        assert s.fleet.status("a").phase is Phase.READY


async def test_an_engine_that_moves_is_left_alone() -> None:
    async with stage("a", stall_s=5, batch=64, ubatch=64) as s:
        request = s.request("a")
        await settle()
        for second in range(60):
            s.engines.slots_said = (SlotState(busy=True, task=1, n_prompt_tokens=64 * second, n_decoded=0),)
            s.clock.advance(1)
            await settle()
        assert s.fleet.status("a").phase is Phase.READY
        await request.done()


async def test_a_request_asked_once_more_keeps_its_place() -> None:
    async with stage("a", slots=1) as s:
        hold = s.fleet.lease(Wish("a"))
        async with hold as lease:
            waiting = s.request("a", "later")
            await settle()
            s.engines.spawned[0].end(signum=signal.SIGSEGV)
            await settle()
            await lease.death(b"print")
        hold.again(b"print")
        assert s.fleet.suspicious
        entering = asyncio.ensure_future(hold.__aenter__())
        s.clock.advance(5)
        await settle()
        again = await entering
        assert not waiting.granted
        assert hold.news().position == 0
        again.ended(Outcome.COMPLETE)
        await hold.__aexit__(None, None, None)
        await settle()
        assert waiting.granted
        assert not s.fleet.suspicious, "it was not its fault"
        await waiting.done()


async def test_a_profile_can_come_change_and_go_while_others_run() -> None:
    async with stage("a", "b", budget_mib=1000, memory_mib=300) as s:
        await s.fleet.load("a")
        running = s.request("a")
        await settle()
        made = profiles("a", "b", "c", slots=8, mode="high_throughput", memory_mib=300)
        s.fleet.configure(made, Policy(1000))
        await s.fleet.load("c")
        assert sorted(s.engines.alive()) == ["a", "c"]
        del made["c"]
        s.fleet.configure(made, Policy(1000))
        await settle()
        assert s.engines.alive() == ["a"]
        assert [profile.name for profile in s.fleet.profiles()] == ["a", "b"]
        assert running.granted
        await running.done()
        assert s.fleet.tally("a").outcomes[Outcome.COMPLETE] == 1


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
