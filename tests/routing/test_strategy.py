"""Who is asked first, by each strategy."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.routing.deployment import Deployment
from orchestrator.routing.route import RoutePolicy, Strategy
from orchestrator.routing.strategy import in_order
from tests.fakes.systems import make_request
from tests.routing.deployments import deployment

ALL: tuple[Strategy, ...] = ("failover", "weighted", "least_busy", "latency")


def names(ordered: list[Deployment]) -> list[str]:
    return [one.name for one in ordered]


def busy(name: str, requests: int, slots: int) -> Deployment:
    made = deployment(name, slots=slots)
    for _ in range(requests):
        made.inflight.accept(make_request(), lambda _: None, now=0.0)
    return made


@pytest.mark.parametrize("strategy", ALL)
@given(healthy=st.lists(st.booleans(), min_size=1, max_size=6), seed=st.integers(0, 2**32))
def test_every_deployment_comes_once_and_the_healthy_ones_come_first(
    strategy: Strategy, healthy: list[bool], seed: int
):
    known = [deployment(str(number), healthy=well) for number, well in enumerate(healthy)]

    ordered = in_order(RoutePolicy(strategy=strategy), known, random.Random(seed))

    assert sorted(names(ordered)) == sorted(names(known))
    health = [one.healthy() for one in ordered]
    assert health == sorted(health, reverse=True)


def test_failover_keeps_the_order_of_the_route():
    known = [deployment("a", healthy=False), deployment("b"), deployment("c")]

    assert names(in_order(RoutePolicy(), known, random.Random(1))) == ["b", "c", "a"]


def test_one_that_waits_for_its_breaker_comes_before_one_that_is_down():
    known = [deployment("down", healthy=False), deployment("open", healthy=False, ready=True)]

    assert names(in_order(RoutePolicy(), known, random.Random(1))) == ["open", "down"]


def test_weights_decide_how_often_a_deployment_is_first():
    policy = RoutePolicy(strategy="weighted", weights={"a": 3, "c": 0})
    known = [deployment(name) for name in ("a", "b", "c")]
    chance = random.Random(7)

    first = Counter(in_order(policy, known, chance)[0].name for _ in range(4000))
    last = Counter(in_order(policy, known, chance)[-1].name for _ in range(100))

    assert first["a"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert first["c"] == 0
    assert last == {"c": 100}


def test_the_least_busy_deployment_is_the_one_with_the_fewest_requests_per_slot():
    known = [busy("a", 3, slots=2), busy("b", 4, slots=8), busy("c", 1, slots=1)]

    ordered = in_order(RoutePolicy(strategy="least_busy"), known, random.Random(1))

    assert names(ordered) == ["b", "c", "a"]


def test_idle_deployments_share_what_comes_to_a_route_by_load():
    known = [deployment("a"), deployment("b")]
    chance = random.Random(3)

    policy = RoutePolicy(strategy="least_busy")
    first = Counter(in_order(policy, known, chance)[0].name for _ in range(1000))

    assert first["a"] == pytest.approx(500, abs=60)


def test_the_faster_of_two_is_first_unless_its_queue_makes_it_slower():
    fast, slow = busy("fast", 0, slots=1), busy("slow", 0, slots=1)
    fast.latency.observe(0.1, now=1.0)
    slow.latency.observe(0.25, now=1.0)
    policy, chance = RoutePolicy(strategy="latency"), random.Random(1)

    assert names(in_order(policy, [slow, fast], chance)) == ["fast", "slow"]

    for _ in range(2):
        fast.inflight.accept(make_request(), lambda _: None, now=0.0)
    assert names(in_order(policy, [slow, fast], chance)) == ["slow", "fast"]


def test_of_many_deployments_two_are_drawn_and_the_slowest_is_never_first():
    known = [deployment(str(number)) for number in range(4)]
    for number, one in enumerate(known):
        one.latency.observe(0.1 * (number + 1), now=1.0)
    chance = random.Random(5)

    policy = RoutePolicy(strategy="latency")
    first = Counter(in_order(policy, known, chance)[0].name for _ in range(3000))

    # the best of two out of four: 3, 2, 1 and 0 of the 6 pairs
    assert [first[str(n)] / 3000 for n in range(4)] == pytest.approx(
        [0.5, 1 / 3, 1 / 6, 0], abs=0.03
    )
