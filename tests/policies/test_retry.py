"""Retries stay within the budget, the deadline and what the server asked for."""

import asyncio
from typing import get_args

import hypothesis.strategies as st
import pytest
import tenacity
from hypothesis import given, settings

from orchestrator import errors
from orchestrator.errors import (
    CircuitOpenError,
    InternalError,
    InvalidRequestError,
    OrchestratorError,
    UpstreamConnectError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTimeoutError,
    WorkerCrashedError,
)
from orchestrator.policies.retry import (
    BUDGET_FLOOR,
    BUDGET_SHARE,
    BUDGET_WINDOW,
    RetryBudget,
    RetryPolicy,
    RetrySettings,
)
from orchestrator.reading.sections import RetryableCode

FOREVER = 1e9


def policy(budget: RetryBudget | None = None, **given_settings: float) -> RetryPolicy:
    settings_ = RetrySettings(
        max_attempts=int(given_settings.pop("max_attempts", 3)),
        initial_backoff=given_settings.pop("initial_backoff", 0.2),
        max_backoff=given_settings.pop("max_backoff", 10.0),
    )
    assert not given_settings
    return RetryPolicy(settings_, budget or RetryBudget())


def next_try(
    retry: RetryPolicy,
    error: OrchestratorError,
    *,
    attempts: int = 1,
    now: float = 0.0,
    deadline: float = FOREVER,
) -> float | None:
    return retry.next_try(error, attempts=attempts, now=now, deadline=deadline)


Step = tuple[str, float]


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["accept", "spend"]), st.sampled_from([0.0, 0.0, 0.01, 0.4, 1.0, 11.0])
        ),
        max_size=300,
    )
)
def test_i10_no_window_has_more_retries_than_share_and_floor_allow(steps: list[Step]) -> None:
    budget = RetryBudget()
    now, accepted, spent = 1000.0, list[float](), list[float]()

    for kind, gap in steps:
        now += gap
        if kind == "accept":
            budget.accepted(now)
            accepted.append(now)
        elif budget.spend(now):
            spent.append(now)
            retries = sum(1 for at in spent if at > now - BUDGET_WINDOW)
            requests = sum(1 for at in accepted if at >= now - BUDGET_WINDOW)
            assert retries <= BUDGET_SHARE * requests + BUDGET_FLOOR


def test_an_outage_costs_a_fifth_more_attempts_and_not_three_times_as_many() -> None:
    budget = RetryBudget()
    attempts = 0
    for number in range(10_000):  # 100 per second for 100 s, all of them fail three times
        now = number / 100
        budget.accepted(now)
        attempts += 1
        while attempts < 3 * (number + 1) and budget.spend(now):
            attempts += 1

    assert attempts <= 10_000 * 1.2 + 10 * BUDGET_FLOOR


def test_the_floor_lets_a_quiet_deployment_try_again() -> None:
    budget = RetryBudget()

    assert [budget.spend(0.0) for _ in range(BUDGET_FLOOR + 1)] == [True] * BUDGET_FLOOR + [False]
    assert budget.spend(BUDGET_WINDOW)


def test_requests_that_never_fail_leave_no_trace_in_memory() -> None:
    budget = RetryBudget()

    for second in range(100_000):
        budget.accepted(float(second))

    assert len(budget._accepted) <= BUDGET_WINDOW + 2


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("400"),
        UpstreamQuotaExceededError("no credit"),
        CircuitOpenError("open"),
        InternalError("bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_no_second_try_can_cure_is_not_tried_again(error: OrchestratorError) -> None:
    assert next_try(policy(), error) is None


@settings(max_examples=100, deadline=None)
@given(attempts=st.integers(1, 12), initial=st.floats(0.001, 5), longest=st.floats(0.01, 60))
def test_the_delay_is_random_below_a_doubling_bound(
    attempts: int, initial: float, longest: float
) -> None:
    retry = policy(max_attempts=100, initial_backoff=initial, max_backoff=longest)

    at = next_try(retry, UpstreamServerError("500"), attempts=attempts)

    assert at is not None
    assert 0 < at <= max(0.001, min(initial * 2 ** (attempts - 1), longest))


def test_delays_of_many_requests_are_spread_and_no_wave() -> None:
    budget = RetryBudget(floor=1000)
    retry = policy(budget, initial_backoff=1.0)

    delays = {next_try(retry, UpstreamServerError("500")) for _ in range(100)}

    assert len(delays) > 90


def test_the_number_of_attempts_includes_the_first() -> None:
    retry = policy(max_attempts=3)
    error = UpstreamServerError("500")

    assert [next_try(retry, error, attempts=n) is None for n in (1, 2, 3, 4)] == [
        False,
        False,
        True,
        True,
    ]


@pytest.mark.parametrize("hint", [86_400.0, 10.001])
def test_a_hint_above_the_cap_is_neither_slept_nor_cut_short(hint: float) -> None:
    retry = policy(max_backoff=10.0)

    assert next_try(retry, UpstreamRateLimitedError("429", retry_after=hint)) is None


def test_a_hint_makes_the_delay_longer_and_never_shorter() -> None:
    retry = policy(max_backoff=10.0, initial_backoff=0.2)

    assert next_try(retry, UpstreamRateLimitedError("429", retry_after=7.0)) == 7.0


@pytest.mark.parametrize("hint", [0.0, -5.0])
def test_a_hint_of_nothing_is_no_hot_loop(hint: float) -> None:
    at = next_try(policy(), UpstreamRateLimitedError("429", retry_after=hint), now=100.0)

    assert at is not None
    assert at > 100.0


def test_a_retry_that_would_start_after_the_deadline_is_refused_and_costs_nothing() -> None:
    budget = RetryBudget()
    error = UpstreamRateLimitedError("429", retry_after=5.0)

    assert next_try(policy(budget), error, now=0.0, deadline=5.0) is None
    assert len(budget._spent) == 0
    assert next_try(policy(budget), error, now=0.0, deadline=5.1) == 5.0


def test_a_retry_without_an_upstream_costs_no_budget() -> None:
    budget = RetryBudget(floor=0)

    assert next_try(policy(budget), UpstreamServerError("500")) is None
    assert next_try(policy(budget), UpstreamConnectError("refused")) is not None
    assert len(budget._spent) == 0


def test_a_crash_of_a_worker_costs_budget_too() -> None:
    budget = RetryBudget(floor=1)

    assert next_try(policy(budget), WorkerCrashedError("segfault")) is not None
    assert next_try(policy(budget), WorkerCrashedError("segfault")) is None


async def test_t2_two_requests_never_see_each_others_state() -> None:
    retry = policy(RetryBudget(floor=1000), max_attempts=3)
    seen: dict[int, list[bool]] = {}

    async def fail(number: int) -> None:
        for attempt in (1, 2, 3):
            error = UpstreamServerError(str(number))
            seen.setdefault(number, []).append(next_try(retry, error, attempts=attempt) is None)
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        await asyncio.gather(*(fail(number) for number in range(20)))

    assert set(map(tuple, seen.values())) == {(False, False, True)}
    assert retry._machinery.statistics == {}


def test_tenacity_still_has_the_strategies_that_are_asked() -> None:
    state = tenacity.RetryCallState(tenacity.AsyncRetrying(), fn=None, args=(), kwargs={})
    state.attempt_number = 3

    assert tenacity.stop_after_attempt(3)(state) is True
    assert tenacity.stop_after_attempt(4)(state) is False
    assert 0 <= tenacity.wait_random_exponential(multiplier=1, max=3)(state) <= 3


def test_a_retry_after_a_timeout_costs_the_budget_twice() -> None:
    budget = RetryBudget(floor=10)
    policy = RetryPolicy(RetrySettings(max_attempts=20), budget)

    timeouts = sum(
        policy.next_try(UpstreamTimeoutError("slow"), attempts=1, now=0.0, deadline=100.0)
        is not None
        for _ in range(20)
    )

    assert timeouts == 5
    assert not budget.spend(0.0)


@pytest.mark.parametrize(("code", "tries"), [("upstream_timeout", 1), ("upstream_server_error", 5)])
def test_each_kind_of_failure_may_have_tries_of_its_own(code: str, tries: int) -> None:
    kinds = {"upstream_timeout": UpstreamTimeoutError, "upstream_server_error": UpstreamServerError}
    policy = RetryPolicy(
        RetrySettings(max_attempts=3, attempts={code: tries}), RetryBudget(floor=100)
    )

    attempts = 1
    while policy.next_try(kinds[code]("x"), attempts=attempts, now=0.0, deadline=1e6) is not None:
        attempts += 1

    assert attempts == tries


def test_another_key_is_tried_at_once_however_long_the_refused_one_rests() -> None:
    policy = RetryPolicy(RetrySettings(), RetryBudget(floor=1))
    error = UpstreamRateLimitedError("429", retry_after=3600.0)

    first = policy.next_try(error, attempts=1, now=7.0, deadline=100.0, other_key=True)
    over_budget = policy.next_try(error, attempts=1, now=7.0, deadline=100.0, other_key=True)

    assert (first, over_budget) == (7.0, None)


def test_the_codes_that_a_configuration_may_name_are_those_that_are_retried() -> None:
    kinds = [OrchestratorError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    retried = {kind.code for kind in kinds if kind.retryable and kind.__module__ == errors.__name__}

    assert retried == set(get_args(RetryableCode))
