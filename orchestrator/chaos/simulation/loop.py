"""An event loop whose time is a number: it jumps to the next timer and never waits.

It runs production code unchanged, so whatever that code could do to escape the simulation is an
error of the run instead:

    1. Nothing is ready and no timer is set: `DeadlockError`, with what each task waits for.
    2. More than 200,000 turns at one instant: `LivelockError`.
    3. A thread, an executor or a blocking sleep: `ThreadUsedError`.
    4. An exception that nobody retrieved: `UnhandledError`.

These errors are sticky. Code under test may swallow what is raised into it (an executor logs and
forgets), so the first one is kept and raised out of the loop at its next turn.

The loop leans on names of `asyncio.BaseEventLoop` that its type stubs don't show; they are declared
in `SimLoop`, and tests/chaos/simulation/test_loop.py fails if one of them moves.
"""

import asyncio
import heapq
import math
import random
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from contextvars import Context
from typing import NoReturn, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

INSTANT = 1e-9
"""Seconds within which two timers count as due together."""
PATIENT_TURNS = 200
MAX_TURNS = 200_000
CREEP = 1e-6
"""Seconds that time moves per turn once the loop spins; aiolimiter re-arms its waker at `now` over
a rounding error of 1e-16 and would never get on in frozen time (A9)."""
SHOWN_TASKS = 10


class SimulationError(Exception):
    """The run can't go on; says nothing about the invariants."""


class DeadlockError(SimulationError):
    """Every task waits for something that nothing can bring about any more."""


class LivelockError(SimulationError):
    """The loop turns without time passing."""


class ThreadUsedError(SimulationError):
    """Something left the simulated loop for a thread or for real time."""


class UnhandledError(SimulationError):
    """A task or callback failed and nobody looked; the failure is the cause."""


class _Timer(asyncio.TimerHandle):
    """A timer that may be taken off the heap by another than the base class."""

    __slots__ = ()

    _scheduled: bool

    def enter(self) -> None:
        """Notes that the timer is on the heap, which a later cancel must know."""
        self._scheduled = True

    def leave(self) -> None:
        """Notes that it is not there any more."""
        self._scheduled = False


class SimLoop(asyncio.BaseEventLoop):
    """Virtual time on one thread.

    Args:
        seed: Of the shuffle.
        shuffle: Whether what is ready runs in a random order instead of first come, first served.
        grid: Seconds; timers fire at the next multiple of it, so that there is something to
            shuffle. 0 leaves them where they are. A timer may fire late, but never early.
    """

    _clock_resolution: float
    _ready: deque[asyncio.Handle]
    _scheduled: list[_Timer]
    _selector: "SimLoop"

    def __init__(self, seed: int = 0, *, shuffle: bool = False, grid: float = 0.0) -> None:
        super().__init__()
        self._clock_resolution = 0.0  # what is due is taken off the heap in select(), shuffled
        self._selector = self
        self._thread = threading.get_ident()
        self._chance = random.Random(seed)
        self._shuffle = shuffle
        self._grid = grid
        self._now = 0.0
        self._spins = 0
        self._verdict: SimulationError | None = None
        self._lenient = False
        self.turns = 0
        """Turns of the loop so far."""
        self.set_exception_handler(_report)

    def __repr__(self) -> str:
        return f"<SimLoop at {self._now:.6f} s, turn {self.turns}>"

    @property
    def verdict(self) -> SimulationError | None:
        """The error that ended the run, if one did."""
        return self._verdict

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def fail(self, error: SimulationError) -> SimulationError:
        """Ends the run at the next turn, whatever becomes of an exception raised here and now.

        Args:
            error: Why; only the first one counts.

        Returns:
            The same error, to raise at once where that is possible.
        """
        if self._verdict is None and not self._lenient:
            self._verdict = error
        return error

    def pardon(self) -> None:
        """Forgets the verdict and takes no other, so that what is left can be cleared away."""
        self._verdict = None
        self._lenient = True
        self._spins = 0

    def stretch(self, seconds: float) -> None:
        """Lets time pass within the step that runs, as a slow machine does."""
        self._now += seconds

    def on_this_thread(self) -> bool:
        """Whether the caller runs on the loop's own thread."""
        return threading.get_ident() == self._thread

    def waiting(self) -> str:
        """Says for people which tasks there are and where each of them waits."""
        tasks = sorted(asyncio.all_tasks(self), key=lambda task: task.get_name())
        places = [_place(task) for task in tasks[:SHOWN_TASKS]]
        more = f" and {len(tasks) - SHOWN_TASKS} more" if len(tasks) > SHOWN_TASKS else ""
        return f"{len(tasks)} tasks: {', '.join(places)}{more}"

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Sets a timer, on the grid if there is one.

        Raises:
            RuntimeError: The loop is closed.
        """
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = _Timer(self._on_grid(when), callback, args, self, context)
        heapq.heappush(self._scheduled, timer)
        timer.enter()
        return timer

    def run_in_executor(
        self,
        executor: Executor | None,  # noqa: ARG002 - asyncio calls it by this name
        func: Callable[[*Ts], T],
        *args: *Ts,  # noqa: ARG002 - as above
    ) -> NoReturn:
        """Refuses, because a thread's order can't be replayed.

        Raises:
            ThreadUsedError: Always.
        """
        raise self.fail(ThreadUsedError(f"{func!r} was given to an executor in simulation"))

    def select(self, timeout: float | None) -> Sequence[tuple[object, int]]:
        """Moves time on instead of waiting; the base class takes the loop for its selector.

        Raises:
            SimulationError: The run has failed; a `DeadlockError` or `LivelockError` if just now.
        """
        self.turns += 1
        if self._verdict is not None:
            raise self._verdict
        if timeout is None:
            raise self.fail(DeadlockError(f"nothing can happen any more: {self.waiting()}"))
        if timeout > INSTANT:
            self._now = self._scheduled[0].when()
            self._spins = 0
        else:
            self._spin()
        self._take_due()
        if self._shuffle and len(self._ready) > 1:
            handles = list(self._ready)
            self._chance.shuffle(handles)
            self._ready.clear()
            self._ready.extend(handles)
        return ()

    def _on_grid(self, when: float) -> float:
        if not self._grid or when <= self._now:
            return when
        # 30.000000000000004 steps are 30: a timer that is on the grid already stays there
        return max(when, math.ceil(when / self._grid - 1e-6) * self._grid)

    def _spin(self) -> None:
        self._spins += 1
        if self._spins > PATIENT_TURNS:
            self._now += CREEP
        if self._spins > MAX_TURNS:
            raise self.fail(LivelockError(f"{MAX_TURNS} turns at one instant: {self.waiting()}"))

    def _take_due(self) -> None:
        end = self._now + INSTANT
        while self._scheduled and self._scheduled[0].when() <= end:
            timer = heapq.heappop(self._scheduled)
            timer.leave()
            if not timer.cancelled():
                # never early, not by a rounding error: who looks at the clock again must agree
                self._now = max(self._now, timer.when())
                self._ready.append(timer)

    def _process_events(self, event_list: Sequence[tuple[object, int]]) -> None:
        """There are no sockets, so no events."""

    def _write_to_self(self) -> None:
        # raising here would not do: the callback is queued already, and who queued it swallows
        if not self.on_this_thread():
            self.fail(ThreadUsedError("a thread woke the simulated loop"))

    def _asyncgen_finalizer_hook(self, agen: AsyncGenerator[object, None]) -> None:
        # the collector's hour isn't in the seed; production code closes what it opens
        self.fail(UnhandledError(f"{agen!r} was left to the collector; use contextlib.aclosing"))


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    error = UnhandledError(str(context.get("message")))
    cause = context.get("exception")
    if isinstance(cause, BaseException):
        error.__cause__ = cause
    if isinstance(loop, SimLoop):
        loop.fail(error)


def _place(task: asyncio.Task[object]) -> str:
    frames = task.get_stack(limit=1)
    if not frames:
        return task.get_name()
    frame = frames[0]
    return f"{task.get_name()} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
