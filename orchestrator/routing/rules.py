"""What follows when a deployment gives a request up, by the kind of its error.

    never    the request ends with the error
    next     the next deployment gets it
    larger   the next one that is known to take more tokens than this one
    names    the first of those named that was not tried yet

A kind that has no rule follows its error's class (`fails_over`); a context that was too long goes
to a larger deployment, for no other can help.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.errors import (
    CircuitOpenError,
    ContentFilteredError,
    ContextLengthExceededError,
    EngineError,
    InternalError,
    InvalidRequestError,
    OrchestratorError,
    QueueFullError,
    UpstreamAuthenticationError,
    UpstreamError,
    UpstreamNotFoundError,
    UpstreamPermissionError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamTimeoutError,
    WorkerError,
    WorkerHungError,
)
from orchestrator.routing.deployment import Deployment

FailureKind = Literal[
    "context_length",
    "content_filter",
    "invalid_request",
    "queue_full",
    "rate_limit",
    "quota",
    "authentication",
    "timeout",
    "upstream",
    "worker",
    "unhealthy",
]
Action = Literal["never", "next", "larger"] | tuple[str, ...]

KINDS: Mapping[type[OrchestratorError], FailureKind | None] = {
    ContextLengthExceededError: "context_length",
    ContentFilteredError: "content_filter",
    InvalidRequestError: "invalid_request",
    QueueFullError: "queue_full",
    UpstreamRateLimitedError: "rate_limit",
    UpstreamQuotaExceededError: "quota",
    UpstreamAuthenticationError: "authentication",
    UpstreamPermissionError: "authentication",
    UpstreamNotFoundError: "authentication",
    UpstreamTimeoutError: "timeout",
    WorkerHungError: "timeout",
    UpstreamError: "upstream",
    WorkerError: "worker",
    CircuitOpenError: "unhealthy",
    EngineError: "unhealthy",
    InternalError: None,
}
"""The nearest class of an error decides; what has no kind can have no rule."""


@dataclass(frozen=True, slots=True)
class Rules:
    """One route's rules."""

    actions: Mapping[FailureKind, Action] = field(default_factory=dict[FailureKind, Action])

    def follow(
        self, error: OrchestratorError, failed: Deployment, ahead: Sequence[Deployment]
    ) -> list[Deployment]:
        """Which of the deployments that were not tried yet may get the request, in their order."""
        match self._action(error):
            case "never":
                return []
            case "next":
                return list(ahead)
            case "larger":
                known = failed.context or 0
                return [one for one in ahead if one.context is not None and one.context > known]
            case names:
                return [one for name in names for one in ahead if one.name == name]

    def _action(self, error: OrchestratorError) -> Action:
        kind = kind_of(error)
        if kind is not None and kind in self.actions:
            return self.actions[kind]
        if kind == "context_length":
            return "larger"
        return "next" if error.fails_over else "never"


NO_RULES = Rules()


def kind_of(error: OrchestratorError) -> FailureKind | None:
    """The kind of an error, by its nearest class."""
    return next((KINDS[kind] for kind in type(error).__mro__ if kind in KINDS), None)
