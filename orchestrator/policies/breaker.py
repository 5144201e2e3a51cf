"""The circuit breaker: pybreaker's state machine, fed after each attempt.

States and moves:

    closed --(failure_threshold failures in a row, or failure_rate of a window's)--> open
    open --(open_for seconds)--> half-open --(a probe succeeds)--> closed
                                     └─────(a probe fails)───────> open, for twice as long

The open time doubles from `open_for` to `max_open_for` each time that it opens again; it is back at
`open_for` once the breaker has been closed for as long as it was open last.

pybreaker's own ways to guard a call (`call`, `calling`, the decorator) are not used around an
attempt: they take a coroutine that fails for a success, a cancel for a failure, hold a lock while
the call runs and let any number of calls through when half-open. So the machine only keeps the
state; outcomes are replayed into it, and this file adds what it lacks:

    * An era number: every change of state begins a new era, and the outcome of an attempt that
      began in an older one changes nothing.
    * A counted number of probes; a probe's place is given back on every way out.
    * A cancel, a 4xx and every local error are no verdict.
    * Time is the loop's clock, which no one can step back (pybreaker reads the wall clock).
    * A window over failures: one that fails two of three for ever never fails ten in a row.
    * An operator's word, which goes before all that was counted until it is taken back.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Literal, NoReturn

import pybreaker
from typing_extensions import override

from orchestrator.errors import CircuitOpenError, OrchestratorError
from orchestrator.points import Passage, Point, Points

Forced = Literal["open", "closed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """When too many of the attempts fail, though not in a row."""

    share: float = 0.6
    """Of the attempts in the window, above 0 and up to 1."""
    window: float = 60.0
    """Seconds."""
    min_calls: int = 4
    """Attempts in the window below which no share is worth anything."""


class _Tally:
    """Outcomes of the last window, in ten cells, so that a step costs the same however many."""

    __slots__ = ("_cell", "_cells", "_newest", "_rate")

    CELLS = 10

    def __init__(self, rate: FailureRate) -> None:
        self._rate = rate
        self._cell = rate.window / self.CELLS
        self._cells = [[0, 0] for _ in range(self.CELLS)]
        self._newest = 0

    def note(self, now: float, *, failed: bool) -> bool:
        """Counts an outcome; True if too many have failed."""
        newest = int(now / self._cell)
        for cell in range(max(self._newest + 1, newest - self.CELLS + 1), newest + 1):
            self._cells[cell % self.CELLS] = [0, 0]
        self._newest = max(self._newest, newest)
        place = self._cells[newest % self.CELLS]
        place[0] += 1
        if not failed:
            return False
        place[1] += 1
        calls = sum(cell[0] for cell in self._cells)
        failures = sum(cell[1] for cell in self._cells)
        return calls >= self._rate.min_calls and failures >= self._rate.share * calls

    def clear(self) -> None:
        """A new era begins."""
        self._cells = [[0, 0] for _ in range(self.CELLS)]


class Breaker(pybreaker.CircuitBreakerListener):
    """The breaker of one deployment's upstream.

    Args:
        name: The deployment, for the error's text.
        failure_threshold: Consecutive upstream failures that open it.
        failure_rate: Failures within a window that open it too; None looks at those in a row only.
        open_for: Seconds until the first probe.
        max_open_for: Seconds that it is open at the most, however often it opens again.
        probes: Attempts at once while half-open.
        points: Told of every move, if anybody looks on.
    """

    def __init__(
        self,
        name: str,
        *,
        failure_threshold: int = 10,
        failure_rate: FailureRate | None = None,
        open_for: float = 30.0,
        max_open_for: float = 300.0,
        probes: int = 1,
        points: Points | None = None,
    ) -> None:
        self._name = name
        self._tally = None if failure_rate is None else _Tally(failure_rate)
        self._first_open_for = self._open_for = open_for
        self._max_open_for = max(open_for, max_open_for)
        self._forced: Forced | None = None
        self._opened_before = False
        self._closed_at = 0.0
        self._probes = probes
        self._points = points
        self._era = 0
        self._probing = 0
        self._opened_at = 0.0
        self._last_failure: BaseException | None = None
        self._machine = pybreaker.CircuitBreaker(
            fail_max=failure_threshold, throw_new_error_on_trip=False, listeners=[self]
        )

    def __repr__(self) -> str:
        forced = ", forced" if self._forced else ""
        return f"<Breaker {self._name} {self.state}{forced}, {self._probing} probing>"

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`; what it is forced to be, if it is."""
        return self._forced or self._machine.current_state

    @property
    def forced(self) -> Forced | None:
        """What an operator holds it at; None if it goes by what it counts."""
        return self._forced

    def force(self, state: Forced | None) -> None:
        """Holds it open or closed, whatever is counted, until it is let go with None.

        Once let go it begins anew: closed, with nothing counted.
        """
        self._forced = state
        self._machine.close()  # a new era: outcomes of before count for nothing
        self._open_for = self._first_open_for
        self._opened_before = False

    @override
    def state_change(
        self,
        cb: pybreaker.CircuitBreaker,
        old_state: pybreaker.CircuitBreakerState | None,
        new_state: pybreaker.CircuitBreakerState,
    ) -> None:
        """Called by pybreaker at each move: a new era begins."""
        self._era += 1
        self._probing = 0
        if self._tally is not None:
            self._tally.clear()
        if new_state.name == pybreaker.STATE_OPEN:
            self._opened_at = now = asyncio.get_running_loop().time()
            well = old_state is not None and old_state.name == pybreaker.STATE_CLOSED
            if well and now - self._closed_at >= self._open_for:
                self._open_for = self._first_open_for
            elif self._opened_before:
                self._open_for = min(2 * self._open_for, self._max_open_for)
            self._opened_before = True
        elif new_state.name == pybreaker.STATE_CLOSED:
            self._closed_at = asyncio.get_running_loop().time()
        if self._points is not None:
            passage = Passage(
                point=Point.BREAKER_MOVED, deployment=self._name, state=new_state.name
            )
            self._points(passage)

    def refusal(self, now: float) -> CircuitOpenError | None:
        """Looks without taking anything: why an attempt started now would be refused, or None."""
        if self._forced is not None:
            return self._refuse(None) if self._forced == "open" else None
        state = self._machine.current_state
        if state == pybreaker.STATE_CLOSED:
            return None
        if state == pybreaker.STATE_OPEN:
            wait = self._opened_at + self._open_for - now
            return self._refuse(wait) if wait > 0 else None
        return self._refuse(self._open_for) if self._probing >= self._probes else None

    def shut(self, now: float) -> CircuitOpenError | None:
        """Why nobody is let through for some time yet, or None; a probe that is out shuts nothing.

        Args:
            now: Loop time, seconds.
        """
        return self.refusal(now) if self.state == pybreaker.STATE_OPEN else None

    def admit(self, now: float) -> int:
        """Lets an attempt through and returns its era, to be handed to one of the three verdicts.

        Args:
            now: Loop time, seconds.

        Raises:
            CircuitOpenError: It is open and not due, or half-open with all probes out.
        """
        if self._forced != "open" and self._machine.current_state == pybreaker.STATE_CLOSED:
            return self._era
        if (refusal := self.refusal(now)) is not None:
            raise refusal
        if self._machine.current_state == pybreaker.STATE_OPEN:
            self._machine.half_open()
        self._probing += 1
        return self._era

    def succeeded(self, era: int) -> None:
        """The attempt's answer was whole."""
        if era != self._era:
            return
        self._give_back_probe()
        if self._forced is not None:
            return
        if self._tally is not None:
            self._tally.note(asyncio.get_running_loop().time(), failed=False)
        if self._machine.fail_counter or self._machine.current_state != pybreaker.STATE_CLOSED:
            self._machine.call(_nothing)

    def failed(self, era: int, error: OrchestratorError) -> None:
        """The upstream failed; only errors whose class says `trips_breaker` count."""
        if not error.trips_breaker:
            self.no_verdict(era)
            return
        if era != self._era:
            return
        self._give_back_probe()
        self._last_failure = error
        if self._forced is not None:
            return
        if self._too_many_failed() and self.state == pybreaker.STATE_CLOSED:
            self._machine.open()
            return
        with contextlib.suppress(OrchestratorError):  # replayed for the machine's count only
            self._machine.call(_raise, error)

    def no_verdict(self, era: int) -> None:
        """The attempt says nothing about the upstream: a cancel, a 4xx, a local error."""
        if era == self._era:
            self._give_back_probe()

    def _too_many_failed(self) -> bool:
        if self._tally is None:
            return False
        return self._tally.note(asyncio.get_running_loop().time(), failed=True)

    def _give_back_probe(self) -> None:
        if self._probing:
            self._probing -= 1

    def _refuse(self, wait: float | None) -> CircuitOpenError:
        until = "an operator holds it so" if wait is None else f"next probe in {wait:.1f} s"
        error = CircuitOpenError(
            f"the circuit breaker of {self._name} is {self.state}; {until}", retry_after=wait
        )
        error.__cause__ = self._last_failure
        return error


def _nothing() -> None:
    """A call that succeeds."""


def _raise(error: OrchestratorError) -> NoReturn:
    raise error
