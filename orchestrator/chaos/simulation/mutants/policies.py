"""Bugs of the queue, the permits, the breaker and the retry budget."""

import heapq

from typing_extensions import override

from orchestrator.errors import OrchestratorError
from orchestrator.inflight import Ticket
from orchestrator.policies.breaker import Breaker
from orchestrator.policies.queue import PriorityQueue
from orchestrator.policies.rate_limit import Permit, RateLimiter
from orchestrator.policies.retry import RetryBudget


class LetsAllPass(RateLimiter):
    """A permit that permits everything."""

    @override
    def reserve(self, tokens: int, now: float) -> Permit | None:
        self.outstanding += 1
        return Permit(self, tokens)


class NeverRefuses(PriorityQueue):
    """A queue without a bound."""

    @override
    def push(self, ticket: Ticket) -> None:
        self._enter(ticket)


class KeepsTheGone(PriorityQueue):
    """Who went away is dispatched all the same."""

    @override
    def discard(self, ticket: Ticket) -> None:
        pass


class LosesThePlace(PriorityQueue):
    """A retry goes to the end of the queue."""

    @override
    def push_back(self, ticket: Ticket, *, not_before: float) -> None:
        ticket.sequence += 1_000_000
        super().push_back(ticket, not_before=not_before)


class IgnoresPriority(PriorityQueue):
    """First come, first served, whoever it is."""

    @override
    def _enter(self, ticket: Ticket) -> None:
        ticket.queued = True
        self._length += 1
        heapq.heappush(self._ready, (0, ticket.sequence, ticket))


class TiesOnTheHeap(PriorityQueue):
    """Two retries due at one time are compared by themselves, which fails."""

    @override
    def push_back(self, ticket: Ticket, *, not_before: float) -> None:
        due = round(not_before, 1)
        if any(entry[0] == due for entry in self._delayed):
            raise TypeError("'<' not supported between instances of 'Ticket' and 'Ticket'")
        super().push_back(ticket, not_before=due)


class NoBudget(RetryBudget):
    """Every retry is allowed."""

    @override
    def spend(self, now: float) -> bool:
        return True


class Floods(Breaker):
    """Half-open lets everyone in."""

    @override
    def admit(self, now: float) -> int:
        self._probing = 0
        return super().admit(now)


class KeepsTheProbe(Breaker):
    """A probe without a verdict never gives its place back."""

    @override
    def no_verdict(self, era: int) -> None:
        pass


class CountsOldVerdicts(Breaker):
    """A result of an older era moves it."""

    @override
    def failed(self, era: int, error: OrchestratorError) -> None:
        super().failed(self._era, error)
