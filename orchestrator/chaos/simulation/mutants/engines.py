"""Bugs of the engine, the worker and the deadline."""

import asyncio

from typing_extensions import override

from orchestrator.actors.engine import Engine
from orchestrator.actors.messages import Assign
from orchestrator.actors.worker import RemoteWorker
from orchestrator.attempt import Canceled, Outcome, TryAgain, attempt, pass_by
from orchestrator.errors import EngineUnhealthyError, OrchestratorError
from orchestrator.events import Failed
from orchestrator.inflight import Ticket
from orchestrator.points import Point
from orchestrator.policies.limits.key import KeyLimiter, Permit
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.request import AttemptRecord, PriorityRequest

BACKOFF_SECONDS = 0.5


class StartsTheCanceled(RemoteWorker):
    """An order that was canceled on its way is carried out."""

    @override
    def _begin(self, assign: Assign) -> None:
        request, gates = assign.request, self._settings.gates
        record = AttemptRecord(
            deployment=self._settings.deployment,
            worker=self._settings.worker,
            epoch=assign.epoch,
            started_at=asyncio.get_running_loop().time(),
            queued_for=assign.queued_for,
        )
        request.attempts.append(record)
        pass_by(gates, Point.ATTEMPT_BEGUN, request, record)
        self._epoch = assign.epoch
        work = attempt(request, assign.epoch, assign.permit, gates, self._runner, record)
        self._attempt = self.spawn(work, lambda result: self._finish(assign, record, result))


class LeavesTheStream(Engine):
    """A worker isn't told that nobody waits any more."""

    @override
    def _withdraw(self, ticket: Ticket) -> None:
        pass


class ForgetsThePermit(Engine):
    """The permit of an assignment that a dead worker never took up stays out."""

    @override
    def _lose(self, worker: str, cause: BaseException | None) -> None:
        slot = self._slots.get(worker)
        if slot is not None and slot.ticket is not None:
            slot.permit = Permit(KeyLimiter(RateLimits()), 0, 0, 0.0)
        super()._lose(worker, cause)


class RemembersARefusal(Engine):
    """That a circuit was open passes for what the first attempt failed with."""

    @override
    def _refusal(self, ticket: Ticket, now: float) -> OrchestratorError | None:
        refusal = super()._refusal(ticket, now)
        if refusal is not None:
            ticket.request.first_error = ticket.request.first_error or refusal
        return refusal


class RetriesTheCanceled(Engine):
    """A cancel is a failure like any other: whatever isn't known to be final is tried again."""

    @override
    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        if not isinstance(outcome, Canceled):
            super()._settle(ticket, outcome)
            return
        again_at = asyncio.get_running_loop().time() + BACKOFF_SECONDS
        self._queue.push_back(ticket, not_before=again_at)
        self._pass(Point.RETRY_QUEUED, ticket, again_at)


class QueuesTheGone(Engine):
    """A retry is queued although its request has left meanwhile."""

    @override
    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        if self._inflight.holds(ticket) or not isinstance(outcome, TryAgain):
            super()._settle(ticket, outcome)
            return
        self._queue.push_back(ticket, not_before=outcome.not_before)
        self._pass(Point.RETRY_QUEUED, ticket, outcome.not_before)


class BlamesTheGate(Engine):
    """A refusal hides what the attempt before it failed with."""

    @override
    def _refusal(self, ticket: Ticket, now: float) -> OrchestratorError | None:
        refusal = super()._refusal(ticket, now)
        if refusal is not None:
            ticket.request.first_error = None
        return refusal


def never_expires_in_the_queue(request: PriorityRequest) -> None:
    """A deadline that is looked at only where an attempt was made."""
    loop = asyncio.get_running_loop()

    def expire() -> None:
        if request.attempts:
            request.channel.end(Failed(EngineUnhealthyError("too late")))

    timer = loop.call_at(request.deadline, expire)
    request.channel.watch(timer.cancel)
