"""How fast attempts follow one another: aiolimiter's leaky bucket, asked and never waited in.

aiolimiter would order its own waiters by size, so that a large request starves behind small ones;
waiting happens in the engine's queue. `tests/policies/limits/test_pace.py` fails if an upgrade
changes the arithmetic that is used here.
"""

from aiolimiter import AsyncLimiter

from orchestrator.policies.limits.window import SPAN_SECONDS

BURST_SHARE = 0.1
"""Of a minute's requests, how many may start at once; some providers count by the second."""


class Pace(AsyncLimiter):
    """So many starts per minute, evenly but for a small burst.

    Args:
        per_minute: Starts.
        burst: Starts at once; at least 1.
    """

    def __init__(self, per_minute: float, burst: float) -> None:
        super().__init__(burst, burst * SPAN_SECONDS / per_minute)

    def count(self, starts: int) -> None:
        """Counts starts, or gives them back (negative)."""
        self._leak()
        self._level = max(0.0, self._level + starts)

    def ready_in(self) -> float:
        """Seconds until the next start, if nobody else starts any."""
        self._leak()
        return max(0.0, (self._level + 1.0 - self.max_rate) / self._rate_per_sec)

    def change(self, per_minute: float) -> None:
        """From now on another rate; what has started counts on."""
        self._leak()
        self._rate_per_sec = per_minute / SPAN_SECONDS


class Throttle:
    """The rate of a key that was told to slow down: halved at once, won back step by step.

    Args:
        base: Starts per minute that it had; one that has won them all back is no longer needed.
        now: Loop time, seconds.
    """

    __slots__ = ("_base", "_changed_at", "_pace", "lowered_at", "per_minute")

    SHARE = 0.5
    """Of the rate, what is left after a refusal."""
    STEP_SHARE = 0.02
    """Of the base, what is won back at a time."""
    STEP_SECONDS = 1.0
    """Between two steps."""

    def __init__(self, base: float, now: float) -> None:
        self._base = max(base, 1.0)
        self._pace = Pace(self._base, 1.0)
        self._changed_at = now
        self.per_minute = self._base
        """Starts per minute now."""
        self.lowered_at = now
        """Loop time, seconds; the refusal of what began before says nothing of a lower rate."""
        self.lower(now)

    def __repr__(self) -> str:
        return f"<Throttle at {self.per_minute:g} of {self._base:g} per minute>"

    @property
    def changed_at(self) -> float:
        """Loop time, seconds; the success of what began before says nothing of a higher rate."""
        return self._changed_at

    def lower(self, now: float) -> None:
        """The key was refused at this rate."""
        self.lowered_at = now
        self._set(max(1.0, self.per_minute * self.SHARE), now)

    def recover(self, now: float) -> bool:
        """The key was accepted at this rate; True if the base has been reached."""
        if now - self._changed_at >= self.STEP_SECONDS:
            self._set(min(self._base, self.per_minute + self._base * self.STEP_SHARE), now)
        return self.per_minute >= self._base

    def ready_in(self) -> float:
        """Seconds until the next start."""
        return self._pace.ready_in()

    def count(self, starts: int) -> None:
        """Counts starts, or gives them back (negative)."""
        self._pace.count(starts)

    def _set(self, per_minute: float, now: float) -> None:
        self.per_minute = per_minute
        self._changed_at = now
        self._pace.change(per_minute)
