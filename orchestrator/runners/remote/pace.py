"""Long work on the loop, in pieces with rests, in which others have their turns.

Coders of JSON can't be interrupted and keep the interpreter's lock, so no thread helps. A rest is
longer than the work before it, so that whoever comes meanwhile rarely has to wait for a piece.
"""

import asyncio
from collections.abc import Callable, Generator
from time import perf_counter
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work in short steps; its value is what comes of it."""

PIECE_BYTES = 64 << 10
"""Of text, also the characters of one; what is encoded, decoded or sent at once."""
WORK_SECONDS = 0.0005
REST_SECONDS = 0.001


class Pace:
    """The pace of one piece of work; begins with it."""

    __slots__ = ("_rested_at",)

    def __init__(self) -> None:
        self._rested_at = perf_counter()

    async def rest(self) -> None:
        """Rests if enough was done since the last rest."""
        if perf_counter() - self._rested_at >= WORK_SECONDS:
            await asyncio.sleep(REST_SECONDS)
            self._rested_at = perf_counter()


def at_once(steps: Steps[T]) -> T:
    """Does all of some work now."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


async def at_leisure(steps: Steps[T], pace: Pace | None = None) -> T:
    """Does some work with rests.

    Args:
        steps: The work.
        pace: That of the work before it, so that the two don't become one long step.
    """
    pace = pace or Pace()
    while True:
        await pace.rest()
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def in_one_step(work: Callable[P, T]) -> Callable[P, Steps[T]]:
    """Makes steps of work that is never long."""

    def steps(*args: P.args, **kwargs: P.kwargs) -> Steps[T]:
        yield
        return work(*args, **kwargs)

    return steps
