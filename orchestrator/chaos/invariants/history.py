"""The journal, indexed once for all checks, and the words that they answer in.

A check reads nothing but the history; what it can't see there it doesn't judge. Times in a journal
are rounded to a microsecond, so limits are compared with that much grace.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from orchestrator.chaos.journal import Event, JournalError, Kind

GRACE = 2e-6
"""Seconds by which two rounded times may be wrong."""
ON_ITS_WAY = 0.02
"""Seconds of real time that a word may take to whom it concerns, or a permitted start to its
provider."""
TURNS = 1e-5
"""The same for a word in simulated time, where it takes a few turns of the loop at one instant; a
loop that spins moves its clock by a microsecond a turn."""
PER_TOKEN = frozenset({Kind.STEP, Kind.TOKEN, Kind.READ})
SAMPLES = frozenset({Kind.QUEUE_DEPTH, Kind.READY})


@dataclass(frozen=True, slots=True)
class Violation:
    """One place where an invariant didn't hold."""

    id: str
    """`I1` to `I32`."""
    request: str | None
    """Whose; None if it concerns no single request."""
    text: str
    """When and what, for people."""
    by_time: bool = False
    """Whether only something came too late, which proves nothing where there was no core for it."""


class History:
    """One run's events by kind and by request, each in the order of the journal.

    Args:
        events: The whole journal, oldest first; a run that is still going on can't be judged.
    """

    def __init__(self, events: Iterable[Event]) -> None:
        self.events: Sequence[Event] = list(events)
        self.milestones: list[Event] = []
        """The events without samples and what happens for every token, which are most of them."""
        self.requests: dict[str, list[Event]] = {}
        """Every request's own events."""
        self.deployments: dict[str, Event] = {}
        """The settings of each deployment."""
        self._kinds: dict[Kind, list[Event]] = {kind: [] for kind in Kind}
        for event in self.events:
            self._kinds[event.kind].append(event)
            if event.kind not in PER_TOKEN and event.kind not in SAMPLES:
                self.milestones.append(event)
            if event.request is not None:
                self.requests.setdefault(event.request, []).append(event)
        for event in self.of(Kind.DEPLOYMENT):
            self.deployments[event.deployment] = event
        run = first(self.of(Kind.RUN), Kind.RUN)
        self._grid = run.number("grid") if run is not None and "grid" in run.value else None

    def __repr__(self) -> str:
        return f"<History, {len(self.events)} events of {len(self.requests)} requests>"

    def of(self, kind: Kind) -> Sequence[Event]:
        """All events of one kind."""
        return self._kinds[kind]

    def on_its_way(self, since: float, until: float) -> float:
        """Seconds that a word sent at `since` may have been on its way, seen from `until`.

        Raises:
            JournalError: Time was stretched by an unknown number of seconds.
        """
        if self._grid is None:
            return ON_ITS_WAY
        return TURNS + self._stretched(since, until)

    def lateness(self, allowed: float, since: float, until: float) -> float:
        """Seconds by which what falls due between the two may come late.

        Simulated timers are exact: only the grid and a step that takes time put them off.

        Args:
            allowed: Of it in real time.
            since: When the wait began.
            until: When it was over.

        Raises:
            JournalError: Time was stretched by an unknown number of seconds.
        """
        if self._grid is None:
            return allowed + GRACE
        return GRACE + TURNS + self._grid + self._stretched(since, until)

    @property
    def spread(self) -> float:
        """Seconds by which two permitted starts may come closer together on their way.

        In simulated time all take as long, but for a timer that is put off to the next line of the
        grid, and for the steps that take time themselves, which may hold up one and not the other.

        Raises:
            JournalError: Time was stretched by an unknown number of seconds.
        """
        if self._grid is None:
            return 2 * ON_ITS_WAY
        return TURNS + self._grid + self._stretched(-math.inf, math.inf)

    def _stretched(self, since: float, until: float) -> float:
        stretches = self.of(Kind.STRETCHED)
        return sum(event.number("seconds") for event in stretches if since <= event.t <= until)

    def key_of(self, event: Event) -> tuple[str, float]:
        """The account and the number of the key that an event is about.

        Raises:
            JournalError: Either isn't what it should be.
        """
        settings = self.deployments.get(event.deployment)
        account = (
            event.deployment if settings is None else settings.text("account", event.deployment)
        )
        return account, event.number("key", 0)

    def settings(self, deployment: str) -> Event:
        """A deployment's settings.

        Raises:
            JournalError: The journal has no `deployment` event for it.
        """
        if deployment not in self.deployments:
            raise JournalError(f"the journal has no settings of deployment {deployment!r}")
        return self.deployments[deployment]


Check = Callable[[History], list[Violation]]


def request_of(event: Event) -> str:
    """The request that an event of its kind must name.

    Raises:
        JournalError: It names none.
    """
    if event.request is None:
        raise JournalError(f"{event.kind} at {event.t} s names no request")
    return event.request


def worker_of(event: Event) -> str:
    """The worker that an event of its kind must name.

    Raises:
        JournalError: It names none.
    """
    if event.worker is None:
        raise JournalError(f"{event.kind} at {event.t} s names no worker")
    return event.worker


def first(events: Iterable[Event], *kinds: Kind) -> Event | None:
    """The first event of one of these kinds, or None."""
    return next((event for event in events if event.kind in kinds), None)
