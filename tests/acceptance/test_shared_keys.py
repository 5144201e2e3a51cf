"""Limits are per key and model: a provider sees one limit, whatever deployments send the key."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.chaos.simulation.world import run
from orchestrator.config import parse
from orchestrator.errors import UpstreamRateLimitedError
from orchestrator.plan import DeploymentPlan, QueueSettings, plan_deployments
from orchestrator.policies.limits.settings import Account, RateLimits
from orchestrator.request import Priority, PriorityRequest
from orchestrator.wiring import System
from tests.acceptance.test_limits_at_the_provider import MINUTE, Recording, most_in_a_minute
from tests.fakes.systems import assert_at_rest, make_request, read

LIMIT = 60
ACCOUNT = Account("http://provider/v1", "m", "key")


def two(
    recording: Recording,
    account: Account | None,
    *,
    slots: int = 8,
    limits: RateLimits = RateLimits(requests_per_minute=LIMIT, learn=True),  # noqa: B008 - frozen
) -> System:
    plans = [
        DeploymentPlan(
            name=name, factory=recording.factory(), slots=slots, limits=limits, account=account
        )
        for name in ("quick", "batch")
    ]
    return System(plans, monitored=False)


@pytest.mark.parametrize(("account", "limits"), [(ACCOUNT, 1), (None, 2)])
def test_two_deployments_with_one_key_stay_below_its_one_limit(
    account: Account | None, limits: int
) -> None:
    async def main() -> Sequence[float]:
        recording = Recording()
        system = two(recording, account)
        system.start()
        await system.settled()
        requests: list[PriorityRequest] = []
        for number in range(5 * LIMIT * 3):
            request = make_request(model=("quick", "batch")[number % 2], timeout=20.0)
            system.router.submit(request)
            requests.append(request)
            await asyncio.sleep(MINUTE / (5 * LIMIT))
        for request in requests:
            await read(request)
        assert_at_rest(system, 8)
        await system.aclose()
        return [at for at, _ in recording.seen]

    seen = [(at, 1.0) for at in run(0, main)]

    assert most_in_a_minute(seen) <= limits * LIMIT
    assert len(seen) >= 0.9 * limits * LIMIT * 3


def test_a_pause_of_a_key_is_kept_by_every_deployment_that_sends_it() -> None:
    async def main() -> tuple[int, float]:
        recording = Recording({"": [UpstreamRateLimitedError("429", retry_after=5.0)]})
        system = two(recording, ACCOUNT)
        system.start()
        await system.settled()
        first = make_request(model="quick", timeout=1.0)
        system.router.submit(first)
        await read(first)
        recording.script.clear()
        other = make_request(model="batch", timeout=20.0)
        system.router.submit(other)
        await read(other)
        await system.aclose()
        return len(recording.seen), recording.seen[1][0]

    calls, at = run(0, main)

    assert calls == 2
    assert at >= 5.0


def test_a_deployment_that_dies_in_line_does_not_hold_up_the_other() -> None:
    async def main() -> float:
        recording = Recording()
        system = two(recording, ACCOUNT, slots=1)
        system.start()
        await system.settled()
        system.deployments["quick"].gates.limiter.pause(2.0)
        for name in ("quick", "batch"):  # both wait for the pause to end, in this order
            system.router.submit(make_request(model=name, timeout=20.0))
            await asyncio.sleep(0.1)
        system.deployments["quick"].poison("drill", RuntimeError("poison"))
        await asyncio.sleep(0.1)
        request = make_request(model="batch", timeout=20.0)
        system.router.submit(request)
        await read(request)
        at = asyncio.get_running_loop().time()
        await system.aclose()
        return at

    assert run(0, main) < 4.0


def served_after(requests: Sequence[tuple[float, str, Priority]], aging: float) -> list[float]:
    """Seconds from each arrival to its answer; with the one key an attempt a second may start."""
    recording = Recording()
    plans = [
        DeploymentPlan(
            name=name,
            factory=recording.factory(),
            slots=8,
            limits=RateLimits(requests_per_minute=LIMIT),
            account=ACCOUNT,
            queue=QueueSettings(aging=aging),
        )
        for name in ("quick", "batch")
    ]
    system = System(plans, monitored=False)

    async def wait_for(at: float, model: str, priority: Priority) -> float:
        await asyncio.sleep(at)
        request = make_request(model=model, priority=priority, timeout=900.0)
        system.router.submit(request)
        await read(request)
        return asyncio.get_running_loop().time() - at

    async def main() -> list[float]:
        system.start()
        await system.settled()
        waited = await asyncio.gather(*(wait_for(*request) for request in requests))
        await system.aclose()
        return waited

    return run(0, main)


def test_the_urgent_request_of_one_deployment_goes_before_what_waits_at_another() -> None:
    crowd = [(0.0, "batch", Priority.NORMAL)] * LIMIT

    *rest, urgent = served_after([*crowd, (10.0, "quick", Priority.HIGH)], aging=900.0)

    assert urgent < 1.5
    assert max(rest) > 50.0


def test_endless_urgent_requests_at_one_deployment_do_not_starve_another_one() -> None:
    aging = 10.0
    endless = [(second / 2, "quick", Priority.CRITICAL) for second in range(240)]

    waited, *_ = served_after([(30.0, "batch", Priority.BACKGROUND), *endless], aging)

    assert 2 * aging < waited < 3 * aging + 3.0


def test_when_an_urgent_request_has_ended_who_waits_behind_it_at_another_goes_at_once() -> None:
    async def main() -> float:
        recording = Recording()
        system = two(recording, ACCOUNT, limits=RateLimits(tokens_per_minute=1000))
        system.start()
        await system.settled()
        loop, limiter = asyncio.get_running_loop(), system.deployments["quick"].gates.limiter
        permit = limiter.reserve(500, 0, loop.time())
        assert permit is not None
        large = make_request(model="quick", priority=Priority.HIGH, max_tokens=900, timeout=5.0)
        small = make_request(model="batch", max_tokens=10, timeout=90.0)
        for request in (large, small):
            system.router.submit(request)
            await asyncio.sleep(0.1)
        await asyncio.gather(read(large), read(small))
        permit.spend()
        at = loop.time()
        await system.aclose()
        return at

    assert run(0, main) == pytest.approx(5.0, abs=0.1)


TWO = """
deployments:
  quick: {{runner: {{kind: openai, model: m, base_url: 'http://127.0.0.1:9/v1', {key}}}, {limits}}}
  batch: {{runner: {{kind: openai, model: m, base_url: 'http://127.0.0.1:9/v1', {key}}}}}
"""


@pytest.mark.parametrize(
    ("key", "limits", "shares"),
    [
        ("api_key: k", "limits: {requests_per_minute: 60}", True),
        ("api_key: {command: [echo, k]}", "slots: 8", True),
        ("api_keys: [k, {api_key: l, limits: {requests_per_minute: 5}}]", "slots: 8", True),
        ("api_key: k", "limits: {shared: false}", False),
        ("drop_params: false", "slots: 8", False),
    ],
)
async def test_a_configuration_shares_what_has_the_same_endpoint_key_and_model(
    tmp_path: Path, key: str, limits: str, shares: bool
) -> None:
    plans, routes = plan_deployments(parse(TWO.format(key=key, limits=limits), folder=tmp_path))
    system = System(plans, routes, monitored=False)

    quick, batch = (system.deployments[name].gates.limiter for name in ("quick", "batch"))
    together = [quick.shares, batch.shares]
    await system.aclose()

    assert [one is other for one, other in zip(quick.keys, batch.keys, strict=True)] == [
        shares for _ in quick.keys
    ]
    assert together == [shares, shares]
