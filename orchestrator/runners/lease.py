"""A deadline on one step of an attempt, re-armed by progress.

A hang is missing progress, never age: the lease runs only while a step runs, so waiting in the
queue or for a permit can't trip it, and a stream may last for ever as long as tokens come. Progress
is a token or a completed step; bytes, keep-alive comments and heartbeats are none. There is one
timer per attempt, which looks at the newest deadline when it fires; a token costs one clock read.

A timer that itself comes late proves that this process was held up, not that the worker was: what
the worker sent meanwhile may lie unread. Then the lease looks once more, after as long again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum

from orchestrator.standing import Standing

LATENESS = 0.1
"""Seconds by which a timer may be late before the process itself is to blame."""
GRACE = 1.0
"""Seconds that are left to a step however long its runner has been silent before: what the runner
sent while this process was held up may lie unread."""


class Step(StrEnum):
    """What an attempt is waiting for."""

    CONNECT = "connect"
    FIRST_STEP = "first_step"
    FIRST_TOKEN = "first_token"
    NEXT_TOKEN = "next_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLimits:
    """Seconds that each step may take without progress."""

    connect: float = 5.0
    first_step: float = 120.0
    """The first step of a model that was just loaded: it may compile, or fetch its weights from a
    disk, and is no measure of the steps that follow."""
    first_token: float = 60.0
    inter_token: float = 20.0

    def of(self, step: Step) -> float:
        """Seconds for that step."""
        match step:
            case Step.CONNECT:
                return self.connect
            case Step.FIRST_STEP:
                return self.first_step
            case Step.FIRST_TOKEN:
                return self.first_token
            case Step.NEXT_TOKEN:
                return self.inter_token


@dataclass(frozen=True, slots=True, eq=False)
class KeyAccess:
    """How a runner comes by one of several keys."""

    read: Callable[[], str] = field(repr=False)
    """The key's text; empty if none was fetched yet."""
    renew: Callable[[str], Awaitable[None]] | None = field(default=None, repr=False)
    """Awaited with a key that was refused, or with none at all, until there is another."""


class Lease:
    """The lease of one attempt; armed and re-armed by the runner, watched by the worker.

    Args:
        limits: Seconds per step.
        on_expired: Called once, on the loop, with this lease, when a step made no progress in time.
        key: What the attempt's permit is for, if the deployment has several keys.
        on_standing: Called with what the provider says of its limits, if anybody wants to know.
    """

    __slots__ = (
        "_budget",
        "_due_at",
        "_limits",
        "_loop",
        "_on_expired",
        "_timer",
        "deadline",
        "key",
        "missed",
        "on_standing",
        "step",
    )

    def __init__(
        self,
        limits: StepLimits,
        on_expired: "Callable[[Lease], None]",
        *,
        key: KeyAccess | None = None,
        on_standing: Callable[[Standing], None] | None = None,
    ) -> None:
        self._limits = limits
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._budget = 0.0
        self._due_at = 0.0
        self.step: Step | None = None
        """The step that runs; None while disarmed."""
        self.deadline = 0.0
        """Loop time, seconds, by which the step must show progress."""
        self.missed: Step | None = None
        """The step that made no progress in time; stays after the runner has disarmed the lease."""
        self.key = key
        """The key to send; None leaves it to the runner."""
        self.on_standing = on_standing
        """Who wants to know what the provider says of its limits; None if nobody does."""

    def __repr__(self) -> str:
        return f"<Lease {self.step or 'disarmed'}, {self._budget:g} s>"

    @property
    def expired(self) -> bool:
        """Whether a step made no progress in time."""
        return self.missed is not None

    @property
    def budget(self) -> float:
        """Seconds that the armed step may take without progress."""
        return self._budget

    def arm(self, step: Step, *, silent_for: float = 0.0) -> None:
        """Starts the clock of a step.

        Args:
            step: What is waited for.
            silent_for: Seconds for which whoever takes the step has owed others a sign already;
                they are taken off its budget, or attempts that give up one after the other would
                never notice that nothing moves.
        """
        self.step = step
        self._budget = self._limits.of(step)
        left = max(self._budget - silent_for, min(self._budget, GRACE))
        self.deadline = self._loop.time() + left
        if self._timer is not None and self._due_at > self.deadline:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._set_timer()

    def progress(self) -> None:
        """A token came or a step was completed: the running step starts anew."""
        self.deadline = self._loop.time() + self._budget

    def disarm(self) -> None:
        """Nothing runs any more; the timer is gone."""
        self.step = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set_timer(self) -> None:
        self._due_at = self.deadline
        self._timer = self._loop.call_at(self.deadline, self._look)

    def _look(self) -> None:
        lateness = self._loop.time() - self._due_at
        self._timer = None
        if self.step is None or self.expired:
            return
        if lateness > LATENESS:
            self.deadline = max(self.deadline, self._loop.time() + min(lateness, self._budget))
        if self._loop.time() < self.deadline:
            self._set_timer()
            return
        self.missed = self.step
        self._on_expired(self)
