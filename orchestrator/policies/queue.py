"""The bounded priority queue: strict priority, first come first served among equals.

A heap ordered by (priority, arrival), so the cost of a step grows with the logarithm of the length
and never with the length itself. A request that is to be tried again keeps its arrival number and
comes back to its old place once its backoff is over; until then it waits in a second heap, ordered
by that time. Requests that ended while they waited are skipped when they come up, and swept out in
bulk when they are more than half of the heap.
"""

import heapq

from orchestrator.errors import QueueFullError
from orchestrator.inflight import Ticket

SWEEP_FROM = 64


class PriorityQueue:
    """One deployment's queue.

    Args:
        name: The deployment, for the error's text.
        capacity: How many requests may wait; those that run don't count.
    """

    def __init__(self, name: str, capacity: int) -> None:
        self._name = name
        self._capacity = capacity
        self._ready: list[tuple[int, int, Ticket]] = []
        self._delayed: list[tuple[float, int, Ticket]] = []
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<PriorityQueue {self._name}, {self._length} of {self._capacity}>"

    def push(self, ticket: Ticket) -> None:
        """Adds a new request.

        Raises:
            QueueFullError: As many as `capacity` wait already.
        """
        if self._length >= self._capacity:
            raise QueueFullError(
                f"the queue of {self._name} is full ({self._capacity} requests wait); retry later",
                retry_after=1.0,
            )
        self._enter(ticket)

    def push_back(self, ticket: Ticket, *, not_before: float) -> None:
        """Puts a request that was accepted before back to its old place; never refused.

        Args:
            ticket: The request, with its old arrival number.
            not_before: Loop time, seconds, before which it isn't dispatched.
        """
        ticket.queued = True
        self._length += 1
        heapq.heappush(self._delayed, (not_before, ticket.sequence, ticket))

    def discard(self, ticket: Ticket) -> None:
        """Takes a waiting request out; its place in the heap is skipped later."""
        if not ticket.queued:
            return
        ticket.queued = False
        self._length -= 1
        dead = len(self._ready) + len(self._delayed) - self._length
        if dead > SWEEP_FROM and dead > self._length:
            self._sweep()

    def peek(self, now: float) -> Ticket | None:
        """The request to dispatch next, or None if none may start yet."""
        while self._delayed and (self._delayed[0][0] <= now or not self._delayed[0][2].queued):
            ticket = heapq.heappop(self._delayed)[2]
            if ticket.queued:
                heapq.heappush(self._ready, (-ticket.request.priority, ticket.sequence, ticket))
        while self._ready:
            ticket = self._ready[0][2]
            if ticket.queued:
                return ticket
            heapq.heappop(self._ready)
        return None

    def pop(self, ticket: Ticket) -> None:
        """Takes the request out that `peek` has just returned."""
        heapq.heappop(self._ready)
        ticket.queued = False
        self._length -= 1

    def next_time(self) -> float | None:
        """Loop time, seconds, at which the next delayed request may start; None if none waits."""
        return self._delayed[0][0] if self._delayed else None

    def _enter(self, ticket: Ticket) -> None:
        ticket.queued = True
        self._length += 1
        heapq.heappush(self._ready, (-ticket.request.priority, ticket.sequence, ticket))

    def _sweep(self) -> None:
        self._ready = [entry for entry in self._ready if entry[2].queued]
        self._delayed = [entry for entry in self._delayed if entry[2].queued]
        heapq.heapify(self._ready)
        heapq.heapify(self._delayed)
