"""What a caller may: its models, its priority, and how much at a time."""

import pytest

from orchestrator.callers.caller import Caller, limiter_of
from orchestrator.errors import CallerLimitedError, PermissionDeniedError, RequestTooLargeError
from orchestrator.events import Finished, FinishReason, Usage
from orchestrator.request import Priority
from tests.fakes.systems import make_request


def test_the_request_becomes_the_callers_own() -> None:
    request = make_request()

    Caller(name="ann").admit(request, 0.0)

    assert request.caller == "ann"


@pytest.mark.parametrize("model", ["there", "nowhere"])
def test_a_model_that_is_not_allowed_is_refused_whether_it_exists_or_not(model: str) -> None:
    with pytest.raises(PermissionDeniedError, match="this key may not use that model"):
        Caller(name="ann", routes=["chat"]).admit(make_request(model), 0.0)


@pytest.mark.parametrize(
    ("asked", "given"),
    [(Priority.CRITICAL, Priority.HIGH), (Priority.BACKGROUND, Priority.BACKGROUND)],
)
def test_a_caller_can_lower_its_priority_and_not_raise_it(asked: Priority, given: Priority) -> None:
    request = make_request(priority=asked)

    Caller(name="ann", priority=Priority.HIGH).admit(request, 0.0)

    assert request.priority is given


def test_no_more_requests_run_than_the_key_may() -> None:
    caller = Caller(name="ann", max_concurrent=1)
    first = make_request()
    caller.admit(first, 0.0)

    with pytest.raises(CallerLimitedError) as caught:
        caller.admit(make_request(), 0.0)
    first.channel.end(Finished(FinishReason.STOP))

    assert caught.value.retry_after == 1
    assert caller.running == 0
    caller.admit(make_request(), 0.0)


async def test_a_minutes_requests_are_counted_and_the_wait_is_told() -> None:
    caller = Caller(name="ann", limiter=limiter_of(600, None))

    def admit_all() -> None:
        for _ in range(601):
            caller.admit(make_request(), 0.0)

    with pytest.raises(CallerLimitedError) as caught:
        admit_all()

    assert 0 < caller.running <= 600
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 60


async def test_tokens_are_settled_by_what_was_really_used() -> None:
    caller = Caller(name="ann", limiter=limiter_of(None, 6000))
    for _ in range(20):
        request = make_request(max_tokens=500)
        caller.admit(request, 0.0)
        request.channel.end(
            Finished(FinishReason.STOP, Usage(prompt_tokens=1, completion_tokens=1))
        )

    with pytest.raises(RequestTooLargeError):
        caller.admit(make_request(max_tokens=100_000), 0.0)
