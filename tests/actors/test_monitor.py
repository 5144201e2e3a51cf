"""The loop is watched from outside, and only the loop is blamed."""

import asyncio
import threading

import pytest

from orchestrator.actors.monitor import LoopMonitor
from orchestrator.events import Failed, Finished
from tests.fakes.scripted import DONE, Stage
from tests.fakes.systems import make_request, read, running


def block_this_thread(seconds: float) -> None:
    threading.Event().wait(seconds)


async def test_a_blocked_loop_is_told_with_its_length() -> None:
    told: list[float] = []
    heard = asyncio.Event()

    def on_blocked(seconds: float) -> None:
        told.append(seconds)
        heard.set()

    monitor = LoopMonitor(asyncio.get_running_loop(), on_blocked, limit=0.2)
    monitor.start()
    try:
        await asyncio.sleep(0)
        block_this_thread(0.6)
        async with asyncio.timeout(5):
            await heard.wait()
    finally:
        monitor.stop()

    assert len(told) == 1
    assert 0.2 < told[0] < 5


async def test_a_loop_that_answers_is_never_blamed() -> None:
    told: list[float] = []
    monitor = LoopMonitor(asyncio.get_running_loop(), told.append, limit=0.3)
    monitor.start()

    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.6, later.set)
    async with asyncio.timeout(5):
        await later.wait()
    monitor.stop()

    assert told == []


async def test_a_blocked_loop_poisons_and_a_new_generation_serves() -> None:
    hold = asyncio.Event()
    stage = Stage(lambda _request, call: [hold, DONE] if call == 0 else ["x", DONE])

    async with asyncio.timeout(10), running({"m": stage}, monitored=True, slots=1) as system:
        victim = make_request()
        system.router.submit(victim)
        changed = asyncio.Event()
        inflight = system.deployments["m"].inflight
        inflight.observe(changed.set)
        await asyncio.sleep(0)
        block_this_thread(1.6)
        lost = await read(victim)
        while not inflight.ready:
            await changed.wait()
            changed.clear()
        follower = make_request()
        system.router.submit(follower)
        answer = await read(follower)

    assert isinstance(lost.ending, Failed)
    assert lost.ending.error.code == "engine_unhealthy"
    assert "event loop was blocked" in str(lost.ending.error)
    assert isinstance(answer.ending, Finished)
    assert inflight.generation == 2


async def test_a_monitor_that_cannot_start_serves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_thread(_self: LoopMonitor) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(LoopMonitor, "start", no_thread)
    stage = Stage(lambda _request, _call: ["x", DONE])

    async with asyncio.timeout(5), running({"m": stage}, monitored=True, slots=1) as system:
        request = make_request()
        system.router.submit(request)
        answer = await read(request)

    assert isinstance(answer.ending, Failed)
    assert answer.ending.error.status_code == 503
    assert "can't start new thread" in str(answer.ending.error)
    assert stage.calls == []
