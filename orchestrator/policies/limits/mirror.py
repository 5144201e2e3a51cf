"""What a provider says is left of a limit, kept as it would keep it until it says more.

An answer tells what was left when its request was counted. What has been sent since isn't in that
number, nor is what was still on its way, so both are taken off; and of two views the more careful
one counts, for answers overtake each other. A provider that is wrong must not stop its own traffic
for ever: whatever it says, something is sent once a minute, whose answer may say more, and what is
ten minutes old is forgotten but for the limit.
"""

from orchestrator.policies.limits.window import SPAN_SECONDS
from orchestrator.standing import Allowance

LONGEST_BELIEF = 600.0
"""Seconds after which a provider that says nothing more is taken to have all of it again."""
SHORTEST_RESET = 0.001


class Mirror:
    """One limit of one key, as its provider tells it.

    Args:
        told: By the first answer.
        unheard: What was sent and not answered yet, that answer's own request not included.
        now: Loop time, seconds.
    """

    __slots__ = ("_at", "_left", "_look_at", "_rate", "_until", "empty_until", "limit")

    def __init__(self, told: Allowance, unheard: float, now: float) -> None:
        self.limit = 0.0
        """What the provider allows in all."""
        self.empty_until = 0.0
        """Loop time, seconds, at which all is there again, if nothing was left; 0 if some was."""
        self._believe(told, now)
        self._left = min(told.remaining - unheard, self.limit)

    def __repr__(self) -> str:
        return f"<Mirror, {self._left:g} of {self.limit:g} left>"

    def hear(self, told: Allowance, unheard: float, now: float) -> None:
        """Another answer, as in the constructor."""
        left, limit = self._left_at(now), self.limit
        self._believe(told, now)
        self._left = min(told.remaining - unheard, self.limit)
        if self.limit == limit:  # else what was thought before has lost its measure
            self._left = min(self._left, left)

    def has_room(self, amount: float, now: float) -> bool:
        """Whether the amount is left (loop time, seconds)."""
        return now >= self._look_at or self._left_at(now) >= min(amount, self.limit)

    def take(self, amount: float, now: float) -> None:
        """Takes off what is sent."""
        self._left = self._left_at(now) - amount
        if now >= self._look_at:
            self._look_at = now + SPAN_SECONDS

    def give_back(self, amount: float) -> None:
        """What was taken off wasn't sent."""
        self._left = min(self._left + amount, self.limit)

    def ready_at(self, amount: float, now: float) -> float:
        """Loop time, seconds, at which the amount is left if nobody else takes any."""
        lacking = min(amount, self.limit) - self._left_at(now)
        return now if lacking <= 0 else max(now, min(now + lacking / self._rate, self._look_at))

    def _believe(self, told: Allowance, now: float) -> None:
        limit, reset = told.limit, told.reset_after
        # a provider that doesn't tell its limit allows what it has left, at the least
        self.limit = limit if limit is not None and limit >= 1 else max(1.0, told.remaining)
        missing = self.limit - told.remaining
        self._rate = self.limit / SPAN_SECONDS
        if missing > 0 and reset is not None:
            self._rate = missing / min(max(reset, SHORTEST_RESET), LONGEST_BELIEF)
        self.empty_until = now + reset if told.remaining < 1 and reset is not None else 0.0
        self._at = now
        self._look_at = now + SPAN_SECONDS
        self._until = now + LONGEST_BELIEF

    def _left_at(self, now: float) -> float:
        """What is left now; brings the books up to now."""
        if now >= self._until:
            self._left, self._rate = self.limit, self.limit / SPAN_SECONDS
            self._until = now + LONGEST_BELIEF
        else:
            self._left = min(self.limit, self._left + self._rate * (now - self._at))
        self._at = max(self._at, now)
        return self._left
