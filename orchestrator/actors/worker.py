"""The actor that owns one slot: it has one runner and runs one attempt at a time.

A worker lives as long as its runner. It ends, with the cause, when the runner can't be started,
dies by itself or hangs; the supervisor then makes a new worker from the slot factory, and the
engine settles the request from its own ledger. An attempt that merely fails is an outcome and
leaves the worker as it is.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from typing_extensions import override

from orchestrator import metrics
from orchestrator.actors.messages import (
    Abort,
    Assign,
    AttemptEnded,
    RunnerLost,
    RunnerStarted,
    WorkerMessage,
)
from orchestrator.actors.runtime import LoopActor, OnDeath, tell
from orchestrator.attempt import (
    Canceled,
    Done,
    Gates,
    Outcome,
    TryAgain,
    after_failure,
    attempt,
    outcome_name,
    pass_by,
)
from orchestrator.errors import OrchestratorError, WorkerCrashedError, WorkerStartError, describe
from orchestrator.events import Finished
from orchestrator.points import Point
from orchestrator.request import AttemptRecord
from orchestrator.resume import Resume
from orchestrator.runners.base import Runner

RELEASE_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker is given besides its runner."""

    deployment: str
    worker: str
    """Its id, new for every worker: `smollm2/2.1` is the second life of slot 1."""
    start_timeout: float
    """Seconds that the runner may take to get ready."""
    gates: Gates


class RemoteWorker(LoopActor):
    """One slot.

    Args:
        settings: Who it is.
        runner: Its own, not started yet.
        on_ready: Called once when the runner is ready.
        on_ended: Called after each attempt, when the slot is free again.
        on_death: Told when the worker ends, with the cause.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        runner: Runner,
        *,
        on_ready: Callable[[], None],
        on_ended: Callable[[AttemptEnded], None],
        on_death: OnDeath,
    ) -> None:
        super().__init__(on_death=on_death)
        self._settings = settings
        self._runner = runner
        self._on_ready = on_ready
        self._on_ended = on_ended
        self._epoch = 0
        self._attempt: asyncio.Task[BaseException | None] | None = None

    @override
    def on_start(self) -> None:
        """Starts the runner beside the mailbox, so that the worker can be stopped meanwhile."""
        self.spawn(self._start(), self._started)

    @override
    def on_receive(self, message: WorkerMessage) -> None:
        """Handles one message.

        Raises:
            BaseException: The runner is lost; the worker ends with that cause.
        """
        match message:
            case Assign():
                self._begin(message)
            case Abort(epoch):
                if epoch == self._epoch and self._attempt is not None:
                    self._attempt.cancel()
            case RunnerStarted():
                if self._runner.abilities.local:
                    self.spawn(self._runner.closed(), self._lost)
                self._on_ready()
            case RunnerLost(cause):
                raise cause
            case _:
                assert_never(message)

    @override
    async def release(self) -> None:
        """Frees the runner; bounded, so that a shutdown can't hang on it."""
        async with asyncio.timeout(RELEASE_TIMEOUT):
            await self._runner.aclose()

    async def _start(self) -> None:
        limit = self._settings.start_timeout
        try:
            async with asyncio.timeout(limit):
                await self._runner.start()
        except TimeoutError:
            # from None: the chain of a timeout leads to its own CancelledError, which tells nothing
            raise WorkerStartError(
                f"{self._settings.worker} was not ready within {limit:g} s"
            ) from None

    def _started(self, result: BaseException | None) -> None:
        if result is None:
            tell(self.actor_ref, RunnerStarted())
        else:
            self._lost(result)

    def _lost(self, cause: BaseException) -> None:
        # told to nobody if the worker itself has ended and canceled what it ran
        tell(self.actor_ref, RunnerLost(_as_crash(cause)))

    def _begin(self, assign: Assign) -> None:
        loop = asyncio.get_running_loop()
        request, now = assign.request, loop.time()
        if request.channel.ending is not None or not request.channel.is_written_by(assign.epoch):
            # it was canceled, or went elsewhere, while the order was on its way
            assign.permit.release()
            self._on_ended(AttemptEnded(self._settings.worker, assign.epoch, Canceled()))
            return
        record = AttemptRecord(
            deployment=self._settings.deployment,
            worker=self._settings.worker,
            epoch=assign.epoch,
            started_at=now,
            queued_for=assign.queued_for,
            permit_for=assign.permit_for,
            hedge=request.hedge,
            resumed_after=None if request.resume is None else request.resume.tokens,
        )
        request.attempts.append(record)
        if request.resume is not None:
            metrics.SEAMS.labels(record.deployment, request.seam.value).inc()
        if self._settings.gates.points is not None:
            pass_by(self._settings.gates, Point.ATTEMPT_BEGUN, request, record)
        self._epoch = assign.epoch
        work = attempt(
            request, assign.epoch, assign.permit, self._settings.gates, self._runner, record
        )
        self._attempt = self.spawn(work, lambda result: self._finish(assign, record, result))

    def _after_failure(self, assign: Assign, error: OrchestratorError, now: float) -> Outcome:
        request = assign.request
        if not request.channel.is_written_by(assign.epoch):
            return Canceled()  # another attempt has begun, or the engine has settled it as lost
        return after_failure(
            request, error, attempts=assign.attempts, gates=self._settings.gates, now=now
        )

    def _was_aborted(self, assign: Assign) -> bool:
        # a cancel that nobody asked for was made up by the runner: it is broken
        return assign.request.channel.ending is not None

    def _finish(
        self,
        assign: Assign,
        record: AttemptRecord,
        result: OrchestratorError | BaseException | None,
    ) -> None:
        self._attempt = None
        assign.permit.release()  # open still if the attempt was canceled before its first step
        now = asyncio.get_running_loop().time()
        record.ended_at = now
        if isinstance(result, OrchestratorError) and result.scope != "worker":
            outcome = self._after_failure(assign, result, now)
        elif result is None:
            whole = isinstance(assign.request.channel.ending, Finished)
            outcome = Done() if whole else Canceled()
        elif isinstance(result, asyncio.CancelledError) and self._was_aborted(assign):
            outcome = Canceled()
        else:
            # the slot itself is broken: the engine settles the request when it learns of the death
            record.outcome, record.error = "worker_lost", describe(result)
            tell(self.actor_ref, RunnerLost(_as_crash(result)))
            return
        _note(record, outcome, result, assign.request.resume)
        if self._settings.gates.points is not None:
            pass_by(self._settings.gates, Point.WORKER_IDLE, assign.request, record)
        self._on_ended(AttemptEnded(self._settings.worker, assign.epoch, outcome))


def _as_crash(cause: BaseException) -> BaseException:
    if isinstance(cause, OrchestratorError):
        return cause
    crash = WorkerCrashedError(f"the runner ended with {describe(cause)}")
    crash.__cause__ = cause
    return crash


def _note(
    record: AttemptRecord, outcome: Outcome, result: BaseException | None, resume: Resume | None
) -> None:
    record.outcome = outcome_name(outcome)
    if isinstance(outcome, TryAgain) and record.ended_at is not None:
        way = "again" if resume is None else f"resumed ({resume.seam})"
        record.decision = f"{way} in {outcome.not_before - record.ended_at:.3g} s"
    if isinstance(result, OrchestratorError):
        record.error = describe(result)
