"""One bound for all attempts, no deployment twice, and what the one error tells."""

import asyncio
from collections.abc import Sequence

import pytest

from orchestrator.chaos.simulation.world import run
from orchestrator.errors import (
    ContentFilteredError,
    ContextLengthExceededError,
    UpstreamQuotaExceededError,
    UpstreamServerError,
)
from orchestrator.plan import RoutePlan
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.routing.route import RoutePolicy
from orchestrator.routing.rules import Rules
from orchestrator.runners.lease import StepLimits
from orchestrator.stream import TokenStream
from tests.fakes.scripted import DONE, always
from tests.fakes.systems import ask, ask_all, error_of, make_request, running

AT_ONCE = RetrySettings(max_attempts=3, initial_backoff=0.001, max_backoff=0.001)


def down(name: str) -> UpstreamServerError:
    return UpstreamServerError(f"{name} is down")


async def test_tries_add_up_over_the_deployments_and_never_multiply() -> None:
    stages = {name: always(down(name)) for name in ("a", "b", "c")}
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b", "c"]}, retry=AT_ONCE) as system:
        request = make_request()
        error = await error_of(system, request)

    # three at the first, and one kept for each of the others
    assert [record.deployment for record in request.attempts] == ["a", "a", "a", "b", "c"]
    assert "a is down" in str(error)


async def test_what_the_first_deployment_did_not_use_is_left_for_the_next() -> None:
    stages = {
        "a": always(UpstreamQuotaExceededError("used up")),
        "b": always(down("b")),
        "c": always("c", DONE),
    }
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b", "c"]}, retry=AT_ONCE) as system:
        request = make_request()
        answer = await ask(system, request)

    assert answer.text == "c"
    assert [record.deployment for record in request.attempts] == ["a", "b", "b", "b", "c"]


@pytest.mark.parametrize(("limit", "attempts"), [(1, "a"), (2, "ab"), (4, "aabc")])
async def test_a_route_bounds_the_attempts_at_all_its_deployments(
    limit: int, attempts: str
) -> None:
    stages = {name: always(down(name)) for name in ("a", "b", "c")}
    route = RoutePlan(deployments=["a", "b", "c"], policy=RoutePolicy(max_attempts=limit))
    async with asyncio.timeout(5), running(stages, {"m": route}, retry=AT_ONCE) as system:
        request = make_request()
        await error_of(system, request)

    assert "".join(record.deployment for record in request.attempts) == attempts


async def test_the_one_error_lists_all_attempts_and_refusals() -> None:
    stages = {"a": always(down("a")), "b": always(UpstreamQuotaExceededError("used up"))}
    once = RetrySettings(max_attempts=1)
    async with asyncio.timeout(5), running(stages, {"m": ["a", "b"]}, retry=once) as system:
        request = make_request()
        error = await error_of(system, request)

    assert "a is down" in str(error)
    assert error.__notes__ == [
        "attempts: a/0.1 UpstreamServerError: a is down; b/0.1 UpstreamQuotaExceededError: used up"
    ]


async def test_a_context_too_long_for_one_goes_to_the_larger_deployment() -> None:
    stages = {
        "small": always(ContextLengthExceededError("8192 tokens at most")),
        "other": always("other", DONE),
        "large": always("large", DONE),
    }
    stages["small"].context, stages["large"].context = 8192, 128_000
    async with asyncio.timeout(5), running(stages, {"m": list(stages)}) as system:
        request = make_request()
        answer = await ask(system, request)

    assert answer.text == "large"
    assert [record.deployment for record in request.attempts] == ["small", "large"]


async def test_a_filtered_request_follows_the_rule_of_its_route() -> None:
    stages = {"a": always(ContentFilteredError("no")), "b": always("b", DONE)}
    lenient = RoutePolicy(rules=Rules({"content_filter": ("b",)}))
    routes = {
        "strict": RoutePlan(deployments=["a", "b"]),
        "lenient": RoutePlan(deployments=["a", "b"], policy=lenient),
    }
    async with asyncio.timeout(5), running(stages, routes) as system:
        error = await error_of(system, make_request("strict"))
        answer = await ask(system, make_request("lenient"))

    assert error.code == "content_filter"
    assert answer.text == "b"


def test_a_silence_before_the_first_token_moves_on_to_the_next_deployment_at_once():
    async def main() -> tuple[float, str, list[str]]:
        stages = {"a": always(3600.0, DONE), "b": always("b", DONE)}
        steps = StepLimits(first_token=2.0)
        async with running(stages, {"m": ["a", "b"]}, steps=steps) as system:
            request = make_request()
            answer = await ask(system, request)
            at = asyncio.get_running_loop().time()
            return at, answer.text, [record.deployment for record in request.attempts]

    assert run(0, main) == (2.0, "b", ["a", "b"])


def test_a_silence_of_the_only_deployment_is_tried_again_there():
    async def main() -> int:
        steps = StepLimits(first_token=2.0)
        async with running({"a": always(3600.0, DONE)}, steps=steps) as system:
            request = make_request("a")
            await error_of(system, request)
            return len(request.attempts)

    assert run(0, main) == 3


def test_a_route_by_latency_leaves_a_deployment_that_has_become_slow():
    async def main() -> list[str]:
        stages = {"a": always(0.5, "a", DONE), "b": always(0.1, "b", DONE)}
        route = RoutePlan(deployments=["a", "b"], policy=RoutePolicy(strategy="latency"))
        async with running(stages, {"m": route}) as system:
            return [(await ask(system, make_request())).text for _ in range(6)]

    served = run(0, main)

    assert sorted(served[:2]) == ["a", "b"]
    assert served[2:] == ["b"] * 4


def test_the_wait_for_a_permit_is_told_apart_from_the_wait_for_a_slot():
    async def main() -> list[tuple[float, float]]:
        limits = RateLimits(requests_per_minute=10)
        async with running({"m": always(2.0, "a", DONE)}, slots=1, limits=limits) as system:
            requests = [make_request(), make_request()]
            await ask_all(system, requests)
            records = [request.attempts[0] for request in requests]
            return [(record.queued_for, record.permit_for) for record in records]

    first, second = run(0, main)

    assert first == (0.0, 0.0)
    assert second == (pytest.approx(6.0, abs=0.01), pytest.approx(4.0, abs=0.01))


def test_a_stream_tells_who_refused_it_without_an_attempt():
    async def main() -> tuple[Sequence[tuple[str, str]], str]:
        stages = {"a": always(5.0, "a", DONE), "b": always("b", DONE)}
        async with running(stages, {"m": ("a", "b")}, slots=1, queue_capacity=1) as system:
            requests = [make_request("a"), make_request("a"), make_request()]
            for request in requests:
                system.router.submit(request)
                await asyncio.sleep(0.1)
            stream = TokenStream(requests[2], asyncio.get_running_loop())
            answer = await stream
            return answer.passed_over, answer.text

    assert run(0, main) == ((("a", "queue_full"),), "b")
