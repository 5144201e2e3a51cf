"""Waiting, as those who wait see it: a bound for every class and caller, and an honest refusal."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import TypeVar

import pytest

from orchestrator.chaos.simulation import world
from orchestrator.errors import (
    OrchestratorError,
    RequestCanceledError,
    UpstreamOverloadedError,
)
from orchestrator.events import Failed
from orchestrator.plan import QueueSettings
from orchestrator.policies.queue import OnFull
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import Priority, PriorityRequest
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Line, Stage, always
from tests.fakes.systems import Answer, ask, codes, make_request, read, running

T = TypeVar("T")
SECOND = 1.0
ROUTE = {"m": ["a", "b"]}


def in_virtual_time(main: Callable[[], Awaitable[T]]) -> T:
    async def bounded() -> T:
        async with asyncio.timeout(3_000):
            return await main()

    return world.run(1, bounded)


def error_in(answer: Answer) -> OrchestratorError:
    assert isinstance(answer.ending, Failed)
    return answer.ending.error


def takes(seconds: float) -> Stage:
    return always(seconds, DONE)


async def occupy(system: System, *models: str) -> None:
    """All slots are busy from here on."""
    submitted(system, *(make_request(model, timeout=1_000) for model in models))
    await asyncio.sleep(0.01)


def submitted(system: System, *requests: PriorityRequest) -> list[PriorityRequest]:
    for request in requests:
        system.router.submit(request)
    return list(requests)


@pytest.mark.parametrize(("priority", "bound"), [(Priority.BACKGROUND, 30), (Priority.NORMAL, 20)])
def test_endless_arrivals_of_a_high_class_hold_nobody_up_beyond_the_aging_bound(
    priority: Priority, bound: float
) -> None:
    async def main() -> float:
        aging = QueueSettings(aging=10.0)
        async with running({"m": takes(SECOND)}, slots=1, queue=aging) as system:
            loop = asyncio.get_running_loop()
            submitted(system, make_request(priority=Priority.HIGH))
            low, begun = make_request(priority=priority), loop.time()
            submitted(system, low)
            done = loop.create_task(read(low))
            while not done.done():  # twice as many as can be served
                submitted(system, make_request(priority=Priority.HIGH, timeout=1_000))
                await asyncio.sleep(SECOND / 2)
            return low.attempts[0].started_at - begun

    waited = in_virtual_time(main)

    assert waited > bound / 3
    assert waited <= bound + 2 * SECOND


def test_ten_thousand_requests_of_one_caller_do_not_hold_up_another_ones_single_one() -> None:
    async def main() -> tuple[float, int]:
        async with running({"m": takes(SECOND)}, slots=1, queue_capacity=20_000) as system:
            begun = asyncio.get_running_loop().time()
            flood = [make_request(caller="ann") for _ in range(10_000)]
            submitted(system, *flood)
            single = make_request(caller="bob")
            await ask(system, single)
            served = sum(bool(request.attempts) for request in flood)
            return single.attempts[0].started_at - begun, served

    waited, served = in_virtual_time(main)

    assert waited <= 2 * SECOND
    assert served <= 3


def test_a_queue_that_one_caller_has_filled_has_room_for_another_one() -> None:
    async def main() -> tuple[Answer, list[Answer]]:
        async with running({"m": takes(SECOND)}, slots=1, queue_capacity=10) as system:
            await occupy(system, "m")
            flood = submitted(system, *(make_request(caller="ann") for _ in range(10)))
            bob = await ask(system, make_request(caller="bob"))
            return bob, [await read(request) for request in flood]

    bob, flood = in_virtual_time(main)

    assert bob.ending == DONE
    assert codes(flood) == {"ok": 9, "queue_full": 1}
    assert "gave its place up for a caller that has fewer in it" in error_in(flood[-1]).message


def test_a_full_queue_sheds_the_lowest_class_with_429_the_reason_and_a_time() -> None:
    async def main() -> tuple[Answer, Answer]:
        async with running({"m": takes(SECOND)}, slots=1, queue_capacity=1) as system:
            await occupy(system, "m")
            low, high = submitted(
                system,
                make_request(priority=Priority.BACKGROUND),
                make_request(priority=Priority.HIGH),
            )
            return await read(low), await read(high)

    low, high = in_virtual_time(main)
    error = error_in(low)

    assert high.ending == DONE
    assert (error.code, error.status_code) == ("queue_full", 429)
    assert "gave its place up for one of a higher priority" in error.message
    assert error.retry_after is not None
    assert error.retry_after > 0


def test_whoever_is_shed_goes_to_the_next_deployment_of_its_route() -> None:
    async def main() -> list[str]:
        stages = {"a": takes(SECOND), "b": takes(SECOND)}
        async with running(stages, ROUTE, slots=1, queue_capacity=1) as system:
            await occupy(system, "a")
            low = make_request(priority=Priority.BACKGROUND)
            submitted(system, low, make_request(priority=Priority.HIGH))
            await read(low)
            return [record.deployment for record in low.attempts]

    assert in_virtual_time(main) == ["b"]


@pytest.mark.parametrize(
    ("on_full", "served_by"), [("failover", "b"), ("wait", "b"), ("reject", "")]
)
def test_a_full_queue_lets_the_next_deployment_serve_unless_it_is_to_reject(
    on_full: OnFull, served_by: str
) -> None:
    async def main() -> str:
        stages = {"a": takes(SECOND), "b": takes(SECOND)}
        queue = QueueSettings(on_full=on_full, waiting=5)
        async with running(stages, ROUTE, slots=1, queue_capacity=1, queue=queue) as system:
            await occupy(system, "a")
            submitted(system, make_request("a"))
            one_more = make_request()
            await ask(system, one_more)
            return "".join(record.deployment for record in one_more.attempts)

    assert in_virtual_time(main) == served_by


def test_who_finds_no_room_anywhere_waits_for_an_extra_place_and_there_is_an_end_of_them() -> None:
    async def main() -> tuple[list[Answer], list[str]]:
        stages = {"a": takes(SECOND), "b": takes(SECOND)}
        queue = QueueSettings(on_full="wait", waiting=2)
        async with running(stages, ROUTE, slots=1, queue_capacity=1, queue=queue) as system:
            await occupy(system, "a", "b")
            submitted(system, *(make_request(name) for name in ("a", "b")))
            late = submitted(system, *(make_request() for _ in range(5)))
            answers = [await read(request) for request in late]
            served = [request.attempts[0].deployment for request in late if request.attempts]
            return answers, served

    answers, served = in_virtual_time(main)

    assert [codes([answer]) for answer in answers[:4]] == [{"ok": 1}] * 4
    assert served == ["a", "a", "b", "b"]
    assert error_in(answers[4]).code == "queue_full"
    assert error_in(answers[4]).retry_after is not None


def test_waiting_for_an_extra_place_is_bounded_by_the_deadline() -> None:
    async def main() -> tuple[Answer, float]:
        queue = QueueSettings(on_full="wait", waiting=2)
        stages = {"m": takes(60 * SECOND)}
        async with running(stages, slots=1, queue_capacity=1, queue=queue) as system:
            await occupy(system, "m")
            submitted(system, make_request())
            begun = asyncio.get_running_loop().time()
            answer = await ask(system, make_request(timeout=5.0))
            return answer, asyncio.get_running_loop().time() - begun

    answer, seconds = in_virtual_time(main)

    assert error_in(answer).code == "deadline_exceeded"
    assert seconds == pytest.approx(5.0)


def test_whoever_comes_back_when_it_was_told_to_is_let_in() -> None:
    async def main() -> list[float]:
        told: list[float] = []
        async with running({"m": takes(4 * SECOND)}, slots=2, queue_capacity=4) as system:
            loop = asyncio.get_running_loop()

            async def come_back() -> None:
                answer = await ask(system, make_request(timeout=1_000))
                if isinstance(answer.ending, Failed):
                    told.append(answer.ending.error.retry_after or 0.0)
                    await asyncio.sleep(told[-1])
                    assert (await ask(system, make_request(timeout=1_000))).ending == DONE

            submitted(system, *(make_request(timeout=1_000) for _ in range(6)))
            steady = [loop.create_task(come_back()) for _ in range(1)]
            for _ in range(10):  # the pace is known by then
                await asyncio.sleep(2 * SECOND)
                submitted(system, make_request(timeout=1_000))
            del told[:]
            steady += [loop.create_task(come_back()) for _ in range(4)]
            await asyncio.gather(*steady)
            return told

    told = in_virtual_time(main)

    assert len(told) >= 3
    assert told == sorted(told)  # each one later than the one before
    assert told[0] == pytest.approx(2.0, rel=0.3)  # two slots, four seconds each


def test_a_provider_that_takes_three_at_a_time_is_asked_for_about_three_at_a_time() -> None:
    async def main() -> tuple[float, int, int]:
        stage = Stage(lambda _request, _call: script())
        refused = 0

        def script() -> list[Line]:
            nonlocal refused
            if stage.running > 3:
                refused += 1
                return [0.05, UpstreamOverloadedError("too many at once")]
            return [0.1, "a", 0.1, DONE]

        retry = RetrySettings(max_attempts=20, initial_backoff=0.05, max_backoff=0.2)
        async with running(
            {"m": stage}, slots=16, concurrency=(1, 16), queue_capacity=1_000, retry=retry
        ) as system:
            requests = submitted(system, *(make_request(timeout=1_000) for _ in range(400)))
            answers = [await read(request) for request in requests]
            served = sum(answer.ending == DONE for answer in answers)
            gauge = system.deployments["m"].gates.concurrency
            assert gauge is not None
            return served, refused, gauge.limit

    served, refused, limit = in_virtual_time(main)

    assert served >= 380
    assert refused < 0.1 * served
    assert 1 <= limit <= 6


def test_a_thousand_cancels_in_the_queue_leave_nothing_and_refuse_nobody() -> None:
    async def main() -> tuple[int, int, Answer]:
        async with running({"m": takes(SECOND)}, slots=1, queue_capacity=1_000) as system:
            await occupy(system, "m")
            waiting = submitted(system, *(make_request(caller=f"c{n % 9}") for n in range(1_000)))
            for request in waiting:
                request.channel.end(Failed(RequestCanceledError("gone")))
            deployment = system.deployments["m"]
            left = len(deployment.queue), len(deployment.inflight)
            return *left, await ask(system, make_request())

    assert in_virtual_time(main) == (0, 1, Answer("", DONE))


def test_one_slow_outlier_makes_no_refusal_and_no_long_wait_of_the_next_one() -> None:
    async def main() -> tuple[list[Answer], float]:
        stage = Stage(lambda _request, call: [10.0 if call == 5 else 1.0, DONE])
        async with running({"m": stage}, slots=1, queue_capacity=40) as system:
            await occupy(system, "m")
            waiting = submitted(system, *(make_request(timeout=1_000) for _ in range(40)))
            answers = [await read(request) for request in waiting[:20]]
            submitted(system, *(make_request(timeout=1_000) for _ in range(20)))
            refused = error_in(await ask(system, make_request()))
            return answers, refused.retry_after or 0.0

    answers, told = in_virtual_time(main)

    assert codes(answers) == {"ok": 20}
    assert 1.0 <= told < 2.0


async def calls_of_a_dispatch(waiting: int) -> float:
    """Function calls for each request that is served while so many wait."""
    gate, count, served = asyncio.Event(), 0, 50
    stage = Stage(lambda _request, call: [gate, DONE] if call == 0 else [DONE])

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    async with running({"m": stage}, slots=1, queue_capacity=20_000) as system:
        submitted(system, *(make_request(caller=f"c{n % 3}") for n in range(waiting + served)))
        await asyncio.sleep(0)
        sys.setprofile(note)
        gate.set()
        while len(stage.calls) < served:  # noqa: ASYNC110 - each turn is a step of the engine
            await asyncio.sleep(0)
        sys.setprofile(None)
    return count / served


async def test_a_dispatch_costs_the_same_with_ten_waiting_and_with_ten_thousand() -> None:
    async with asyncio.timeout(50):
        few, many = await calls_of_a_dispatch(10), await calls_of_a_dispatch(10_000)

    assert many <= 1.05 * few
