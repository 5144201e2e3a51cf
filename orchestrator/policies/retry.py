"""Whether and when a failed attempt may be followed by another.

A retry is load that nobody asked for, and it comes when the upstream is weakest: three tries each
turn an outage of a provider at its limit into three times its limit, and keep it down. So besides
the number of tries and the deadline of one request there is a budget over all of them: in any ten
seconds at most a fifth of the accepted requests, plus a small floor, may be tried again (the shape
is Finagle's; the figures are DESIGN.md's). A retry that the budget refuses fails at once; it is
never queued. After a timeout it costs twice as much, for an upstream that is that slow has its work
still to do; where nothing reached an upstream it costs nothing.

The delay is tenacity's exponential with full jitter; a hint of the server (`Retry-After`) makes it
longer, never shorter, and a hint that doesn't fit into the cap or the request's deadline means that
there is no retry here at all. tenacity's objects are only asked after a failure: its loops keep
state that concurrent requests would share, and cost 20 us even when nothing fails.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import tenacity

from orchestrator.errors import OrchestratorError

BUDGET_WINDOW = 10.0
BUDGET_SHARE = 0.2
BUDGET_FLOOR = 10
MIN_DELAY = 0.001


class RetryBudget:
    """Bounds retries over all requests of a deployment.

    Args:
        share: Retries per accepted request.
        floor: Retries that are always allowed in a window.
        window: Seconds.
    """

    def __init__(
        self,
        *,
        share: float = BUDGET_SHARE,
        floor: int = BUDGET_FLOOR,
        window: float = BUDGET_WINDOW,
    ) -> None:
        self._share = share
        self._floor = floor
        self._window = window
        self._accepted: deque[list[float]] = deque()  # [second, how many]: one entry per second
        self._accepted_in_window = 0
        self._spent: deque[tuple[float, int]] = deque()
        self._spent_in_window = 0

    def accepted(self, now: float) -> None:
        """A request was accepted (loop time, seconds)."""
        second = now // 1.0
        if self._accepted and self._accepted[-1][0] == second:
            self._accepted[-1][1] += 1
        else:
            self._accepted.append([second, 1])
            self._forget(now)
        self._accepted_in_window += 1

    def spend(self, now: float, cost: int = 1) -> bool:
        """Takes the right to one retry, or says that there is none left.

        Args:
            now: Loop time, seconds.
            cost: Of a retry after what failed; at least 1.
        """
        self._forget(now)
        while self._spent and self._spent[0][0] <= now - self._window:
            self._spent_in_window -= self._spent.popleft()[1]
        if self._spent_in_window + cost > self._share * self._accepted_in_window + self._floor:
            return False
        self._spent.append((now, cost))
        self._spent_in_window += cost
        return True

    def _forget(self, now: float) -> None:
        while self._accepted and self._accepted[0][0] < now - self._window:
            self._accepted_in_window -= int(self._accepted.popleft()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrySettings:
    """One deployment's retries."""

    max_attempts: int = 3
    """Attempts in all, the first included."""
    initial_backoff: float = 0.2
    """Seconds; doubled per attempt, then multiplied by a random number from 0 to 1."""
    max_backoff: float = 10.0
    """Seconds; also the longest `Retry-After` that is waited for."""
    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    """Attempts in all by the code of what failed, in place of `max_attempts`."""


class RetryPolicy:
    """Decides about one deployment's retries."""

    def __init__(self, settings: RetrySettings, budget: RetryBudget) -> None:
        self.budget = budget
        self._settings = settings
        self._stop = tenacity.stop_after_attempt(settings.max_attempts)
        self._wait = tenacity.wait_random_exponential(
            multiplier=settings.initial_backoff, max=settings.max_backoff
        )
        self._machinery = tenacity.AsyncRetrying()

    @property
    def longest_wait(self) -> float:
        """Seconds beyond which a hint of the server is not waited for."""
        return self._settings.max_backoff

    def next_try(
        self,
        error: OrchestratorError,
        *,
        attempts: int,
        now: float,
        deadline: float,
        other_key: bool = False,
    ) -> float | None:
        """Says when the request may be tried again.

        Args:
            error: What the last attempt failed with.
            attempts: Attempts made at this deployment.
            now: Loop time, seconds.
            deadline: The request's deadline, loop time, seconds.
            other_key: The provider blamed the key, and there is another that doesn't rest: it is
                tried at once, however long the one that was refused has to. Of tries there are no
                more than keys, for a refused one rests.

        Returns:
            Loop time, seconds, before which it must not start; None if there is no retry.
        """
        if other_key:
            return now if self.budget.spend(now) else None
        if not error.retryable:
            return None
        state = tenacity.RetryCallState(self._machinery, fn=None, args=(), kwargs={})
        state.attempt_number = attempts
        most = self._settings.attempts.get(error.code)
        if self._stop(state) if most is None else attempts >= most:
            return None
        delay = max(self._wait(state), MIN_DELAY)
        if error.retry_after is not None:
            if error.retry_after > self._settings.max_backoff:
                return None
            delay = max(delay, error.retry_after)
        if now + delay >= deadline:
            return None
        if error.retry_cost and not self.budget.spend(now, error.retry_cost):
            return None
        return now + delay
