"""How many attempts may run at once at a deployment, found out by trying.

A provider or a machine that is asked for too much at a time answers 429 or 529, times out or gets
slow, and where that begins nobody writes down. So the limit is raised step by step as long as all
goes well, and lowered by a share at once when it doesn't (AIMD, as TCP does it):

    up      by one for each attempt that went well until the first trouble, then by one for as many
            as may run at once, and ten times more slowly just below where the last trouble was: at
            a limit of four a step up would else fail for every few that succeed. Only while at
            least half of the limit is in use, for what isn't used proves nothing
    down    by a quarter, when an attempt says that there was too much, or when first tokens take
            twice as long as they usually do; once for all attempts that had begun before, because
            they tell of the limit that was

A lower limit stops nothing that runs.
"""

import math

DOWN = 0.75
CAREFUL = 0.1
SLOW = 2.0
"""So many times the usual time to the first token is too slow."""
USUALLY, LATELY = 0.01, 0.1
"""Weights of one measurement."""
LONGEST = 4.0
"""So many usual times one measurement counts for at most: a single outlier is no trend."""


class Concurrency:
    """The limit of one deployment.

    Args:
        lowest: Attempts that may always run.
        highest: Attempts that may run at most.
    """

    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest = lowest
        self._highest = highest
        self._limit = float(lowest)
        self._trouble: float | None = None  # where the last one was; infinite once it is passed
        self._lowered_at = float("-inf")
        self._usual: float | None = None
        self._recent = 0.0

    def __repr__(self) -> str:
        return f"<Concurrency {self.limit} of {self._lowest} to {self._highest}>"

    @property
    def limit(self) -> int:
        """Attempts that may run now."""
        return int(self._limit)

    def allows(self, running: int) -> bool:
        """Whether one more may start beside so many."""
        return running + 1 <= self._limit

    def went_well(
        self, *, began_at: float, first_token_after: float | None, running: int, now: float
    ) -> None:
        """An attempt was served.

        Args:
            began_at: Loop time, seconds; so is `now`.
            first_token_after: Seconds from then; None if there was none.
            running: Attempts that ran when it ended, itself included.
            now: When it ended.
        """
        if first_token_after is not None and self._is_slow(first_token_after, began_at):
            self.was_too_much(began_at=began_at, now=now)
        elif running * 2 >= self._limit:
            self._limit = min(self._highest, self._limit + self._step())

    def was_too_much(self, *, began_at: float, now: float) -> None:
        """An attempt says that fewer at once would be better (loop times, seconds)."""
        if began_at < self._lowered_at:
            return
        self._trouble = float(self.limit)
        self._limit = max(self._lowest, self._limit * DOWN)
        self._lowered_at = now
        self._recent = self._usual or 0.0

    def _step(self) -> float:
        if self._trouble is None:
            return 1.0
        if self._limit > self._trouble:
            self._trouble = math.inf
        return (CAREFUL if self._limit + 1.0 > self._trouble else 1.0) / self._limit

    def _is_slow(self, seconds: float, began_at: float) -> bool:
        if self._usual is None:
            self._usual = self._recent = seconds
        if began_at < self._lowered_at:
            return False
        seconds = min(seconds, LONGEST * self._usual)
        self._usual += (seconds - self._usual) * USUALLY
        self._recent += (seconds - self._recent) * LATELY
        return self._recent > SLOW * self._usual
