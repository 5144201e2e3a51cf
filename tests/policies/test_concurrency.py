"""The limit follows what a deployment can take, and nothing else."""

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.policies.concurrency import Concurrency


def serve(limit: Concurrency, times: int, *, seconds: float = 0.1, now: float = 0.0) -> None:
    """So many attempts go well, as many at once as the limit allows."""
    for _ in range(times):
        limit.went_well(began_at=now, first_token_after=seconds, running=limit.limit, now=now)


def test_it_begins_at_the_lowest_and_grows_to_the_highest_while_all_is_well() -> None:
    limit = Concurrency(2, 16)
    assert limit.limit == 2

    serve(limit, 100)

    assert limit.limit == 16
    assert limit.allows(15)
    assert not limit.allows(16)


def test_what_is_not_in_use_does_not_grow() -> None:
    limit = Concurrency(4, 16)
    for _ in range(100):
        limit.went_well(began_at=0.0, first_token_after=0.1, running=1, now=0.0)

    assert limit.limit == 4


def test_trouble_lowers_it_by_a_quarter_once_for_all_that_had_begun_before() -> None:
    limit = Concurrency(1, 16)
    serve(limit, 100)

    for _ in range(16):
        limit.was_too_much(began_at=1.0, now=2.0)
    assert limit.limit == 12

    limit.was_too_much(began_at=2.5, now=3.0)
    assert limit.limit == 9


def test_after_the_first_trouble_it_grows_by_one_for_as_many_as_may_run() -> None:
    limit = Concurrency(1, 100)
    serve(limit, 15)
    limit.was_too_much(began_at=1.0, now=2.0)
    assert limit.limit == 12

    serve(limit, 12, now=3.0)
    assert limit.limit == 12
    serve(limit, 2, now=3.0)
    assert limit.limit == 13


def test_first_tokens_that_take_twice_as_long_as_usual_lower_it() -> None:
    limit = Concurrency(1, 8)
    serve(limit, 200, seconds=0.1)

    serve(limit, 20, seconds=0.4, now=1.0)

    assert limit.limit < 8


def test_a_single_outlier_lowers_nothing() -> None:
    limit = Concurrency(1, 8)
    serve(limit, 200, seconds=0.1)

    serve(limit, 1, seconds=100.0)
    serve(limit, 20, seconds=0.1)

    assert limit.limit == 8


@settings(deadline=None)
@given(
    st.integers(1, 8),
    st.integers(0, 8),
    st.lists(st.tuples(st.booleans(), st.floats(0, 100), st.floats(0, 10), st.integers(1, 16))),
)
def test_whatever_happens_it_stays_between_its_bounds(
    lowest: int, more: int, attempts: list[tuple[bool, float, float, int]]
) -> None:
    limit, now = Concurrency(lowest, lowest + more), 0.0
    for well, pause, seconds, running in attempts:
        now += pause
        if well:
            limit.went_well(
                began_at=now - seconds, first_token_after=seconds, running=running, now=now
            )
        else:
            limit.was_too_much(began_at=now - seconds, now=now)
        assert lowest <= limit.limit <= lowest + more


@pytest.mark.parametrize("capacity", [3, 6, 12])
def test_it_stays_near_what_a_provider_can_take(capacity: int) -> None:
    limit, now, too_much, served = Concurrency(1, 64), 0.0, 0, 0
    for _ in range(400):  # rounds in which as many run as may
        began_at, now = now, now + 1.0
        running = limit.limit
        for number in range(running):
            if number >= capacity:
                too_much += 1
                limit.was_too_much(began_at=began_at, now=now)
            else:
                served += 1
                limit.went_well(began_at=began_at, first_token_after=0.1, running=running, now=now)

    assert served > 0.8 * 400 * capacity
    assert too_much < 0.07 * served
