"""Every accepted request of one deployment until it leaves, and the one-way poison switch.

This is the linearisation point of the whole system. `accept` and `poison` are synchronous steps on
one loop, so no request can slip between the check of the state and its registration:

    accept:  {serving? -> queued -> registered}
    poison:  {the fault becomes the state} -> intake is closed by that very assignment -> the
             registry is taken and replaced -> then, outside of that step, everyone taken is told

The order inside `poison` is the argument: first the reason is visible, then the intake is closed,
then the pending are told. In any other order a request slips through or sees a state without a
reason. State and reason are one object, so they can't disagree.
"""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, assert_never

from orchestrator.errors import (
    EngineDrainingError,
    EngineUnhealthyError,
    OrchestratorError,
    QueueFullError,
    Scope,
    describe,
)
from orchestrator.events import Failed
from orchestrator.points import Passage, Point, Points
from orchestrator.request import PriorityRequest

logger = logging.getLogger(__name__)

MAX_CAUSE_TEXT = 500
SOONEST_BACK = 1.0
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What broke, where, and why; the first one of a generation is its poison."""

    scope: Scope
    stage: str
    """What was being done: `start`, `step`, `dispatch`, `supervise`, `restart budget`."""
    worker: str | None
    epoch: int | None
    cause: BaseException
    at: float
    """Loop time, seconds."""
    fault_id: str

    def describe(self) -> str:
        """One line for people: id, stage and root cause."""
        cause = self.cause
        if isinstance(cause, OrchestratorError):
            cause = cause.root_cause
        return f"{self.fault_id} ({self.stage}): {describe(cause)[:MAX_CAUSE_TEXT]}"


@dataclass(frozen=True, slots=True)
class Serving:
    """Requests are accepted."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """This generation has ended; the first fault is the state itself."""

    fault: Fault


@dataclass(frozen=True, slots=True)
class Draining:
    """What runs may finish; nothing new is accepted."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Nothing runs any more."""


State = Serving | Poisoned | Draining | Stopped
StateName = Literal["serving", "poisoned", "draining", "stopped"]
GiveUp = Callable[[OrchestratorError], None]


@dataclass(slots=True, eq=False)
class Ticket:
    """One accepted request's place in one deployment; the engine's ledger points at it."""

    request: PriorityRequest
    sequence: int
    """Arrival order; a request that is tried again keeps it."""
    give_up: GiveUp
    attempts: int = 0
    """Attempts at this deployment."""
    queued: bool = False
    """Whether it waits in the queue (and counts towards the queue's bound)."""
    queued_at: float = 0.0
    """Loop time, seconds; so is the next."""
    arrived_at: float = 0.0
    """When it was accepted here; a request that is tried again keeps it, and so its age."""
    patient: bool = False
    """Whether it may take one of the extra places of a queue on which to wait (`on_full: wait`)."""
    held_before: float = 0.0
    """Seconds for which the queue had been held by permits as it came; written by the queue."""
    backing_off: bool = False
    """Whether it waits for its backoff to be over; written by the queue."""
    worker: str = ""
    """Who runs it, or ran it last; written by the engine."""


@dataclass(frozen=True, slots=True)
class Shed:
    """Who had to give its place in the queue up, and what it is told."""

    ticket: Ticket
    error: QueueFullError


@dataclass(slots=True, eq=False, kw_only=True)
class Inflight:
    """The registry of one deployment, over all its generations.

    Args:
        deployment: Its name.
        enqueue: Puts an accepted request into the queue and says who had to leave it for that;
            raises `QueueFullError`.
        dequeue: Takes a queued one out that has ended otherwise.
        on_accepted: Called after an acceptance, to wake the engine.
        on_gone: Called when a running request ended by something else than its attempt.
        points: Told of the passages here, if anybody looks on.
    """

    deployment: str
    enqueue: Callable[[Ticket], Shed | None]
    dequeue: Callable[[Ticket], None]
    on_accepted: Callable[[], None]
    on_gone: Callable[[Ticket], None]
    slots: int = 0
    """Configured slots."""
    generation: int = 1
    restart_after: float | None = None
    """Seconds from a poison to the next start; None if it stays down."""
    start_seconds: float = 0.0
    """How long the last start took until the first slot served."""
    waits: bool = False
    """Whether its full queue has extra places for who finds no room anywhere else."""
    points: Points | None = None
    accepted_total: int = 0
    secondary: list[Fault] = field(default_factory=list[Fault])
    """Faults after the first; never replacing it."""
    last_fault: BaseException | None = None
    """The root cause of the last worker's death; written by the supervisor."""
    _state: State = field(default_factory=Serving)
    _live_slots: int = 0
    _observers: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    _tickets: dict[Ticket, None] = field(default_factory=dict[Ticket, None])
    _idle: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    _sequence: int = 0
    _drained: bool = False

    def __repr__(self) -> str:
        return f"<Inflight {self.deployment} {self.state_name}, {len(self._tickets)} requests>"

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def state(self) -> State:
        """The state, with its reason in it."""
        return self._state

    @property
    def state_name(self) -> StateName:
        """The state's name for metrics and the health page."""
        match self._state:
            case Serving():
                return "serving"
            case Poisoned():
                return "poisoned"
            case Draining():
                return "draining"
            case Stopped():
                return "stopped"
            case _:
                assert_never(self._state)

    @property
    def live_slots(self) -> int:
        """Slots whose worker is idle or busy."""
        return self._live_slots

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be served; never false because of load."""
        return isinstance(self._state, Serving) and self._live_slots > 0

    def observe(self, callback: Callable[[], None]) -> None:
        """Calls back after every change of the state or of the number of live slots."""
        self._observers.append(callback)

    def count_slots(self, live: int) -> None:
        """The engine's ledger has so many slots now."""
        self._live_slots = live
        self._changed()

    def accept(
        self, request: PriorityRequest, give_up: GiveUp, *, now: float, patient: bool = False
    ) -> None:
        """Takes a request in, in one step with the check of the state.

        Whoever had to leave the queue for it is told after that step, for it may go to another
        deployment, and from there somebody may come here.

        Args:
            request: What to serve.
            give_up: Called once if this deployment can't serve it and nothing was delivered.
            now: Loop time, seconds.
            patient: Whether it may take an extra place, having found no room anywhere else.

        Raises:
            EngineUnhealthyError: The engine is poisoned.
            EngineDrainingError: It takes nothing new.
            QueueFullError: There is no room in the queue.
        """
        try:
            ticket, shed = self._register(request, give_up, now, patient=patient)
        except (EngineUnhealthyError, EngineDrainingError, QueueFullError) as refusal:
            self._pass(Point.SUBMIT_REFUSED, request, refusal)
            raise
        if shed is not None:
            self._pass(Point.REQUEST_SHED, shed.ticket.request, by=request)
        if self.points is not None:
            self._pass(Point.SUBMIT_REGISTERED, request)
        # a request that was canceled before it came here leaves at once
        request.channel.watch(lambda: self._ended(ticket))
        self.on_accepted()
        if shed is not None:
            self.give_up(shed.ticket, shed.error)

    def _register(
        self, request: PriorityRequest, give_up: GiveUp, now: float, *, patient: bool
    ) -> tuple[Ticket, Shed | None]:
        if not isinstance(self._state, Serving):
            raise self.refusal(now)
        if self.points is not None:
            self._pass(Point.SUBMIT_CHECKED, request)
        ticket = Ticket(
            request, self._sequence, give_up, queued_at=now, arrived_at=now, patient=patient
        )
        self._sequence += 1
        shed = self.enqueue(ticket)
        self._tickets[ticket] = None
        self.accepted_total += 1
        return ticket, shed

    def holds(self, ticket: Ticket) -> bool:
        """Whether that request is still this deployment's."""
        return ticket in self._tickets

    def leave(self, ticket: Ticket) -> bool:
        """Strikes a request off; False if it had left already (by its ending or by poison)."""
        if ticket not in self._tickets:
            return False
        del self._tickets[ticket]
        if ticket.queued:
            self.dequeue(ticket)
        if self.points is not None:
            self._pass(Point.REQUEST_LEFT, ticket.request)
        if not self._tickets:
            idle, self._idle = self._idle, []
            for callback in idle:
                callback()
        return True

    def give_up(self, ticket: Ticket, error: OrchestratorError) -> None:
        """Hands a request back to whoever sent it here, if it is still here."""
        if self.leave(ticket):
            ticket.give_up(error)

    def poison(self, fault: Fault) -> bool:
        """Ends this generation; False if it was poisoned before, which keeps its first fault."""
        if isinstance(self._state, Poisoned | Stopped):
            self.secondary.append(fault)
            return False
        self._state = Poisoned(fault)
        self._pass(Point.POISON_PUBLISHED, error=fault.cause)
        self._live_slots = 0
        taken = list(self._tickets)
        for ticket in taken:
            self.give_up(ticket, self.refusal(fault.at))
        self._changed()
        return True

    def begin_generation(self) -> int:
        """Gives the next engine its number; what carries an older one is stale from now on."""
        self.generation += 1
        return self.generation

    def serve(self) -> None:
        """Opens the new generation after a poison; the old one never comes back."""
        if isinstance(self._state, Poisoned):
            self.secondary.clear()
            # a drain that was begun before goes on: it is as one-way as a poison
            self._state = Draining() if self._drained else Serving()
            self._pass(Point.ENGINE_SERVES)
            self._changed()

    def drain(self) -> None:
        """Accepts nothing new; what was accepted goes on."""
        self._drained = True
        if isinstance(self._state, Serving):
            self._state = Draining()
            self._changed()

    def stop(self) -> None:
        """Ends all that is left, with a named error, and accepts nothing ever again."""
        if not isinstance(self._state, Stopped):
            refusal = self.refusal
            self._state = Stopped()
            self._live_slots = 0
            for ticket in list(self._tickets):
                if self.leave(ticket):
                    ticket.request.channel.end(Failed(refusal()))
            self._changed()

    def when_idle(self, callback: Callable[[], None]) -> None:
        """Calls back once when no request is here; at once if none is."""
        if self._tickets:
            self._idle.append(callback)
        else:
            callback()

    def back_in(self, now: float) -> float | None:
        """Seconds until a poisoned engine may serve again; None if it stays down, or isn't."""
        if not isinstance(self._state, Poisoned) or self.restart_after is None:
            return None
        due = self._state.fault.at + self.restart_after + self.start_seconds
        return max(due - now, SOONEST_BACK)  # a start that takes longer may be done any moment

    def refusal(self, now: float = math.inf) -> OrchestratorError:
        """A fresh error that says why nothing is accepted; each waiter gets its own object.

        Args:
            now: Loop time, seconds, from which its `retry_after` counts.
        """
        if isinstance(self._state, Poisoned):
            fault = self._state.fault
            error = EngineUnhealthyError(
                f"deployment {self.deployment} is unhealthy: {fault.describe()}",
                retry_after=self.back_in(now),
            )
            error.__cause__ = fault.cause
            return error
        return EngineDrainingError(
            f"deployment {self.deployment} is stopping; send the request to another instance",
            retry_after=1.0,
        )

    def _pass(
        self,
        point: Point,
        request: PriorityRequest | None = None,
        error: BaseException | None = None,
        by: PriorityRequest | None = None,
    ) -> None:
        if self.points is not None:
            self.points(
                Passage(
                    point=point, deployment=self.deployment, request=request, error=error, by=by
                )
            )

    def _changed(self) -> None:
        for observer in self._observers:
            observer()

    def _ended(self, ticket: Ticket) -> None:
        was_queued = ticket.queued
        if not self.leave(ticket):
            return
        if not was_queued and isinstance(ticket.request.channel.ending, Failed):
            self.on_gone(ticket)
