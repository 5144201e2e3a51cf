"""Named places in the code where the order of things matters, for whoever looks on.

A simulation hands an observer in by construction: it keeps a journal of the passages, and may have
a fault follow the n-th passage of a point. In production there is no observer, and a point costs
one comparison. Rules:

    1. A passage is told within the step that it names; the observer decides nothing there and
       raises nothing. What it sets off happens in a later turn of the loop, because a synchronous
       step can't be interrupted in production either.
    2. A point is named for what has just become true (`dispatch.recorded`), or for what is about
       to (`terminal.before`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.request import PriorityRequest


class Point(StrEnum):
    """Where; the order is that of a request's way, then of a deployment's life."""

    SUBMIT_CHECKED = "submit.checked"
    SUBMIT_REFUSED = "submit.refused"
    SUBMIT_REGISTERED = "submit.registered"
    REQUEST_SHED = "request.shed"
    DISPATCH_RECORDED = "dispatch.recorded"
    DISPATCH_TOLD = "dispatch.told"
    ATTEMPT_BEGUN = "attempt.begun"
    ATTEMPT_PERMIT = "attempt.permit"
    ATTEMPT_ADMITTED = "attempt.admitted"
    TOKEN_FIRST = "token.first"
    TERMINAL_BEFORE = "terminal.before"
    ATTEMPT_SETTLED = "attempt.settled"
    WORKER_IDLE = "worker.idle"
    RETRY_QUEUED = "retry.queued"
    REQUEST_LEFT = "request.left"
    WORKER_STARTED = "worker.started"
    WORKER_ENDED = "worker.ended"
    BREAKER_MOVED = "breaker.moved"
    POISON_PUBLISHED = "poison.published"
    ENGINE_SERVES = "engine.serves"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """One passage of a point; what doesn't apply there is left at its default."""

    point: Point
    deployment: str
    request: PriorityRequest | None = None
    worker: str | None = None
    epoch: int | None = None
    error: BaseException | None = None
    """What was refused with, failed with, died of or was poisoned by."""
    not_before: float = 0.0
    """Loop time, seconds, of a retry."""
    by: PriorityRequest | None = None
    """For whom somebody was shed."""
    state: str = ""
    """Of the breaker, after the passage."""


Points = Callable[[Passage], None]
