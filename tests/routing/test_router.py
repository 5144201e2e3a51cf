"""Which deployment serves, what follows a failure, and the one ending when nothing does."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from orchestrator.actors.supervisor import Supervision
from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    CircuitOpenError,
    EngineUnhealthyError,
    GenerationFailedError,
    InvalidRequestError,
    ModelNotFoundError,
    OrchestratorError,
    RequestCanceledError,
    RequestTooLargeError,
    UpstreamAuthenticationError,
    UpstreamServerError,
    WorkerCrashedError,
)
from orchestrator.events import Failed
from orchestrator.plan import BreakerSettings
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import AttemptRecord, PriorityRequest
from orchestrator.routing.journey import Journey
from orchestrator.routing.route import Route, RoutePolicy
from orchestrator.routing.router import Router
from tests.fakes.scripted import DONE, Stage, always
from tests.fakes.systems import ask, error_of, make_request, read, running

ROUTE = {"m": ["a", "b", "c"]}
ONCE = RetrySettings(max_attempts=1)


def never_starts() -> Stage:
    return Stage(lambda _request, _call: [DONE], start_error=lambda _: OSError("no memory"))


async def test_the_first_ready_deployment_of_the_route_serves() -> None:
    stages = {"a": always("a", DONE), "b": always("b", DONE), "c": always("c", DONE)}
    async with asyncio.timeout(5), running(stages, ROUTE) as system:
        assert (await ask(system, make_request())).text == "a"


async def test_a_deployment_that_is_not_ready_is_passed_over() -> None:
    stages = {"a": never_starts(), "b": always("b", DONE), "c": always("c", DONE)}
    down = Supervision(max_restarts=0, on_poison="stay")
    async with asyncio.timeout(5), running(stages, ROUTE, supervision=down) as system:
        request = make_request()

        assert (await ask(system, request)).text == "b"
        assert [record.deployment for record in request.attempts] == ["b"]


async def test_a_deployment_that_still_loads_is_better_than_none_and_worse_than_a_ready_one() -> (
    None
):
    loading = always("a", DONE)
    loading.start_gate = asyncio.Event()
    stages = {"a": loading, "b": always("b", DONE)}
    async with (
        asyncio.timeout(5),
        running(stages, {"m": ["a", "b"]}, ready=False) as system,
    ):
        changed = asyncio.Event()
        ready = system.deployments["b"].inflight
        ready.observe(changed.set)
        while not ready.ready:
            await changed.wait()

        assert (await ask(system, make_request())).text == "b"

        system.deployments["b"].poison("test", RuntimeError("on purpose"))
        await asyncio.sleep(0)
        waiting = make_request()
        system.router.submit(waiting)
        loading.start_gate.set()
        assert (await read(waiting)).text == "a"


async def test_failures_go_through_the_deployments_in_their_order() -> None:
    stages = {
        "a": always(UpstreamServerError("a is down")),
        "b": always(UpstreamAuthenticationError("b has no key")),
        "c": always("c", DONE),
    }
    async with asyncio.timeout(5), running(stages, ROUTE, retry=ONCE) as system:
        request = make_request()

        assert (await ask(system, request)).text == "c"
        assert [record.deployment for record in request.attempts] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("error", "served_by"),
    [
        (InvalidRequestError("400"), None),
        (GenerationFailedError("nan"), "b"),
        (UpstreamServerError("500"), "b"),
        (UpstreamAuthenticationError("401"), "b"),
        (WorkerCrashedError("segfault"), "b"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_only_what_another_deployment_may_not_share_fails_over(
    error: OrchestratorError, served_by: str | None
) -> None:
    stages = {"a": always(error), "b": always("b", DONE)}
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}, retry=ONCE) as system:
        answer = await ask(system, make_request())

        assert (answer.text or None) == served_by
        assert bool(stages["b"].calls) == (served_by is not None)


async def test_a_request_that_is_not_idempotent_goes_to_one_deployment_only() -> None:
    stages = {"a": always(UpstreamServerError("500")), "b": always("b", DONE)}
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}) as system:
        error = await error_of(system, make_request(idempotent=False))

        assert isinstance(error, UpstreamServerError)
        assert (len(stages["a"].calls), stages["b"].calls) == (1, [])


async def test_a_request_that_is_not_idempotent_may_still_be_refused_and_go_on() -> None:
    stages = {"a": never_starts(), "b": always("b", DONE)}
    down = Supervision(max_restarts=0, on_poison="stay")
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}, supervision=down) as system:
        assert (await ask(system, make_request(idempotent=False))).text == "b"


async def test_nothing_is_restarted_once_a_token_was_read() -> None:
    gate = asyncio.Event()
    stages = {"a": always("The cat", gate, UpstreamServerError("reset")), "b": always("b", DONE)}
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}) as system:
        request = make_request()
        system.router.submit(request)
        chunks, _ = await request.channel.receive()
        gate.set()
        answer = await read(request)

        assert [chunk.text for chunk in chunks] == ["The cat"]
        assert answer.text == ""
        assert isinstance(answer.ending, Failed)
        assert "reset" in str(answer.ending.error)
        assert stages["b"].calls == []


async def test_a_held_caller_gets_a_whole_answer_from_the_next_deployment() -> None:
    stages = {"a": always("The cat", UpstreamServerError("reset")), "b": always("A dog", DONE)}
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}, retry=ONCE) as system:
        answer = await ask(system, make_request(held=True))

    assert (answer.text, answer.ending) == ("A dog", DONE)


async def test_the_error_of_a_real_attempt_tells_more_than_a_refusal() -> None:
    stages = {
        "a": never_starts(),
        "b": always(UpstreamServerError("b is down")),
        "c": never_starts(),
    }
    down = Supervision(max_restarts=0, on_poison="stay")
    async with asyncio.timeout(5), running(stages, ROUTE, supervision=down, retry=ONCE) as system:
        error = await error_of(system, make_request())

    assert "b is down" in str(error)


async def test_a_refusal_of_a_breaker_does_not_hide_what_the_next_upstream_said() -> None:
    stages = {
        "a": always(UpstreamServerError("a is down")),
        "b": always(UpstreamServerError("b is down")),
    }
    rules = BreakerSettings(failure_threshold=2)
    route = {"m": ["a", "b"]}
    async with asyncio.timeout(5), running(stages, route, breaker=rules, retry=ONCE) as system:
        for _ in range(2):
            await error_of(system, make_request(model="a"))
        error = await error_of(system, make_request())

    assert "b is down" in str(error)


async def test_when_all_are_unhealthy_the_first_cause_is_told() -> None:
    stages = {"a": never_starts(), "b": never_starts()}
    down = Supervision(max_restarts=0, on_poison="stay")
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}, supervision=down) as system:
        error = await error_of(system, make_request())

    assert (error.code, error.status_code) == ("engine_unhealthy", 503)
    assert "deployment a" in str(error)
    assert "no memory" in str(error)


async def test_an_unknown_model_is_answered_with_the_nearest_name() -> None:
    async with asyncio.timeout(5), running({"smollm2": always(DONE)}) as system:
        error = await error_of(system, make_request("smolm2"))

    assert (error.code, error.status_code) == ("model_not_found", 404)
    assert "did you mean 'smollm2'" in str(error)


def test_one_deadline_covers_queue_backoff_attempts_and_failover():
    async def main() -> tuple[float, OrchestratorError, int]:
        loop = asyncio.get_running_loop()
        stages = {
            "a": always(2.0, UpstreamServerError("a is slow and down", retry_after=3.0)),
            "b": always(100.0, DONE),
        }
        retry = RetrySettings(max_attempts=2)
        async with running(stages, {"m": ["a", "b"]}, slots=1, retry=retry) as system:
            request = make_request(timeout=10.0)
            error = await error_of(system, request)
            return loop.time(), error, len(request.attempts)

    at, error, attempts = run(0, main)

    # 2 s, a wait of 3 s, 2 s again, then the other deployment until the end
    assert at == pytest.approx(10.0, abs=0.01)
    assert attempts == 3
    assert error.code == "deadline_exceeded"
    assert "3 attempts; first error: UpstreamServerError: a is slow and down" in str(error)
    assert isinstance(error.root_cause, UpstreamServerError)


def test_a_deadline_ends_a_request_that_still_waits_in_the_queue():
    async def main() -> tuple[float, str, int]:
        loop = asyncio.get_running_loop()
        async with running({"m": always(3600.0, DONE)}, slots=1, timeout=7200.0) as system:
            system.router.submit(make_request())
            error = await error_of(system, make_request(timeout=1.5))
            return loop.time(), error.code, len(system.deployments["m"].queue)

    assert run(0, main) == (1.5, "deadline_exceeded", 0)


# --- inspection ----------------------------------------------------------------------------------

Inspect = Callable[[PriorityRequest], Awaitable[None] | None]


def refusing(error: BaseException, *, later: bool) -> Inspect:
    async def refuse() -> None:
        await asyncio.sleep(0)
        raise error

    def inspect(_request: PriorityRequest) -> Awaitable[None] | None:
        if later:
            return refuse()
        raise error

    return inspect


def inspected(stage: Stage, inspect: Inspect) -> Stage:
    stage.inspect = inspect
    return stage


@pytest.mark.parametrize("later", [False, True])
async def test_what_no_deployment_can_serve_is_refused_before_the_queue(later: bool) -> None:
    stage = inspected(always(DONE), refusing(InvalidRequestError("too long"), later=later))
    async with asyncio.timeout(5), running({"m": stage}) as system:
        error = await error_of(system, make_request())

        assert isinstance(error, InvalidRequestError)
        assert system.deployments["m"].inflight.accepted_total == 0


@pytest.mark.parametrize("later", [False, True])
async def test_what_one_deployment_cannot_serve_goes_to_one_that_can(later: bool) -> None:
    stages = {
        "a": inspected(always("a", DONE), refusing(InvalidRequestError("no"), later=later)),
        "b": always("b", DONE),
    }
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}) as system:
        assert (await ask(system, make_request())).text == "b"


async def test_a_request_above_the_token_limit_is_too_large_and_never_waits() -> None:
    limits = RateLimits(tokens_per_minute=1000)
    async with asyncio.timeout(5), running({"m": always(DONE)}, limits=limits) as system:
        error = await error_of(system, make_request(max_tokens=1000))

    assert isinstance(error, RequestTooLargeError)


@pytest.mark.parametrize("later", [False, True])
async def test_an_inspection_that_fails_unexpectedly_ends_the_request_at_once(
    later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stage = inspected(always(DONE), refusing(ZeroDivisionError("a bug"), later=later))
    async with asyncio.timeout(5), running({"m": stage}) as system:
        error = await error_of(system, make_request())

    assert error.code == "internal_error"
    assert "ZeroDivisionError" in str(error)
    assert "a bug" not in str(error)
    assert "a bug" in str(error.__cause__)
    assert "Traceback" in caplog.text


async def test_an_inspection_that_cannot_tell_leaves_the_word_to_the_attempt() -> None:
    stage = inspected(always("a", DONE), refusing(WorkerCrashedError("host gone"), later=True))
    async with asyncio.timeout(5), running({"m": stage}) as system:
        assert (await ask(system, make_request())).text == "a"


async def test_a_cancel_ends_every_inspection_that_still_runs() -> None:
    canceled: list[str] = []

    def waiting(name: str) -> Inspect:
        async def wait() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                canceled.append(name)
                raise

        return lambda _request: wait()

    stages = {name: inspected(always(DONE), waiting(name)) for name in ("a", "b")}
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}) as system:
        request = make_request()
        system.router.submit(request)
        await asyncio.sleep(0)

        request.channel.end(Failed(RequestCanceledError("gone")))
        for _ in range(5):
            await asyncio.sleep(0)

        assert sorted(canceled) == ["a", "b"]
        assert all(not stage.calls for stage in stages.values())


async def test_a_cancel_before_an_inspection_began_leaves_no_lost_coroutine() -> None:
    stages = {
        name: inspected(always(DONE), refusing(InvalidRequestError("no"), later=True))
        for name in ("a", "b")
    }
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}) as system:
        request = make_request()
        system.router.submit(request)

        request.channel.end(Failed(RequestCanceledError("gone")))
        for _ in range(5):
            await asyncio.sleep(0)

        assert not system.router._inspections


def test_a_deadline_ends_an_inspection_that_hangs():
    async def hang() -> None:
        await asyncio.Event().wait()

    async def main() -> tuple[float, str]:
        stage = inspected(always(DONE), lambda _request: hang())
        async with running({"m": stage}) as system:
            error = await error_of(system, make_request(timeout=2.0))
            return asyncio.get_running_loop().time(), error.code

    assert run(0, main) == (2.0, "deadline_exceeded")


async def test_a_name_of_any_length_costs_no_time_and_is_not_repeated_whole() -> None:
    routes = {f"route-{number}": Route(f"route-{number}", []) for number in range(100)}
    router = Router(routes, random.Random(0))

    with pytest.raises(ModelNotFoundError) as raised:
        router.route("c" * 4_000_000)

    assert len(str(raised.value)) < 1000


async def test_an_error_of_any_text_is_one_line_of_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = always(InvalidRequestError("a\nERROR a false line" + "x" * 5000))
    caplog.set_level("INFO", "orchestrator.routing.router")

    async with asyncio.timeout(5), running({"m": stage}) as system:
        request = make_request()
        system.router.submit(request)
        await read(request)

    lines = [r.getMessage() for r in caplog.records if r.name == "orchestrator.routing.router"]
    assert len(lines) == 1
    assert "\n" not in lines[0]
    assert len(lines[0]) < 1500


async def test_a_deployment_that_is_paused_for_long_comes_after_one_that_serves() -> None:
    stages = {"a": always("a", DONE), "b": always("b", DONE)}

    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}) as system:
        limiter = system.deployments["a"].gates.limiter
        limiter.pause(asyncio.get_running_loop().time() + 600.0)
        answer = await ask(system, make_request())

    assert answer.text == "b"
    assert stages["a"].calls == []


async def test_a_poison_that_ended_an_attempt_tells_more_than_a_refusal_before_it() -> None:
    # seed 30438 of the simulation
    request = make_request()
    request.attempts.append(
        AttemptRecord(deployment="b", worker="b/0.1", epoch=1, started_at=0.0, queued_for=0.0)
    )
    journey = Journey(request, RoutePolicy(), [])
    journey._errors += [CircuitOpenError("a refuses"), EngineUnhealthyError("b is poisoned")]

    journey.go_on()

    assert isinstance(request.channel.ending, Failed)
    assert request.channel.ending.error.code == "engine_unhealthy"
