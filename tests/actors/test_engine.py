"""The engine's ledger: what is assigned, given back and settled, whatever happens in between."""

import asyncio
from collections import Counter
from typing import cast

import pytest
import uvloop

from orchestrator.actors.engine import Engine
from orchestrator.actors.messages import AttemptEnded
from orchestrator.actors.runtime import tell
from orchestrator.actors.supervisor import Supervision
from orchestrator.attempt import Canceled
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    OrchestratorError,
    RequestCanceledError,
    UpstreamRateLimitedError,
    UpstreamServerError,
)
from orchestrator.events import Failed, Finished, FinishReason, TokenChunk, Usage
from orchestrator.inflight import Fault
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import Priority, PriorityRequest
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Stage
from tests.fakes.systems import codes, make_request, read, running

CANCEL = Failed(RequestCanceledError("the caller went away"))


def at_rest(system: System, name: str = "m") -> bool:
    deployment = system.deployments[name]
    return (
        deployment.gates.limiter.outstanding,
        deployment.gates.breaker._probing,
        len(deployment.queue),
        len(deployment.inflight),
    ) == (0, 0, 0, 0)


def submitted(system: System, *requests: PriorityRequest) -> None:
    for request in requests:
        system.router.submit(request)


async def error_of(request: PriorityRequest) -> OrchestratorError:
    ending = (await read(request)).ending
    assert isinstance(ending, Failed)
    return ending.error


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turn", range(12))
async def test_a_cancel_in_any_turn_after_the_dispatch_gives_the_permit_back(turn: int) -> None:
    stage = Stage(lambda _request, _call: [asyncio.Event(), DONE])
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request()
        submitted(system, request)
        await turns(turn)

        request.channel.end(CANCEL)
        await turns(20)

        assert at_rest(system)
        assert stage.running == 0


@pytest.mark.parametrize("turn", range(12))
async def test_a_poison_in_any_turn_after_the_dispatch_gives_the_permit_back(turn: int) -> None:
    stage = Stage(lambda _request, _call: [asyncio.Event(), DONE])
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request()
        submitted(system, request)
        await turns(turn)

        system.deployments["m"].poison("test", RuntimeError("on purpose"))
        error = await error_of(request)
        await turns(20)

        assert error.code == "engine_unhealthy"
        assert at_rest(system)
        assert stage.running == 0


async def test_a_cancel_that_the_runner_makes_up_is_a_crash_and_no_lost_request() -> None:
    stage = Stage(lambda _, call: ["a", asyncio.CancelledError()] if call == 0 else ["b", DONE])
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request(held=True)
        submitted(system, request)
        answer = await read(request)

        assert (answer.text, answer.ending) == ("b", DONE)
        assert [record.outcome for record in request.attempts] == ["worker_lost", "done"]
        assert at_rest(system)


async def test_the_record_of_an_attempt_whose_host_died_names_the_loss() -> None:
    gate = asyncio.Event()
    stage = Stage(lambda _, call: [gate, DONE] if call == 0 else ["b", DONE], local=True)
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request()
        submitted(system, request)
        await turns(10)
        stage.kill_host(RuntimeError("segfault"))
        await read(request)

        assert [record.outcome for record in request.attempts] == ["worker_lost", "done"]


@pytest.mark.parametrize("turn", range(8))
async def test_a_host_that_dies_as_its_attempt_fails_leaves_no_request_behind(turn: int) -> None:
    # in one of the turns the attempt takes the pen back after its slot was told lost
    cut = asyncio.Event()
    stage = Stage(
        lambda _, call: [cut, UpstreamServerError("500")] if call == 0 else ["b", DONE], local=True
    )
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request()
        submitted(system, request)
        await turns(10)
        stage.kill_host(RuntimeError("segfault"))
        await turns(turn)
        cut.set()

        answer = await read(request)

        assert (answer.text, answer.ending) == ("b", DONE)
        assert at_rest(system)


async def test_who_fails_after_another_attempt_has_begun_takes_nothing_from_it() -> None:
    cut = asyncio.Event()
    stage = Stage(lambda _request, _call: [cut, UpstreamServerError("500")])
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request()
        submitted(system, request)
        await turns(10)
        request.channel.begin(newer := 1_000)
        cut.set()
        await turns(10)

        assert [record.outcome for record in request.attempts] == ["canceled"]
        assert request.channel.send(TokenChunk("the newer one's"), newer)
        request.channel.end(CANCEL)


async def test_an_attempt_whose_caller_left_is_recorded_as_canceled() -> None:
    gate = asyncio.Event()
    stage = Stage(lambda _request, _call: ["a", gate, "b", DONE])
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        request = make_request(capacity_bytes=70)
        submitted(system, request)
        await turns(10)
        gate.set()
        await turns(20)

        assert isinstance(request.channel.ending, Failed)
        assert [record.outcome for record in request.attempts] == ["canceled"]
        assert at_rest(system)


async def test_idle_and_busy_slots_add_up_to_all_slots_under_load_and_death() -> None:
    stage = Stage(lambda _request, _call: ["a", 0.001, DONE], local=True)
    async with asyncio.timeout(20), running({"m": stage}, slots=4) as system:
        requests = [make_request(held=True) for _ in range(100)]
        submitted(system, *requests)
        await turns(50)
        stage.kill_host(RuntimeError("segfault"))
        answers = [await read(request) for request in requests]
        while system.health()[0].live_slots < 4:  # noqa: ASYNC110 - each turn is a step of the engine
            await asyncio.sleep(0)
        await turns(20)

        assert [answer.ending for answer in answers if answer.ending != DONE] == []
        assert at_rest(system)
        assert sorted(set(stage.calls)) == sorted(request.request_id for request in requests)


def test_requests_go_by_priority_and_then_by_age():
    async def main() -> list[str]:
        gate = asyncio.Event()
        stage = Stage(lambda _request, _call: [gate, DONE])
        async with running({"m": stage}, slots=1) as system:
            first = make_request(request_id="first")
            submitted(system, first)
            await asyncio.sleep(1)
            waiting = [
                make_request(request_id=f"{priority.name.lower()} {number}", priority=priority)
                for number in (1, 2)
                for priority in Priority
            ]
            submitted(system, *waiting)
            gate.set()
            for request in waiting:
                await read(request)
        return stage.calls

    assert run(0, main) == [
        "first",
        *(
            f"{name} {number}"
            for name in ("critical", "high", "normal", "background")
            for number in (1, 2)
        ),
    ]


def test_a_retry_keeps_its_place_before_those_that_came_later():
    async def main() -> list[str]:
        stage = Stage(lambda _, call: [UpstreamServerError("500")] if call == 0 else [1.0, DONE])
        retry = RetrySettings(initial_backoff=0.01, max_backoff=0.02)
        async with running({"m": stage}, slots=1, retry=retry) as system:
            requests = [make_request(request_id=str(number)) for number in range(4)]
            submitted(system, *requests)
            for request in requests:
                await read(request)
        return stage.calls

    assert run(0, main) == ["0", "1", "0", "2", "3"]


def test_a_delayed_request_that_is_due_overtakes_one_that_waits_for_permits():
    async def main() -> tuple[list[str], float]:
        loop = asyncio.get_running_loop()
        costly = Finished(FinishReason.STOP, Usage(prompt_tokens=400, completion_tokens=100))
        stage = Stage(
            lambda _, call: (
                [costly],
                [UpstreamServerError("500", retry_after=1.0)],
                [DONE],
                [DONE],
            )[call]
        )
        async with running(
            {"m": stage}, slots=1, limits=RateLimits(tokens_per_minute=1000.0)
        ) as system:
            filler = make_request(request_id="filler")
            submitted(system, filler)
            await read(filler)
            urgent = make_request(request_id="urgent", priority=Priority.CRITICAL, max_tokens=50)
            submitted(system, urgent)
            await asyncio.sleep(0.5)
            big = make_request(request_id="big", max_tokens=990, timeout=300)
            submitted(system, big)
            await read(urgent)
            return stage.calls, loop.time()

    calls, at = run(0, main)

    assert calls == ["filler", "urgent", "urgent"]
    assert at < 1.1


def test_a_pause_longer_than_anyone_waits_is_answered_at_once_with_its_hint():
    async def main() -> tuple[float, list[tuple[str, float | None]]]:
        loop = asyncio.get_running_loop()
        stage = Stage(
            lambda _request, _call: [UpstreamRateLimitedError("slow", retry_after=3600.0)]
        )
        async with running({"m": stage}, slots=1) as system:
            errors: list[tuple[str, float | None]] = []
            for _ in range(3):
                request = make_request(timeout=7200)
                submitted(system, request)
                error = await error_of(request)
                errors.append((error.code, error.retry_after))
            assert len(stage.calls) == 1
            return loop.time(), errors

    at, errors = run(0, main)

    assert at < 1.0
    assert errors == [("upstream_rate_limited", pytest.approx(3600, abs=1))] * 3


def test_a_pause_beyond_a_requests_deadline_fails_over_at_once():
    async def main() -> float:
        loop = asyncio.get_running_loop()
        limited = Stage(lambda _request, _call: [UpstreamRateLimitedError("slow", retry_after=8.0)])
        healthy = Stage(lambda _request, _call: ["b", DONE])
        async with running({"a": limited, "b": healthy}, {"m": ["a", "b"]}, slots=1) as system:
            for _ in range(5):
                request = make_request(timeout=5)
                submitted(system, request)
                assert (await read(request)).ending == DONE
            assert len(limited.calls) == 1
            return loop.time()

    assert run(0, main) < 1.0


def test_a_pause_within_patience_is_waited_for_in_the_queue():
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        stage = Stage(
            lambda _, call: (
                [UpstreamRateLimitedError("slow", retry_after=5.0)] if call == 0 else [DONE]
            )
        )
        async with running({"m": stage}, slots=4) as system:
            requests = [make_request(timeout=60) for _ in range(4)]
            submitted(system, requests[0])
            await asyncio.sleep(0.1)
            submitted(system, *requests[1:])
            for request in requests:
                assert (await read(request)).ending == DONE
            return loop.time(), len(stage.calls)

    at, calls = run(0, main)

    assert 5.0 <= at < 5.1
    assert calls == 5


def test_a_late_word_from_a_dead_worker_changes_nothing_and_is_counted():
    async def main() -> int:
        stage = Stage(lambda _request, _call: [1.0, "a", DONE], local=True)
        rules = Supervision(initial_backoff=0.01)
        async with running({"m": stage}, slots=2, supervision=rules) as system:
            requests = [make_request() for _ in range(2)]
            submitted(system, *requests)
            await asyncio.sleep(0.5)
            stage.kill_host(RuntimeError("segfault"))
            for request in requests:
                assert (await read(request)).text == "a"
            assert at_rest(system)
        return len(stage.calls)

    assert run(0, main) == 4


def test_a_word_about_an_old_attempt_frees_no_slot_that_is_busy_with_a_new_one():
    async def main() -> tuple[int, Counter[str]]:
        stage = Stage(lambda _request, _call: [1.0, "a", DONE])
        async with running({"m": stage}, slots=1) as system:
            first, second = make_request(), make_request()
            submitted(system, first, second)
            await read(first)
            await asyncio.sleep(0.5)
            (old,) = first.attempts
            engine = system.deployments["m"]._engine
            assert engine is not None
            tell(engine, AttemptEnded(old.worker, old.epoch, Canceled()))
            third = make_request()
            submitted(system, third)
            answers = [await read(second), await read(third)]
            assert at_rest(system)
        return stage.most_running, codes(answers)

    assert run(0, main) == (1, {"ok": 2})


async def test_a_poison_ends_the_running_the_queued_and_the_delayed_alike() -> None:
    gate = asyncio.Event()
    stage = Stage(
        lambda _, call: [UpstreamServerError("500", retry_after=9.0)] if call == 0 else [gate]
    )
    async with asyncio.timeout(5), running({"m": stage}, slots=1) as system:
        requests = [make_request() for _ in range(4)]
        submitted(system, *requests)
        await turns(30)
        inflight = system.deployments["m"].inflight
        fault = Fault(
            scope="engine",
            stage="test",
            worker=None,
            epoch=None,
            cause=RuntimeError("on purpose"),
            at=0.0,
            fault_id="m-1-test",
        )

        inflight.poison(fault)
        errors = [await error_of(request) for request in requests]

        # the delayed one keeps what its attempt failed with, which came first
        tried, *others = errors
        assert tried.code == "upstream_server_error"
        assert {error.code for error in others} == {"engine_unhealthy"}
        assert len({id(error) for error in others}) == 3
        assert {id(error.__cause__) for error in others} == {id(fault.cause)}


def test_a_wake_that_is_due_at_once_may_be_asked_for_twice_on_uvloop() -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(5),
            running({"m": Stage(lambda _request, _call: (DONE,))}) as system,
        ):
            (deployment,) = system.deployments.values()
            engine = deployment._engine
            assert engine is not None
            actor = cast("Engine", engine._actor_weakref())
            now = asyncio.get_running_loop().time()

            actor._wake_at(now)
            actor._wake_at(now)
            actor._wake_at(now + 1.0)
            actor._wake_at(None)

            assert deployment.inflight.state_name == "serving"

    uvloop.run(main())
