"""The circuit breaker: pybreaker's state machine, fed after each attempt.

States and moves:

    closed --(failure_threshold consecutive upstream failures)--> open
    open --(open_for seconds)--> half-open --(a probe succeeds)--> closed
                                     └─────(a probe fails)───────> open

pybreaker's own ways to guard a call (`call`, `calling`, the decorator) are not used around an
attempt: they take a coroutine that fails for a success, a cancel for a failure, hold a lock while
the call runs and let any number of calls through when half-open. So the machine only keeps the
state; outcomes are replayed into it, and this file adds what it lacks:

    * An era number: every change of state begins a new era, and the outcome of an attempt that
      began in an older one changes nothing.
    * A counted number of probes; a probe's place is given back on every way out.
    * A cancel, a 4xx and every local error are no verdict.
    * Time is the loop's clock, which no one can step back (pybreaker reads the wall clock).
"""

import asyncio
import contextlib
from typing import NoReturn

import pybreaker
from typing_extensions import override

from orchestrator.errors import CircuitOpenError, OrchestratorError
from orchestrator.points import Passage, Point, Points


class Breaker(pybreaker.CircuitBreakerListener):
    """The breaker of one deployment's upstream.

    Args:
        name: The deployment, for the error's text.
        failure_threshold: Consecutive upstream failures that open it.
        open_for: Seconds until the first probe.
        probes: Attempts at once while half-open.
        points: Told of every move, if anybody looks on.
    """

    def __init__(
        self,
        name: str,
        *,
        failure_threshold: int = 10,
        open_for: float = 30.0,
        probes: int = 1,
        points: Points | None = None,
    ) -> None:
        self._name = name
        self._open_for = open_for
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
        return f"<Breaker {self._name} {self.state}, {self._probing} probing>"

    @property
    def state(self) -> str:
        """`closed`, `open` or `half-open`."""
        return self._machine.current_state

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
        if new_state.name == pybreaker.STATE_OPEN:
            self._opened_at = asyncio.get_running_loop().time()
        if self._points is not None:
            passage = Passage(
                point=Point.BREAKER_MOVED, deployment=self._name, state=new_state.name
            )
            self._points(passage)

    def refusal(self, now: float) -> CircuitOpenError | None:
        """Looks without taking anything: why an attempt started now would be refused, or None."""
        state = self._machine.current_state
        if state == pybreaker.STATE_CLOSED:
            return None
        if state == pybreaker.STATE_OPEN:
            wait = self._opened_at + self._open_for - now
            return self._refuse(wait) if wait > 0 else None
        return self._refuse(self._open_for) if self._probing >= self._probes else None

    def admit(self, now: float) -> int:
        """Lets an attempt through and returns its era, to be handed to one of the three verdicts.

        Args:
            now: Loop time, seconds.

        Raises:
            CircuitOpenError: It is open and not due, or half-open with all probes out.
        """
        if self._machine.current_state == pybreaker.STATE_CLOSED:
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
        with contextlib.suppress(OrchestratorError):  # replayed for the machine's count only
            self._machine.call(_raise, error)

    def no_verdict(self, era: int) -> None:
        """The attempt says nothing about the upstream: a cancel, a 4xx, a local error."""
        if era == self._era:
            self._give_back_probe()

    def _give_back_probe(self) -> None:
        if self._probing:
            self._probing -= 1

    def _refuse(self, wait: float) -> CircuitOpenError:
        error = CircuitOpenError(
            f"the circuit breaker of {self._name} is {self.state}; next probe in {wait:.1f} s",
            retry_after=wait,
        )
        error.__cause__ = self._last_failure
        return error


def _nothing() -> None:
    """A call that succeeds."""


def _raise(error: OrchestratorError) -> NoReturn:
    raise error
