"""The actor that dispatches: one per generation of a deployment.

It owns the ledger of slots: who is idle, who is busy with which request under which epoch. The
rules are:

    1. An assignment is recorded before it is told, so a worker that dies can't lose a request.
    2. idle + busy = live slots, always; a message with an old epoch or worker changes nothing.
    3. A permit is reserved and the breaker looked at before a slot is taken: nobody waits in one.
    4. The engine never waits inside a handler. What has a time in it sets one timer.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from typing_extensions import override

from orchestrator import metrics
from orchestrator.actors.messages import (
    Abort,
    Assign,
    AttemptEnded,
    EngineMessage,
    Gone,
    SlotLost,
    SlotReady,
    Wake,
)
from orchestrator.actors.runtime import LoopActor, OnDeath, Ref, tell
from orchestrator.attempt import (
    Canceled,
    Done,
    Gates,
    GaveUp,
    Interrupted,
    Outcome,
    TryAgain,
    after_failure,
    outcome_name,
)
from orchestrator.errors import (
    CircuitOpenError,
    OrchestratorError,
    WorkerCrashedError,
    WorkerError,
    describe,
)
from orchestrator.inflight import Inflight, Ticket
from orchestrator.points import Passage, Point
from orchestrator.policies.concurrency import Concurrency
from orchestrator.policies.limits.key import Permit
from orchestrator.policies.queue import PriorityQueue

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Slot:
    ref: Ref
    epoch: int = 0
    ticket: Ticket | None = None
    permit: Permit | None = None


class Engine(LoopActor):
    """Dispatches the queue of one deployment to its slots.

    Args:
        inflight: The deployment's registry.
        queue: Its queue, which the registry fills.
        gates: Its permits, breaker and retry policy.
        next_epoch: Gives a number that no attempt had before.
        on_death: Told when the engine ends, with the cause.
    """

    def __init__(
        self,
        inflight: Inflight,
        queue: PriorityQueue,
        gates: Gates,
        *,
        next_epoch: Callable[[], int],
        on_death: OnDeath,
    ) -> None:
        super().__init__(on_death=on_death)
        self._inflight = inflight
        self._generation = inflight.generation
        self._queue = queue
        self._gates = gates
        self._next_epoch = next_epoch
        self._slots: dict[str, _Slot] = {}
        self._idle: deque[str] = deque()
        self._timer: asyncio.Handle | None = None
        self._timer_due = 0.0  # uvloop's handle of a time that has come can't tell it
        self._meters = metrics.for_deployment(inflight.deployment)

    def __repr__(self) -> str:
        return f"<Engine {self._inflight.deployment}, {len(self._idle)} of {len(self._slots)} idle>"

    @override
    def on_receive(self, message: EngineMessage) -> None:
        """Handles one message, then dispatches what can be dispatched."""
        if self._generation != self._inflight.generation:
            self._meters.stale()
            return
        match message:
            case Wake():
                pass
            case Gone(ticket):
                self._withdraw(ticket)
            case SlotReady(worker, ref):
                if ref.is_alive():  # else its death was told before, and won't be told again
                    self._slots[worker] = _Slot(ref)
                    self._idle.append(worker)
                    self._count_slots()
            case SlotLost(worker, cause):
                self._lose(worker, cause)
            case AttemptEnded(worker, epoch, outcome):
                self._free(worker, epoch, outcome)
            case _:
                assert_never(message)
        self._dispatch()

    @override
    async def release(self) -> None:
        """Forgets the timer and settles what was assigned.

        An assignment that a killed worker never took up would keep its permit for ever.
        """
        if self._timer is not None:
            self._timer.cancel()
        self._gates.limiter.withdraw()
        for slot in self._slots.values():
            if slot.permit is not None:
                slot.permit.spend()

    def _dispatch(self) -> None:
        waits = self._dispatch_all()
        if not waits and self._gates.limiter.shares:
            self._gates.limiter.withdraw()

    def _dispatch_all(self) -> bool:
        """Dispatches what can be; returns whether the first one waits for a permit."""
        loop = asyncio.get_running_loop()
        concurrency = self._gates.concurrency
        while self._idle:
            if concurrency is not None and not concurrency.allows(self._busy):
                return False  # the end of any of them dispatches again
            now = loop.time()
            ticket = self._queue.peek(now)
            if ticket is None:
                self._wake_at(self._queue.next_time())
                return False
            if (refusal := self._refusal(ticket, now)) is not None:
                self._queue.pop(ticket)
                # a gate that refuses the retry must not hide why there was one, nor may it be
                # taken for what the first attempt failed with
                self._inflight.give_up(ticket, ticket.request.first_error or refusal)
                continue
            request, limiter = ticket.request, self._gates.limiter
            prompt, answer = request.estimated_prompt_tokens, request.estimated_answer_tokens
            if limiter.shares:
                limiter.level = self._queue.level(ticket, now)
            permit = limiter.reserve(prompt, answer, now)
            if permit is None:
                self._wait(limiter.ready_at(prompt, answer, now), now)
                return True
            self._queue.pop(ticket)
            self._queue.departed(now)
            self._assign(self._idle.popleft(), ticket, permit, now)
        return False

    def _refusal(self, ticket: Ticket, now: float) -> OrchestratorError | None:
        """Why the request can't be served in time here, or None if it may be."""
        patience = min(self._gates.retry.longest_wait, ticket.request.deadline - now)
        return self._gates.breaker.refusal(now) or self._gates.limiter.refusal(patience, now)

    def _wait(self, ready_at: float, now: float) -> None:
        """Looks again when the first in the queue gets its permit, or one before it is due."""
        self._queue.pace.hold(ready_at, now)
        due = self._queue.next_time()
        when = ready_at if due is None else min(ready_at, due)
        if self._gates.limiter.shares:  # with another level it may go before another deployment
            when = min(when, self._queue.next_rise(now))
        self._wake_at(when if when < math.inf else None)  # else the end of an attempt wakes it

    def _assign(self, worker: str, ticket: Ticket, permit: Permit, now: float) -> None:
        slot = self._slots[worker]
        epoch = self._next_epoch()
        ticket.attempts += 1
        ticket.worker = worker
        slot.epoch, slot.ticket, slot.permit = epoch, ticket, permit  # rule 1: first the record,
        ticket.request.channel.begin(epoch)
        if self._gates.points is not None:
            self._pass(Point.DISPATCH_RECORDED, ticket)
        order = Assign(
            ticket.request,
            epoch,
            ticket.attempts,
            permit,
            now - ticket.queued_at,
            self._queue.pace.held(now) - ticket.held_before,
        )
        self._meters.dispatched(order.queued_for)
        tell(slot.ref, order)  # then the word; if the worker is dead, its death is on the way
        if self._gates.points is not None:
            self._pass(Point.DISPATCH_TOLD, ticket)

    def _free(self, worker: str, epoch: int, outcome: Outcome) -> None:
        slot = self._slots.get(worker)
        if slot is None or slot.epoch != epoch or slot.ticket is None:
            self._meters.stale()
            return
        ticket, slot.ticket, slot.permit = slot.ticket, None, None
        if self._gates.concurrency is not None:
            self._learn(self._gates.concurrency, ticket, epoch, outcome)
        self._idle.append(worker)
        self._settle(ticket, outcome)

    @property
    def _busy(self) -> int:
        return len(self._slots) - len(self._idle)

    def _learn(
        self, concurrency: Concurrency, ticket: Ticket, epoch: int, outcome: Outcome
    ) -> None:
        """Tells the limit what came of an attempt; its slot is still counted as busy."""
        attempts = reversed(ticket.request.attempts)
        record = next((one for one in attempts if one.epoch == epoch), None)
        if record is None:
            return
        now, began_at = asyncio.get_running_loop().time(), record.started_at
        match outcome:
            case Done():
                first = record.first_token_at
                concurrency.went_well(
                    began_at=began_at,
                    first_token_after=None if first is None else first - began_at,
                    running=self._busy,
                    now=now,
                )
            case TryAgain(error) | GaveUp(error) | Interrupted(error) if error.is_overload:
                concurrency.was_too_much(began_at=began_at, now=now)
            case _:
                pass

    def _settle(self, ticket: Ticket, outcome: Outcome) -> None:
        self._meters.attempt_ended(outcome_name(outcome))
        if not self._inflight.holds(ticket):
            return  # it was canceled, or poisoned away, while the word was on its way
        match outcome:
            case Done() | Canceled():
                self._inflight.leave(ticket)
            case TryAgain(error, not_before):
                _remember(ticket, error)
                ticket.queued_at = asyncio.get_running_loop().time()
                self._queue.push_back(ticket, not_before=not_before)
                if self._gates.points is not None:
                    self._pass(Point.RETRY_QUEUED, ticket, not_before)
            case GaveUp(error) | Interrupted(error):
                self._give_up(ticket, error)
            case _:
                assert_never(outcome)

    def _give_up(self, ticket: Ticket, error: OrchestratorError) -> None:
        if isinstance(error, CircuitOpenError):
            error = ticket.request.first_error or error  # as above, for an attempt that came late
        _remember(ticket, error)
        self._inflight.give_up(ticket, error)

    def _lose(self, worker: str, cause: BaseException | None) -> None:
        slot = self._slots.pop(worker, None)
        if slot is None:
            return
        if worker in self._idle:
            self._idle.remove(worker)
        self._count_slots()
        ticket, permit = slot.ticket, slot.permit
        if ticket is None or permit is None:
            return
        permit.spend()
        outcome: Outcome = Canceled()
        if self._inflight.holds(ticket):  # else it may have begun elsewhere
            # whatever the attempt itself has decided, its word comes too late for this ledger
            outcome = after_failure(
                ticket.request,
                _crash(worker, cause),
                attempts=ticket.attempts,
                gates=self._gates,
                now=asyncio.get_running_loop().time(),
            )
        self._settle(ticket, outcome)

    def _withdraw(self, ticket: Ticket) -> None:
        slot = self._slots.get(ticket.worker)
        if slot is not None and slot.ticket is ticket:
            tell(slot.ref, Abort(slot.epoch))

    def _pass(self, point: Point, ticket: Ticket, not_before: float = 0.0) -> None:
        if self._gates.points is not None:
            slot = self._slots.get(ticket.worker)
            self._gates.points(
                Passage(
                    point=point,
                    deployment=self._inflight.deployment,
                    request=ticket.request,
                    worker=ticket.worker,
                    epoch=slot.epoch if slot is not None else None,
                    not_before=not_before,
                )
            )

    def _count_slots(self) -> None:
        self._inflight.count_slots(len(self._slots))

    def _wake_at(self, when: float | None) -> None:
        if self._timer is not None:
            if when == self._timer_due:
                return
            self._timer.cancel()
            self._timer = None
        if when is not None:
            self._timer_due = when
            self._timer = asyncio.get_running_loop().call_at(when, self._wake)

    def _wake(self) -> None:
        self._timer = None
        tell(self.actor_ref, Wake())


def _remember(ticket: Ticket, error: OrchestratorError) -> None:
    if ticket.request.first_error is None and not isinstance(error, CircuitOpenError):
        ticket.request.first_error = error


def _crash(worker: str, cause: BaseException | None) -> OrchestratorError:
    # a fresh object for each request: one that is raised in many tasks grows one traceback. Only an
    # error of a worker keeps its class: whatever else killed it is no fault of this request
    if isinstance(cause, WorkerError):
        error = type(cause)(f"worker {worker}: {cause.message}")
    else:
        reason = "it was stopped" if cause is None else describe(cause)
        error = WorkerCrashedError(f"worker {worker} died: {reason}")
    error.__cause__ = cause
    return error
