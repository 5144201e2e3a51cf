"""What follows an error, by its kind and the route's rules."""

import pytest

from orchestrator import errors
from orchestrator.errors import (
    CircuitOpenError,
    ContentFilteredError,
    ContextLengthExceededError,
    InternalError,
    InvalidRequestError,
    OrchestratorError,
    UpstreamOverloadedError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamTimeoutError,
    WorkerCrashedError,
    WorkerHungError,
)
from orchestrator.routing.rules import KINDS, Action, FailureKind, Rules, kind_of
from tests.routing.deployments import deployment

SMALL = deployment("small", context=4096)
AHEAD = [
    deployment("unknown"),
    deployment("equal", context=4096),
    deployment("large", context=32768),
    deployment("huge", context=200_000),
]


def follow(error: OrchestratorError, **actions: Action) -> list[str]:
    rules = Rules({FAILURES[kind]: action for kind, action in actions.items()})
    return [one.name for one in rules.follow(error, SMALL, AHEAD)]


FAILURES: dict[str, FailureKind] = {kind: kind for kind in KINDS.values() if kind is not None}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ContextLengthExceededError("8k"), "context_length"),
        (ContentFilteredError("no"), "content_filter"),
        (InvalidRequestError("400"), "invalid_request"),
        (UpstreamRateLimitedError("429"), "rate_limit"),
        (UpstreamQuotaExceededError("quota"), "quota"),
        (UpstreamTimeoutError("slow"), "timeout"),
        (WorkerHungError("hang"), "timeout"),
        (UpstreamOverloadedError("529"), "upstream"),
        (WorkerCrashedError("segfault"), "worker"),
        (CircuitOpenError("open"), "unhealthy"),
        (InternalError("a bug"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_the_nearest_class_of_an_error_tells_its_kind(error: OrchestratorError, kind: str | None):
    assert kind_of(error) == kind


def test_a_context_that_was_too_long_goes_to_larger_deployments_only():
    assert follow(ContextLengthExceededError("8k")) == ["large", "huge"]


def test_a_filtered_request_goes_nowhere_unless_the_route_says_so():
    assert follow(ContentFilteredError("no")) == []
    assert len(follow(ContentFilteredError("no"), content_filter="next")) == len(AHEAD)


def test_a_list_of_names_is_gone_through_in_its_own_order():
    quota = UpstreamQuotaExceededError("used up")

    assert follow(quota, quota=("huge", "elsewhere", "equal")) == ["huge", "equal"]


def test_a_rule_of_never_keeps_an_error_that_would_go_on():
    assert follow(UpstreamTimeoutError("slow"), timeout="never") == []


def test_an_error_of_our_own_goes_nowhere_whatever_the_rules_say():
    assert follow(InternalError("a bug"), unhealthy="next") == []


def test_without_rules_the_class_of_the_error_decides():
    for kind in vars(errors).values():
        if not isinstance(kind, type) or not issubclass(kind, OrchestratorError):
            continue
        if kind is not ContextLengthExceededError:
            assert bool(
                follow(kind("x") if kind is not errors.LoopBlockedError else kind(1.0))
            ) == (kind.fails_over), kind
