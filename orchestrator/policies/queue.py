"""The bounded queue of a deployment: who waits, who finds no room, and when to come back.

Whose turn it is among those who may start is `turns.py`'s business. A request that is to be tried
again keeps its arrival and comes back to its old place once its backoff is over; until then it
waits in a heap, ordered by that time. Rules:

    1. Whoever finds the queue full is refused, unless somebody who waits has to make room for it.
    2. With `on_full: wait` there are extra places for a request that found no room anywhere on its
       route. One order holds over all places; they are extra only in who may take them.
    3. A retry was let in before and is never refused, nor shed.
    4. A refusal says when to come back, from the measured pace, and to each one a later time.
"""

import heapq
import math
from typing import Literal

from orchestrator.errors import QueueFullError, QueueRejectedError
from orchestrator.inflight import Shed, Ticket
from orchestrator.request import Priority
from orchestrator.turns import Turns

OnFull = Literal["reject", "wait", "failover"]

SWEEP_FROM = 64
UNKNOWN_PACE = 1.0
"""Seconds between two places, as long as nothing was measured."""
SOONEST, LATEST = 0.1, 300.0
"""Seconds from now: what a refusal may say."""
MEMORY = 30.0
"""Seconds after which a measurement weighs a third."""


class Pace:
    """How often a place in a queue gets free, and when there will be one for whom.

    Only the time in which somebody waits is measured: else it would be the callers' own pace.
    """

    def __init__(self) -> None:
        self._departures = 0.0
        self._seconds = 0.0
        self._last: float | None = None
        self._promised = [0.0 for _ in Priority]
        self._held_until = 0.0
        self._held_since: float | None = None
        self._held_seconds = 0.0

    def departed(self, now: float, *, somebody_waits: bool) -> None:
        """One has left, to be served (loop time, seconds)."""
        self._held_until = 0.0
        if self._held_since is not None:
            self._held_seconds, self._held_since = self.held(now), None
        if self._last is not None:
            seconds = now - self._last
            faded = math.exp(-seconds / MEMORY)
            self._departures = self._departures * faded + 1.0
            self._seconds = self._seconds * faded + seconds
        self._last = now if somebody_waits else None

    def hold(self, until: float, now: float) -> None:
        """Nobody leaves before then, whatever the pace was (loop time, seconds).

        Infinite if that depends on the attempts that run: then the pace tells.
        """
        if self._held_since is None:
            self._held_since = now
        self._held_until = 0.0 if math.isinf(until) else until

    def held(self, now: float) -> float:
        """Seconds, all together, in which there was a slot for the first one but no permit."""
        since = self._held_since
        return self._held_seconds if since is None else self._held_seconds + now - since

    @property
    def interval(self) -> float:
        """Seconds from one place to the next."""
        return self._seconds / self._departures if self._departures else UNKNOWN_PACE

    def promise(self, priority: Priority, now: float) -> float:
        """Seconds until there is a place for one more of this priority.

        Whoever was refused before gets the place before, unless it is of a lower priority.
        """
        free = max(now, self._held_until, *self._promised[priority:]) + self.interval
        free = min(max(free, now + SOONEST), now + LATEST)
        self._promised[priority] = free
        return free - now


class PriorityQueue:
    """One deployment's queue.

    Args:
        name: The deployment, for the error's text.
        capacity: How many requests may wait; those that run don't count.
        aging: Seconds after which a request that waits rises by one class; None for never.
        on_full: What happens to a request that finds no room.
        waiting: Extra places, if that is `wait`.
    """

    def __init__(
        self,
        name: str,
        capacity: int,
        *,
        aging: float | None = None,
        on_full: OnFull = "failover",
        waiting: int = 0,
    ) -> None:
        self._name = name
        self._capacity = capacity
        self._on_full: OnFull = on_full
        self._waiting = waiting if on_full == "wait" else 0
        self._turns = Turns(aging)
        self._delayed: list[tuple[float, int, Ticket]] = []
        self._backing_off = 0
        self._length = 0
        self.pace = Pace()

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"<PriorityQueue {self._name}, {self._length} of {self._capacity}>"

    def push(self, ticket: Ticket) -> Shed | None:
        """Adds a new request; returns who had to leave for it.

        Raises:
            QueueFullError: There is no room for it.
        """
        shed = None
        if self._length >= self._capacity + (self._waiting if ticket.patient else 0):
            shed = self._make_room(ticket)
        ticket.queued = True
        ticket.held_before = self.pace.held(ticket.queued_at)
        self._length += 1
        self._turns.add(ticket)
        return shed

    def push_back(self, ticket: Ticket, *, not_before: float) -> None:
        """Puts a request that was accepted before back to its old place; never refused.

        Args:
            ticket: The request, with its old arrival number.
            not_before: Loop time, seconds, before which it isn't dispatched.
        """
        ticket.queued = ticket.backing_off = True
        ticket.held_before = self.pace.held(ticket.queued_at)
        self._length += 1
        self._backing_off += 1
        heapq.heappush(self._delayed, (not_before, ticket.sequence, ticket))

    def discard(self, ticket: Ticket) -> None:
        """Takes a waiting request out, whatever its place."""
        if not ticket.queued:
            return
        ticket.queued = False
        self._length -= 1
        if not ticket.backing_off:
            self._turns.remove(ticket)
            return
        ticket.backing_off = False
        self._backing_off -= 1
        if not self._backing_off:
            self._delayed.clear()
        elif len(self._delayed) > SWEEP_FROM and len(self._delayed) > 2 * self._backing_off:
            self._delayed = [entry for entry in self._delayed if entry[2].queued]
            heapq.heapify(self._delayed)

    def peek(self, now: float) -> Ticket | None:
        """The request to dispatch next, or None if none may start yet."""
        while self._delayed and (self._delayed[0][0] <= now or not self._delayed[0][2].queued):
            ticket = heapq.heappop(self._delayed)[2]
            if ticket.queued:
                ticket.backing_off = False
                self._backing_off -= 1
                self._turns.add(ticket)
        return self._turns.first(now)

    def level(self, ticket: Ticket, now: float) -> int:
        """How urgent that one is which `peek` has just returned: its class and its wait."""
        return self._turns.level(ticket, now)

    def next_rise(self, now: float) -> float:
        """Loop time, seconds, at which `level` may be higher; infinite if it stays as it is."""
        return self._turns.next_rise(now)

    def pop(self, ticket: Ticket) -> None:
        """Takes the request out that `peek` has just returned."""
        ticket.queued = False
        self._length -= 1
        self._turns.serve(ticket)

    def departed(self, now: float) -> None:
        """The request that was popped is served (loop time, seconds)."""
        self.pace.departed(now, somebody_waits=self._length > 0)

    def next_time(self) -> float | None:
        """Loop time, seconds, at which the next delayed request may start; None if none waits."""
        return self._delayed[0][0] if self._delayed else None

    def _make_room(self, ticket: Ticket) -> Shed | None:
        """Takes out who must leave for this one.

        Raises:
            QueueFullError: Nobody must.
        """
        request, now = ticket.request, ticket.arrived_at
        full = f"the queue of {self._name} is full ({self._length} requests wait)"
        if self._waiting and not ticket.patient:
            raise QueueFullError(full)  # not its last word: there are the extra places
        leaves = self._turns.to_shed(request, now)
        if leaves is None:
            raise self._refusal(f"{full}; retry later", request.priority, now)
        self.discard(leaves)
        reason = "one of a higher priority"
        if leaves.request.priority == request.priority:
            reason = "a caller that has fewer in it"
        text = f"{full}, and this request gave its place up for {reason}; retry later"
        return Shed(leaves, self._refusal(text, leaves.request.priority, now))

    def _refusal(self, text: str, priority: Priority, now: float) -> QueueFullError:
        kind = QueueRejectedError if self._on_full == "reject" else QueueFullError
        return kind(text, retry_after=self.pace.promise(priority, now))
