"""How long a deployment takes to its first token: a moving average that believes bad news at once.

Peak-EWMA, as Finagle has it: a sample above the average becomes the average, one below it pulls it
down, the more the longer ago the last one came. So one stall sends the traffic elsewhere at once,
and a deployment that was slow once is asked again after a while.
"""

import math

DECAY_SECONDS = 10.0
"""Seconds in which the weight of what is known falls to 1/e."""


class Latency:
    """Of one deployment, to the first token or to the failure."""

    __slots__ = ("_at", "_seconds")

    def __init__(self) -> None:
        self._seconds = 0.0
        self._at = -math.inf

    def __repr__(self) -> str:
        return f"<Latency {self._seconds:g} s>"

    def observe(self, seconds: float, now: float) -> None:
        """An attempt took so long (loop time `now`, seconds)."""
        if seconds >= self._seconds:
            self._seconds = seconds
        else:
            known = math.exp((self._at - now) / DECAY_SECONDS)
            self._seconds = self._seconds * known + seconds * (1.0 - known)
        self._at = now

    def cost(self, load: float) -> float:
        """What a request sent now may expect, given the requests per slot that are there already.

        One that was never asked costs nothing, so it is asked.
        """
        return self._seconds * (1.0 + load)
