"""One attempt: permit -> breaker -> runner -> channel.

The outcome is a value. What it means for the request is decided here, once, for attempts that end
by themselves and (through `after_failure`) for those whose worker died:

    Done         the answer is whole and the channel has its ending
    TryAgain     nothing was read, or the runner can go on after it, and the policy allows another
                 try: back into the queue
    GaveUp       nothing was read, but not here again: routing decides what follows
    Interrupted  something was read: nothing is restarted, and nobody goes on from it here
    Canceled     nobody waits any more
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import assert_never

from orchestrator import metrics
from orchestrator.errors import (
    CircuitOpenError,
    InternalError,
    OrchestratorError,
    UpstreamConnectError,
    UpstreamTimeoutError,
    UpstreamTruncatedError,
    WorkerHungError,
)
from orchestrator.events import Finished
from orchestrator.points import Passage, Point, Points
from orchestrator.policies.breaker import Breaker
from orchestrator.policies.concurrency import Concurrency
from orchestrator.policies.limits.key import Permit
from orchestrator.policies.limits.limiter import RateLimiter
from orchestrator.policies.retry import RetryPolicy
from orchestrator.request import AttemptRecord, PriorityRequest
from orchestrator.resume import Resume, Seam
from orchestrator.runners.base import Runner
from orchestrator.runners.lease import KeyAccess, Lease, Step, StepLimits

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is whole."""


@dataclass(frozen=True, slots=True)
class TryAgain:
    """Not before that loop time, at the request's old place in the queue.

    If something was read, `request.resume` says from where it goes on.
    """

    error: OrchestratorError
    not_before: float


@dataclass(frozen=True, slots=True)
class GaveUp:
    """This deployment can't serve the request."""

    error: OrchestratorError


@dataclass(frozen=True, slots=True)
class Interrupted:
    """It broke after something was read; routing may know who goes on."""

    error: OrchestratorError


@dataclass(frozen=True, slots=True)
class Canceled:
    """The request had ended otherwise."""


Outcome = Done | TryAgain | GaveUp | Interrupted | Canceled


def outcome_name(outcome: Outcome) -> str:
    """The outcome's name in metrics, logs and attempt records."""
    match outcome:
        case Done():
            return "done"
        case TryAgain():
            return "retried"
        case GaveUp():
            return "gave_up"
        case Interrupted():
            return "interrupted"
        case Canceled():
            return "canceled"
        case _:
            assert_never(outcome)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """What one deployment's attempts pass; shared by its engine and workers."""

    limiter: RateLimiter
    breaker: Breaker
    retry: RetryPolicy
    limits: StepLimits
    concurrency: Concurrency | None = None
    """How many may run at once, if that adapts; else as many as there are slots."""
    keys: Sequence[KeyAccess] = ()
    """Where each of several keys is read, in the limiter's order; none if the runner knows it."""
    points: Points | None = None
    """Told of the passages of an attempt, if anybody looks on."""


async def attempt(
    request: PriorityRequest,
    epoch: int,
    permit: Permit,
    gates: Gates,
    runner: Runner,
    record: AttemptRecord,
) -> OrchestratorError | None:
    """Runs one attempt with the permit that the engine reserved for it.

    Returns:
        What it failed with; None if the answer is whole or nobody waits for it any more.

    Raises:
        CancelledError: The worker ends or the request was withdrawn; everything is given back.
    """
    loop = asyncio.get_running_loop()
    if gates.points is not None:
        pass_by(gates, Point.ATTEMPT_PERMIT, request, record)
    try:
        era = gates.breaker.admit(loop.time())
    except CircuitOpenError as refusal:
        permit.release()
        return refusal
    record.breaker = gates.breaker.state
    if gates.points is not None:
        pass_by(gates, Point.ATTEMPT_ADMITTED, request, record)
    ended = False
    try:
        result = await _stream(request, epoch, permit, gates, runner, record)
        ended = True
    finally:
        if not ended:  # canceled, or a SystemExit of the runner, which ends the worker
            gates.breaker.no_verdict(era)
            permit.spend()
            if gates.points is not None:
                pass_by(gates, Point.ATTEMPT_SETTLED, request, record)
    if isinstance(result.error, UpstreamConnectError):
        permit.release()  # nothing was sent
    else:
        permit.settle(result.prompt, result.answer)
    if result.error is not None:
        gates.breaker.failed(era, result.error)
        if result.error.blames_key:
            permit.refused(result.error, loop.time())
            metrics.for_deployment(record.deployment).key_refused(permit.key + 1, result.error.code)
    elif result.whole:
        gates.breaker.succeeded(era)
        permit.accepted(loop.time())
    else:
        gates.breaker.no_verdict(era)
    if gates.points is not None:
        pass_by(gates, Point.ATTEMPT_SETTLED, request, record, result.error)
    return result.error


def pass_by(
    gates: Gates,
    point: Point,
    request: PriorityRequest,
    record: AttemptRecord,
    error: OrchestratorError | None = None,
) -> None:
    """Tells whoever looks on that an attempt passes a point; the hot path looks who does first."""
    if gates.points is not None:
        gates.points(
            Passage(
                point=point,
                deployment=record.deployment,
                request=request,
                worker=record.worker,
                epoch=record.epoch,
                error=error,
                state=gates.breaker.state,
            )
        )


def after_failure(
    request: PriorityRequest,
    error: OrchestratorError,
    *,
    attempts: int,
    gates: Gates,
    now: float,
) -> Outcome:
    """Decides what an error means for the request; takes back what nobody has read.

    It takes the pen from whoever has it: who asks makes sure that no other attempt has begun.

    Args:
        request: Whose attempt failed.
        error: With what.
        attempts: Attempts at this deployment so far.
        gates: The deployment's, for its policy, and whether another key would do.
        now: Loop time, seconds.
    """
    channel = request.channel
    if channel.ending is not None:
        return Canceled()
    delivered = not channel.retract()
    if delivered and not _suspend(request, error):
        return Interrupted(error)
    if (request.idempotent or isinstance(error, CircuitOpenError)) and not _moves_on(
        request, error
    ):
        not_before = gates.retry.next_try(
            error,
            attempts=attempts,
            now=now,
            deadline=request.deadline,
            other_key=error.blames_key and bool(gates.keys) and gates.limiter.may_start(now),
        )
        if not_before is not None:
            return TryAgain(error, not_before)
    return Interrupted(error) if delivered else GaveUp(error)


def _suspend(request: PriorityRequest, error: OrchestratorError) -> bool:
    """Keeps what was delivered as the beginning of the next attempt, if the deployment can."""
    if request.seam is Seam.NONE or not request.idempotent or not error.retryable:
        return False
    if request.seam is Seam.PREFILL and request.sampling.n > 1:  # a model's own turn is one text
        return False
    cause = error if request.resume is None else request.resume.cause
    request.resume = Resume(request.seam, request.channel.suspend(), cause)
    return request.seam is Seam.EXACT or request.resume.is_plain


def _moves_on(request: PriorityRequest, error: OrchestratorError) -> bool:
    """Whether there is no further try here, because others wait for theirs or none is left."""
    if request.attempt_limit is not None and request.tries >= request.attempt_limit:
        return True
    # a silence has cost a good part of the deadline; the same deployment would cost as much again
    return request.others_ahead and error.is_silence and request.resume is None


@dataclass(frozen=True, slots=True)
class _Result:
    error: OrchestratorError | None
    prompt: int
    """Tokens; so is the next."""
    answer: int
    whole: bool = False


async def _stream(
    request: PriorityRequest,
    epoch: int,
    permit: Permit,
    gates: Gates,
    runner: Runner,
    record: AttemptRecord,
) -> _Result:
    """Moves tokens from the runner to the channel until either has enough."""
    loop = asyncio.get_running_loop()
    channel = request.channel
    prompt, answer = request.estimated_prompt_tokens, 0
    # An expired lease ends the attempt through this scope, so that its cancel can't be taken for a
    # caller's. Without a deadline of its own it costs a microsecond per attempt.
    scope = asyncio.timeout(None)
    lease = Lease(
        gates.limits,
        lambda _: scope.reschedule(loop.time()),
        key=gates.keys[permit.key] if gates.keys else None,
        on_standing=permit.hear if gates.limiter.learns else None,
    )
    try:
        async with scope, aclosing(runner.generate(request, lease)) as stream:
            async for event in stream:
                if isinstance(event, Finished):
                    if event.usage is not None:
                        prompt = event.usage.prompt_tokens
                        answer = event.usage.completion_tokens
                    if gates.points is not None:
                        pass_by(gates, Point.TERMINAL_BEFORE, request, record)
                    # noted before the reader wakes, who may look at it at once
                    record.outcome, record.ended_at = "done", loop.time()
                    record.tokens = prompt + answer
                    return _Result(None, prompt, answer, whole=channel.end(event, epoch))
                if record.first_token_at is None:
                    record.first_token_at = loop.time()
                    if gates.points is not None:
                        pass_by(gates, Point.TOKEN_FIRST, request, record)
                    if request.on_first_token is not None:
                        request.on_first_token(record)
                answer += event.tokens
                if not channel.send(event, epoch):
                    return _Result(None, prompt, answer)
        return _Result(_stopped_short(record), prompt, answer)
    except TimeoutError as error:
        if not lease.expired:
            return _Result(_unexpected(error), prompt, answer)
        return _Result(_missed(lease, runner), prompt, answer)
    except OrchestratorError as error:
        return _Result(error, prompt, answer)
    except Exception as error:  # a runner's bug is this request's, and nobody else's
        logger.exception("the runner of request %s raised an unexpected error", request.request_id)
        return _Result(_unexpected(error), prompt, answer)
    finally:
        record.tokens = prompt + answer
        lease.disarm()


def _missed(lease: Lease, runner: Runner) -> OrchestratorError:
    step = (lease.missed or Step.NEXT_TOKEN).replace("_", " ")
    if runner.abilities.local:
        hang = WorkerHungError(f"no progress within {lease.budget:g} s in step: {step}")
        runner.hung(hang)
        return hang
    return UpstreamTimeoutError(f"the provider took longer than {lease.budget:g} s for: {step}")


def _stopped_short(record: AttemptRecord) -> OrchestratorError:
    return UpstreamTruncatedError(
        f"the stream of {record.deployment} ended without a finish reason"
    )


def _unexpected(cause: Exception) -> InternalError:
    # its text is foreign and may hold a prompt: it stays in the log and in __cause__
    name = type(cause).__name__
    error = InternalError(f"the runner raised an unexpected {name}; the log tells more")
    error.__cause__ = cause
    return error
