"""Whose turn it is among those who wait, and who gives a place up when there are too many.

Those of the highest level go first; within a level callers take turns, and a caller's own go oldest
first. A request enters at the level of its priority and rises one level for every `aging` seconds
that it has waited, up to the top: from then on nobody who came later goes before it, but for the
turns of other callers. So no class starves another, and no caller another caller.

Nothing here looks at all who wait. What one caller has waiting in one class is a line, whose first
is its oldest and therefore has its highest level; only the first ones of lines have a level, stand
in the ring of that level, and rise. A step costs the logarithm of the number of lines at most, and
a caller with nothing waiting leaves nothing behind. Whoever waits alone, as most do that find an
idle slot, needs no line.
"""

import heapq
import math
from collections import OrderedDict

from orchestrator.inflight import Ticket
from orchestrator.request import Priority, PriorityRequest

TOP = int(max(Priority))
NOWHERE = -1
SWEEP_FROM = 64


class Line:
    """What one caller has waiting in one class."""

    __slots__ = ("_fresh", "_untried", "caller", "first", "level", "priority", "returned", "size")

    def __init__(self, caller: str, priority: int) -> None:
        self.caller = caller
        self.priority = priority
        self.size = 0
        self.first: Ticket | None = None
        """The oldest."""
        self.level = NOWHERE
        """Of the first."""
        self._fresh: OrderedDict[Ticket, None] = OrderedDict()  # as they came
        self._untried: dict[Ticket, None] = {}
        """Those of them that no attempt was made for when last looked at, as they came."""
        self.returned: list[tuple[int, Ticket]] = []
        """Those who came back to their places: a heap, in which some may have left."""

    def __repr__(self) -> str:
        return f"<Line {self.caller!r} {Priority(self.priority).name.lower()}, {self.size} wait>"

    def add(self, ticket: Ticket) -> None:
        """Takes in who has come, or who comes back; the size is the crowd's to tell."""
        if ticket.attempts:
            heapq.heappush(self.returned, (ticket.sequence, ticket))
        else:
            self._fresh[ticket] = None
            if not ticket.request.attempts:
                self._untried[ticket] = None

    def remove(self, ticket: Ticket) -> None:
        """Takes out who isn't queued any more."""
        if ticket in self._fresh:
            del self._fresh[ticket]
            self._untried.pop(ticket, None)
            return
        alive = self.size - len(self._fresh)
        if len(self.returned) > SWEEP_FROM and len(self.returned) > 2 * alive:
            self.returned = [entry for entry in self.returned if entry[1].queued]
            heapq.heapify(self.returned)

    def oldest(self) -> Ticket | None:
        """Finds who goes first."""
        fresh = next(iter(self._fresh), None)
        again = self.returned
        while again and not again[0][1].queued:
            heapq.heappop(again)
        if again and (fresh is None or again[0][0] < fresh.sequence):
            return again[0][1]
        return fresh

    def youngest_untried(self) -> Ticket | None:
        """The last who came of those that no attempt was made for, here or elsewhere."""
        while self._untried:
            ticket = next(reversed(self._untried))
            if not ticket.request.attempts:
                return ticket
            del self._untried[ticket]  # a hedge was begun for it: once tried, it is so for good
        return None


class _Crowd:
    """The lines of one class by their size, so that the longest is found at once."""

    __slots__ = ("_by_size",)

    def __init__(self) -> None:
        self._by_size: list[OrderedDict[Line, None]] = [OrderedDict(), OrderedDict()]

    def resize(self, line: Line, by: int) -> None:
        """A line is longer or shorter by one."""
        sizes = self._by_size
        if line.size:
            del sizes[line.size][line]
        line.size += by
        if line.size:
            if line.size == len(sizes):
                sizes.append(OrderedDict())
            sizes[line.size][line] = None
        while len(sizes) > 2 and not sizes[-1]:  # noqa: PLR2004 - the place for size 1 stays
            sizes.pop()

    @property
    def longest(self) -> Line | None:
        """The longest line; of several the one that became so last."""
        return next(reversed(self._by_size[-1]), None)


class Turns:
    """Everybody who may be dispatched.

    Args:
        aging: Seconds after which a request that waits rises by one class; None for never.
    """

    def __init__(self, aging: float | None = None) -> None:
        self._aging = aging
        self._now = 0.0
        self._alone: Ticket | None = None
        self._lines: tuple[dict[str, Line], ...] = tuple({} for _ in Priority)
        self._crowds = tuple(_Crowd() for _ in Priority)
        self._rings: tuple[OrderedDict[str, list[Line]], ...] = tuple(
            OrderedDict() for _ in Priority
        )
        self._from_top = self._rings[::-1]
        self._due: list[tuple[float, int, int, Line, Ticket]] = []
        """(when, number, level, line, its first then): a heap of those who will rise."""
        self._number = 0

    def __repr__(self) -> str:
        if self._alone is not None:
            return "<Turns, 1 alone>"
        lines = [line for lines in self._lines for line in lines.values()]
        return f"<Turns, {sum(line.size for line in lines)} in {len(lines)} lines>"

    def add(self, ticket: Ticket) -> None:
        """Lets a ticket wait, at its old place if it was tried before."""
        if self._alone is not None:
            self._line_up()
        elif not any(self._lines):
            self._alone = ticket
            return
        self._stand(ticket)

    def first(self, now: float) -> Ticket | None:
        """Whose turn it is (loop time, seconds)."""
        if self._alone is not None:
            return self._alone
        self._now = now
        if self._due and self._due[0][0] <= now:
            self._rise()
        for ring in self._from_top:
            if ring:
                lines = next(iter(ring.values()))
                return lines[0].first if len(lines) == 1 else min(map(_first, lines), key=_age)
        return None

    def level(self, ticket: Ticket, now: float) -> int:
        """Of whose turn it is (loop time, seconds)."""
        if self._alone is not None:
            return self._level(ticket, now)
        return self._lines[ticket.request.priority][ticket.request.caller].level

    def next_rise(self, now: float) -> float:
        """Loop time, seconds, at which somebody rises next, if it is here still; else infinite."""
        if self._alone is None:
            return self._due[0][0] if self._due else math.inf
        level = self._level(self._alone, now)
        if self._aging is None or level == TOP:
            return math.inf
        return self._alone.arrived_at + (level + 1 - self._alone.request.priority) * self._aging

    def serve(self, ticket: Ticket) -> None:
        """Takes out whose turn it was; its caller's next turn comes after all the others'."""
        if self._alone is not None:
            self._alone = None
            return
        line = self._take_out(ticket)
        ring = self._rings[line.level]
        self._place(line)
        if line.caller in ring:
            ring.move_to_end(line.caller)

    def remove(self, ticket: Ticket) -> None:
        """Takes out somebody who doesn't wait any more."""
        if self._alone is not None:
            self._alone = None
            return
        line = self._take_out(ticket)
        if line.first is ticket:
            self._place(line)

    def to_shed(self, request: PriorityRequest, now: float) -> Ticket | None:
        """Who gives its place up for a request, if anybody must.

        The lowest level below the request's own class has to; within it whoever has most waiting,
        and of those the youngest. If there is none, a caller who has more waiting in the very class
        gives up for one who has less. Whoever was tried, or has risen so far, keeps its place.

        Args:
            request: Who finds no room.
            now: Loop time, seconds.
        """
        self._line_up()
        found: list[tuple[int, int, Ticket]] = []
        for crowd in self._crowds[: request.priority]:
            line = crowd.longest
            ticket = None if line is None else line.youngest_untried()
            if ticket is not None and (level := self._level(ticket, now)) < request.priority:
                found.append((level, -ticket.sequence, ticket))
        return min(found)[2] if found else self._of_a_crowd(request, now)

    def _of_a_crowd(self, request: PriorityRequest, now: float) -> Ticket | None:
        longest = self._crowds[request.priority].longest
        own = self._lines[request.priority].get(request.caller)
        if longest is None or longest.size <= (0 if own is None else own.size) + 1:
            return None
        ticket = longest.youngest_untried()
        return None if ticket is None or self._level(ticket, now) > request.priority else ticket

    def _line_up(self) -> None:
        ticket, self._alone = self._alone, None
        if ticket is not None:
            self._stand(ticket)

    def _stand(self, ticket: Ticket) -> None:
        """Puts a ticket into its line."""
        priority, caller = ticket.request.priority, ticket.request.caller
        self._now = max(self._now, ticket.arrived_at)
        lines = self._lines[priority]
        line = lines.get(caller)
        if line is None:
            line = lines[caller] = Line(caller, priority)
        line.add(ticket)
        self._crowds[priority].resize(line, 1)
        if ticket.attempts or line.first is None:
            self._place(line)

    def _take_out(self, ticket: Ticket) -> Line:
        line = self._lines[ticket.request.priority][ticket.request.caller]
        line.remove(ticket)
        self._crowds[line.priority].resize(line, -1)
        return line

    def _level(self, ticket: Ticket, now: float) -> int:
        priority = ticket.request.priority
        if self._aging is None or priority == TOP:
            return priority
        risen = int((now - ticket.arrived_at) / self._aging)
        if ticket.arrived_at + (risen + 1) * self._aging <= now:
            risen += (
                1  # a quotient may be rounded down where it is due, and then it would be so late
            )
        return min(TOP, priority + risen)

    def _place(self, line: Line) -> None:
        """Puts a line, whose first may be another one now, into the ring where it belongs."""
        first = line.oldest()
        if first is line.first:
            return
        line.first = first
        if first is None:
            self._move(line, NOWHERE)
            del self._lines[line.priority][line.caller]
            if not any(self._lines):
                self._due.clear()  # whoever is gone is not held until it would have risen
            return
        self._move(line, self._level(first, self._now))
        self._arm(line, first)

    def _move(self, line: Line, level: int) -> None:
        if level == line.level:
            return
        caller = line.caller
        if line.level != NOWHERE:
            ring = self._rings[line.level]
            lines = ring[caller]
            if len(lines) == 1:
                del ring[caller]
            else:
                lines.remove(line)
        if level != NOWHERE:
            ring = self._rings[level]
            if caller in ring:
                ring[caller].append(line)
            else:
                ring[caller] = [line]
        line.level = level

    def _arm(self, line: Line, first: Ticket) -> None:
        if self._aging is None or line.level == TOP:
            return
        level = line.level + 1
        when = first.arrived_at + (level - line.priority) * self._aging
        self._number += 1
        heapq.heappush(self._due, (when, self._number, level, line, first))
        if len(self._due) > SWEEP_FROM and len(self._due) > 4 * sum(map(len, self._lines)):
            self._due = [entry for entry in self._due if _counts(entry)]
            heapq.heapify(self._due)

    def _rise(self) -> None:
        while self._due and self._due[0][0] <= self._now:
            entry = heapq.heappop(self._due)
            if _counts(entry):
                _, _, level, line, first = entry
                # rounding may not keep it a level below the one that it was due for
                self._move(line, max(level, self._level(first, self._now)))
                self._arm(line, first)


def _counts(entry: tuple[float, int, int, Line, Ticket]) -> bool:
    _, _, level, line, first = entry
    return line.first is first and line.level < level


def _first(line: Line) -> Ticket:
    assert line.first is not None  # noqa: S101 - a line in a ring has somebody waiting
    return line.first


def _age(ticket: Ticket) -> int:
    return ticket.sequence
