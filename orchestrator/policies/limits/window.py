"""What was used in the last minute: in no minute is it ever more than the limit.

A leaky bucket of a minute's capacity lets nearly twice the limit through in its first minute, and
a counter that is set back every minute does so around each stroke. So this is a sliding window:
what was used counts for a minute and is forgotten then. A minute is kept in 120 cells, so neither
memory nor the cost of a step grows with the limit; a cell is forgotten when the newest that may be
in it is old enough, and half a second later still, for one request may be longer on its way than
another. What was used is known later than that it was used: a correction goes to its own cell.
"""

SPAN_SECONDS = 60.0
CELLS = 120
_PLACES = CELLS + 2


class Window:
    """A sliding window over one limit.

    Args:
        limit: Per minute. Below 1 the window is longer, and lets 1 through.
    """

    __slots__ = ("_amounts", "_cell", "_oldest", "limit", "used")

    def __init__(self, limit: float) -> None:
        self._cell = SPAN_SECONDS / min(limit, 1.0) / CELLS
        self._amounts = [0.0] * _PLACES
        self._oldest = 0
        self.limit = max(limit, 1.0)
        self.used = 0.0
        """What counts now."""

    def __repr__(self) -> str:
        return f"<Window, {self.used:g} of {self.limit:g} used>"

    def has_room(self, amount: float, now: float) -> bool:
        """Whether the amount fits (loop time, seconds)."""
        self._forget(now)
        return self.used + amount <= self.limit

    def add(self, amount: float, at: float) -> None:
        """Counts what was used, or gives back (negative) what wasn't.

        Args:
            amount: How much.
            at: Loop time, seconds, at which it was used; what has been forgotten stays so.
        """
        cell = int(at / self._cell)
        if cell >= self._oldest + _PLACES:
            self._forget(at)
        if cell >= self._oldest:
            self._amounts[cell % _PLACES] += amount
            self.used += amount

    def ready_at(self, amount: float, now: float) -> float:
        """Loop time, seconds, at which the amount fits if nobody else uses any."""
        self._forget(now)
        over = self.used + amount - self.limit
        cell = self._oldest
        while over > 0 and cell < self._oldest + _PLACES:
            over -= self._amounts[cell % _PLACES]
            cell += 1
        return max(now, (cell + CELLS + 1) * self._cell) if cell > self._oldest else now

    def _forget(self, now: float) -> None:
        # cell n is over at n + 1 cells, and old enough a minute and a cell later
        oldest = int(now / self._cell) - CELLS - 1
        if oldest <= self._oldest:
            return
        for cell in range(self._oldest, min(oldest, self._oldest + _PLACES)):
            self.used -= self._amounts[cell % _PLACES]
            self._amounts[cell % _PLACES] = 0.0
        self._oldest = oldest
