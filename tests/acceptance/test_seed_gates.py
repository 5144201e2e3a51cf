"""Runs C, D, G, H, K, R and S: permits, the queue, breaker and retries in front of a provider.

What the ancestor did stands in a comment, what is right in the assertions; see test_seed_systems.
"""

import asyncio
from collections import Counter

import pytest

from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    ContextLengthExceededError,
    OrchestratorError,
    RequestCanceledError,
    UpstreamRateLimitedError,
    UpstreamServerError,
)
from orchestrator.events import Failed
from orchestrator.plan import BreakerSettings
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import Priority
from tests.fakes.scripted import DONE, Line, Stage, always
from tests.fakes.systems import (
    Answer,
    ask,
    ask_all,
    assert_at_rest,
    codes,
    error_of,
    make_request,
    read,
    running,
)

ONCE = RetrySettings(max_attempts=1)
GONE = Failed(RequestCanceledError("the caller went away"))


def test_c_twenty_at_once_find_one_permit_per_minute() -> None:
    # there: 20 of 20 passed at once
    async def main() -> tuple[list[float], Counter[str]]:
        loop = asyncio.get_running_loop()
        starts: list[float] = []
        stage = always(DONE)
        stage.on_running = lambda running: starts.append(loop.time()) if running else None
        limits = RateLimits(requests_per_minute=1.0)
        async with running({"m": stage}, slots=8, limits=limits) as system:
            answers = await ask_all(system, [make_request(timeout=150.0) for _ in range(20)])
            assert_at_rest(system, 8)
        return starts, codes(answers)

    starts, outcome = run(0, main)

    assert starts == pytest.approx([0.0, 61.0, 122.0], abs=0.01)
    assert outcome == {"ok": 3, "deadline_exceeded": 17}


def test_c_a_canceled_wait_for_a_permit_takes_none() -> None:
    async def main() -> tuple[float, int]:
        loop = asyncio.get_running_loop()
        stage = always(DONE)
        limits = RateLimits(requests_per_minute=1.0)
        async with running({"m": stage}, slots=4, limits=limits) as system:
            await ask(system, make_request())
            waiting = [make_request() for _ in range(10)]
            for request in waiting:
                system.router.submit(request)
            await asyncio.sleep(10)
            for request in waiting:
                request.channel.end(GONE)
            assert (await ask(system, make_request(timeout=100.0))).ending == DONE
        return loop.time(), len(stage.calls)

    assert run(0, main) == (pytest.approx(61.0, abs=0.01), 2)


@pytest.mark.parametrize("midstream", [False, True])
def test_d_the_breaker_is_fed_by_every_attempt_those_in_midstream_too(midstream: bool) -> None:
    # there: 50 upstream calls for 50 requests, breaker closed
    async def main() -> tuple[int, Counter[str], str]:
        error = UpstreamServerError("503")
        stage = always("a", 0.01, error) if midstream else always(error)
        rules = BreakerSettings(failure_threshold=3, open_for=3600.0)
        async with running({"m": stage}, slots=1, breaker=rules, retry=ONCE) as system:
            answers = [await ask(system, make_request()) for _ in range(50)]
            return len(stage.calls), codes(answers), system.health()[0].breaker

    calls, outcome, state = run(0, main)

    assert calls == 3
    assert outcome == {"upstream_server_error": 3, "circuit_open": 47}
    assert state == "open"


def test_g_a_hint_of_a_day_is_neither_slept_nor_ignored() -> None:
    # there: sleeps 86,400 s
    async def main() -> tuple[float, OrchestratorError, int]:
        loop = asyncio.get_running_loop()
        stage = always(UpstreamRateLimitedError("429", retry_after=86_400.0))
        async with running({"m": stage}, slots=1) as system:
            error = await error_of(system, make_request(timeout=100_000.0))
            return loop.time(), error, len(stage.calls)

    at, error, calls = run(0, main)

    assert (at, calls) == (0.0, 1)
    assert (error.status_code, error.retry_after) == (429, 86_400.0)


def test_h_a_hundred_at_once_find_one_probe() -> None:
    # there: 100 of 100 let through
    async def main() -> tuple[int, Counter[str], str]:
        stage = always(1.0, UpstreamServerError("503"))
        rules = BreakerSettings(failure_threshold=1, open_for=30.0)
        async with running({"m": stage}, slots=100, breaker=rules, retry=ONCE) as system:
            await ask(system, make_request())
            await asyncio.sleep(30)
            before = len(stage.calls)
            answers = await ask_all(system, [make_request() for _ in range(100)])
            return len(stage.calls) - before, codes(answers), system.health()[0].breaker

    calls, outcome, state = run(0, main)

    assert calls == 1
    assert outcome == {"upstream_server_error": 1, "circuit_open": 99}
    assert state == "open"


def test_h_a_success_that_was_late_does_not_close_the_breaker() -> None:
    async def main() -> tuple[Counter[str], str]:
        stage = Stage(
            lambda _request, call: [10.0, "a", DONE] if call == 0 else [UpstreamServerError("503")]
        )
        rules = BreakerSettings(failure_threshold=3, open_for=3600.0)
        async with running({"m": stage}, slots=2, breaker=rules, retry=ONCE) as system:
            answers = await ask_all(system, [make_request() for _ in range(6)])
            return codes(answers), system.health()[0].breaker

    outcome, state = run(0, main)

    assert outcome == {"ok": 1, "upstream_server_error": 3, "circuit_open": 2}
    assert state == "open"


def test_h_a_provider_that_fails_for_ever_is_asked_a_few_times_only() -> None:
    # there: 1,691 calls let through in 200 s
    async def main() -> int:
        stage = always(UpstreamServerError("503"))
        rules = BreakerSettings(failure_threshold=10, open_for=30.0)
        async with running({"m": stage}, slots=4, breaker=rules, retry=ONCE) as system:
            for _ in range(2000):
                await ask(system, make_request())
                await asyncio.sleep(0.1)
        return len(stage.calls)

    assert run(0, main) <= 10 + 7


def test_k_a_critical_request_takes_the_place_of_one_in_a_full_queue() -> None:
    # there: Backpressure for the critical one
    async def main() -> tuple[list[Answer], Answer]:
        async with running({"m": always(1.0, DONE)}, slots=1, queue_capacity=3) as system:
            normal = [make_request() for _ in range(4)]
            for request in normal:
                system.router.submit(request)
                await asyncio.sleep(0.01)
            critical = await ask(system, make_request(priority=Priority.CRITICAL))
            answers = [await read(request) for request in normal]
            assert_at_rest(system, 1)
        return answers, critical

    normal, critical = run(0, main)

    assert critical.ending == DONE
    assert codes(normal) == {"ok": 3, "queue_full": 1}
    assert isinstance(normal[-1].ending, Failed)  # the youngest has an ending of its own
    assert normal[-1].ending.error.status_code == 429


def test_lim_3_errors_of_callers_and_those_who_leave_open_no_circuit() -> None:
    async def main() -> tuple[Counter[str], str, bool]:
        def script(_request: object, call: int) -> list[Line]:
            if call < 10:
                return [ContextLengthExceededError("too long")]
            return [5.0, DONE] if call < 20 else [DONE]

        rules = BreakerSettings(failure_threshold=3)
        async with running({"m": Stage(script)}, slots=1, breaker=rules, retry=ONCE) as system:
            answers = [await ask(system, make_request()) for _ in range(10)]
            for _ in range(10):
                gone = make_request()
                system.router.submit(gone)
                await asyncio.sleep(0.1)
                gone.channel.end(GONE)
                await asyncio.sleep(0.1)
            answers.append(await ask(system, make_request()))
            breaker = system.deployments["m"].gates.breaker
            assert_at_rest(system, 1)
            return codes(answers), breaker.state, breaker.forced is not None

    assert run(0, main) == ({"context_length_exceeded": 10, "ok": 1}, "closed", False)


def test_r_a_limited_key_does_not_hold_up_a_healthy_one() -> None:
    # there: one of six ok, at 6 s
    async def main() -> tuple[float, Counter[str], int]:
        loop = asyncio.get_running_loop()
        limited = always(UpstreamRateLimitedError("429", retry_after=20.0))
        stages = {"limited": limited, "healthy": always("a", DONE)}
        async with running(stages, {"m": ["limited", "healthy"]}, slots=1) as system:
            answers = await ask_all(system, [make_request() for _ in range(6)])
            return loop.time(), codes(answers), len(limited.calls)

    assert run(0, main) == (0.0, {"ok": 6}, 1)


def test_s_a_gate_that_refuses_the_retry_does_not_hide_the_first_cause() -> None:
    # there: the client got "circuit open", and the 503's text was lost
    async def main() -> OrchestratorError:
        stage = always(UpstreamServerError("503: the provider's own words", retry_after=1.0))
        rules = BreakerSettings(failure_threshold=2)
        async with running({"m": stage}, slots=2, breaker=rules) as system:
            request = make_request()
            system.router.submit(request)
            await asyncio.sleep(0.5)
            await ask(system, make_request(idempotent=False))
            ending = (await read(request)).ending
            assert isinstance(ending, Failed)
            return ending.error

    assert "the provider's own words" in str(run(0, main))
