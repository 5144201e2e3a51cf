"""What a batch handler without supervision did when a stage failed, and what is right instead.

What happened there stands in a comment, what must happen here in the assertions.
"""

import asyncio
from collections import Counter

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.chaos.simulation.world import run
from orchestrator.events import Failed
from orchestrator.policies.retry import RetrySettings
from orchestrator.runners.lease import StepLimits
from tests.fakes.scripted import DONE, Stage, always
from tests.fakes.systems import (
    ask,
    ask_all,
    assert_at_rest,
    codes,
    make_request,
    read,
    running,
)

ONCE = RetrySettings(max_attempts=1)


def test_a_stage_that_raises_costs_its_own_request_only() -> None:
    # there: that request and every later one never answered, health said 200
    async def main() -> tuple[Counter[str], int]:
        stage = Stage(
            lambda request, _call: (
                [IndexError("tensor shape")] if request.request_id == "bad" else ["a", DONE]
            ),
            local=True,
        )
        async with running({"m": stage}, slots=2) as system:
            requests = [make_request() for _ in range(20)]
            requests.insert(5, make_request(request_id="bad"))
            answers = await ask_all(system, requests)
            assert system.health()[0].ready
            assert_at_rest(system, 2)
        return codes(answers), stage.starts

    outcome, starts = run(0, main)

    assert outcome == {"ok": 20, "internal_error": 1}
    assert starts == 2  # no worker died of it


def test_a_crash_ends_all_in_flight_at_once_and_other_engines_go_on() -> None:
    # there: 37 pending for ever, then 363 refusals with 429
    async def main() -> tuple[Counter[str], float, Counter[str], Counter[str]]:
        loop = asyncio.get_running_loop()
        stages = {"m": always(60.0, DONE), "other": always("a", DONE)}
        stay = Supervision(on_poison="stay")
        async with running(
            stages, slots=4, queue_capacity=100, supervision=stay, timeout=600.0
        ) as system:
            requests = [make_request() for _ in range(40)]
            for request in requests:
                system.router.submit(request)
            await asyncio.sleep(1)
            system.deployments["m"].poison("core", MemoryError("out of memory"))
            struck = loop.time()
            answers = [await read(request) for request in requests]
            took = loop.time() - struck
            later = [await ask(system, make_request()) for _ in range(360)]
            neighbours = [await ask(system, make_request("other")) for _ in range(10)]
        assert all(
            "out of memory" in str(answer.ending.error)
            for answer in answers + later
            if isinstance(answer.ending, Failed)
        )
        return codes(answers), took, codes(later), codes(neighbours)

    struck, took, later, neighbours = run(0, main)

    assert struck == {"engine_unhealthy": 40}
    assert took < 0.1
    assert later == {"engine_unhealthy": 360}
    assert neighbours == {"ok": 10}


def test_a_full_queue_says_429_and_stays_ready() -> None:
    async def main() -> tuple[Counter[str], bool]:
        async with running({"m": always(1.0, DONE)}, slots=1, queue_capacity=4) as system:
            requests = [make_request() for _ in range(10)]
            for request in requests:
                system.router.submit(request)
            ready = system.health()[0].ready
            answers = [await read(request) for request in requests]
        return codes(answers), ready

    assert run(0, main) == ({"ok": 4, "queue_full": 6}, True)


def test_a_stop_with_work_in_flight_leaves_no_caller_waiting() -> None:
    # there: the stop returned in 0.2 s and all 8 callers hung for ever
    async def main() -> Counter[str]:
        stage = always("a", 3600.0, DONE)
        async with running({"m": stage}, slots=4) as system:
            requests = [make_request() for _ in range(8)]
            readers = [asyncio.ensure_future(ask(system, request)) for request in requests]
            await asyncio.sleep(1)
            await system.aclose()
            return codes([await reader for reader in readers])

    assert run(0, main) == {"draining": 8}


def test_abandoned_requests_are_never_run() -> None:
    # there: 56 of 60 callers gave up, and all that they had asked for was still run
    async def main() -> tuple[int, Counter[str]]:
        stage = always(0.1, "a", DONE)
        async with running({"m": stage}, slots=1) as system:
            answers = await ask_all(system, [make_request(timeout=0.55) for _ in range(60)])
            await asyncio.sleep(60)
            assert_at_rest(system, 1)
        return len(stage.calls), codes(answers)

    # five answered, one on the device when the callers left
    assert run(0, main) == (6, {"ok": 5, "deadline_exceeded": 55})


def test_a_healthy_backlog_is_no_hang_and_a_hang_is_found_by_missing_progress() -> None:
    # there: a rule by age disabled a healthy engine after 0.5 s
    async def main() -> tuple[Counter[str], int, Counter[str], float]:
        loop = asyncio.get_running_loop()
        stage = always(0.05, "a", DONE, local=True)
        steps = StepLimits(first_token=0.5, inter_token=0.5)
        async with running({"m": stage}, slots=1, steps=steps, retry=ONCE) as system:
            backlog = await ask_all(system, [make_request() for _ in range(60)])
            hangs_before = len(stage.hung)
            stage.script = lambda _request, _call: ["a", 3600.0, DONE]
            begun = loop.time()
            hung = await ask(system, make_request())
            return codes(backlog), hangs_before, codes([hung]), loop.time() - begun

    backlog, hangs_before, hung, after = run(0, main)

    assert (backlog, hangs_before) == ({"ok": 60}, 0)
    assert hung == {"worker_hung": 1}
    assert after == pytest.approx(0.5, abs=0.01)
