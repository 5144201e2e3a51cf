"""Bugs of the registry and of the deployment around it."""

import asyncio
from collections.abc import Callable

from typing_extensions import override

from orchestrator.actors.messages import AttemptEnded
from orchestrator.actors.runtime import OnDeath, Ref
from orchestrator.attempt import Canceled, Done
from orchestrator.deployment import RunningDeployment
from orchestrator.errors import EngineUnhealthyError, OrchestratorError, QueueFullError
from orchestrator.inflight import Fault, GiveUp, Inflight, Poisoned, Serving, Ticket
from orchestrator.points import Point
from orchestrator.request import PriorityRequest

RACE_SECONDS = 0.002


class RegistersLater(Inflight):
    """Checks the state, then registers a little later."""

    @override
    def accept(
        self, request: PriorityRequest, give_up: GiveUp, *, now: float, patient: bool = False
    ) -> None:
        if not isinstance(self.state, Serving):
            refusal = self.refusal()
            self._pass(Point.SUBMIT_REFUSED, request, refusal)
            raise refusal
        self._pass(Point.SUBMIT_CHECKED, request)
        loop = asyncio.get_running_loop()
        loop.call_later(RACE_SECONDS, self._accept_late, request, give_up, patient)

    def _accept_late(self, request: PriorityRequest, give_up: GiveUp, patient: bool) -> None:  # noqa: FBT001 - call_later passes no keywords
        now = asyncio.get_running_loop().time()
        ticket = Ticket(request, self._sequence, give_up, arrived_at=now, patient=patient)
        self._sequence += 1
        try:
            shed = self.enqueue(ticket)
        except QueueFullError as full:
            give_up(full)
            return
        self._tickets[ticket] = None
        if shed is not None:
            self._pass(Point.REQUEST_SHED, shed.ticket.request, by=request)
        self._pass(Point.SUBMIT_REGISTERED, request)
        request.channel.watch(lambda: self._ended(ticket))
        self.on_accepted()
        if shed is not None:
            self.give_up(shed.ticket, shed.error)


class LosesTheCause(Inflight):
    """Says that it is unhealthy, and not why."""

    @override
    def refusal(self, now: float = 0.0) -> OrchestratorError:
        return EngineUnhealthyError("the engine is not healthy")


class LeavesThePending(Inflight):
    """A poison that tells nobody who waits."""

    @override
    def poison(self, fault: Fault) -> bool:
        tickets, self._tickets = self._tickets, {}
        first = super().poison(fault)
        self._tickets = tickets
        return first


class PoisonsAgain(Inflight):
    """The last fault is the state, not the first."""

    @override
    def poison(self, fault: Fault) -> bool:
        if isinstance(self.state, Poisoned):
            self._state = Serving()
        return super().poison(fault)


class HealedByASuccess(RunningDeployment):
    """An attempt that ends well after the poison opens the engine again."""

    @override
    def _start_worker(
        self,
        worker: str,
        on_ready: Callable[[], None],
        on_ended: Callable[[AttemptEnded], None],
        on_death: OnDeath,
    ) -> Ref:
        def heal(message: AttemptEnded) -> None:
            if isinstance(message.outcome, Done | Canceled):
                self.inflight.serve()
            on_ended(message)

        return super()._start_worker(worker, on_ready, heal, on_death)


class FailsOpen(RunningDeployment):
    """Nobody hears that the supervisor is dead."""

    @override
    def _supervisor_died(self, cause: BaseException | None) -> None:
        pass
