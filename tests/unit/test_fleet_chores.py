"""What the fleet has done beside: memory given back, engines that must prove themselves, slots of those who left."""

from __future__ import annotations

import asyncio
import signal

import pytest

from garra.bill import HOST
from garra.snapshot import SlotState
from garra.spec import Cause, Phase, Policy
from garra.traffic import Outcome, Wish
from tests.fakes import profiles, settle
from tests.stage import Stage, stage


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


async def five_failures(s: Stage) -> None:
    for _ in range(5):
        request = s.request("a")
        request.outcome = Outcome.FAILED
        await settle()
        await request.done()
    await settle()


async def test_an_engine_whose_answers_fail_must_prove_itself() -> None:
    async with stage("a") as s:
        await s.fleet.load("a")
        await five_failures(s)
        assert s.fleet.status("a").phase is Phase.READY, "it still can: the requests were wrong"
        s.engines.sick = True
        await five_failures(s)
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
        s.fleet.configure(made, Policy({HOST: 1000}))
        await s.fleet.load("c")
        assert sorted(s.engines.alive()) == ["a", "c"]
        del made["c"]
        s.fleet.configure(made, Policy({HOST: 1000}))
        await settle()
        assert s.engines.alive() == ["a"]
        assert [profile.name for profile in s.fleet.profiles()] == ["a", "b"]
        assert running.granted
        await running.done()
        assert s.fleet.tally("a").outcomes[Outcome.COMPLETE] == 1
