"""When a second deployment is asked although the first one has not failed.

A tail of slow first tokens is cut if a second deployment is asked as soon as the first one takes
longer than it usually does; the first token wins and the loser is canceled (Dean and Barroso, "The
Tail at Scale", 2013). The danger is an outage: when everything is slow, everything would be asked
twice. So hedges have a budget of their own, a share of the requests of the route, and there are
none while a deployment of the route is not healthy or the second one has no idle slot.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import metrics
from orchestrator.routing.deployment import Deployment

SAMPLES = 200
"""First tokens that a percentile is taken of."""
FEWEST_SAMPLES = 20
MOST_SAVED = 10.0
"""Hedges that a route may save up while it needs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeSettings:
    """See the file; either a percentile or a number of seconds."""

    percentile: float | None = None
    """0 to 1, of the times to the first token of this route."""
    seconds: float = 0.0
    share: float = 0.05
    """Hedges per request."""


class Hedging:
    """One route's hedges: the delay before one, and the right to one.

    Args:
        settings: The route's.
        deployments: All of the route.
        route: Its name, for the metric.
    """

    def __init__(
        self, settings: HedgeSettings, deployments: Sequence[Deployment], route: str
    ) -> None:
        self._meters = metrics.for_route(route)
        self._settings = settings
        self.deployments = deployments
        """All of the route; a reload brings others."""
        self._saved = 1.0
        self._sorted: list[float] = []
        self._newest: deque[float] = deque()

    def __repr__(self) -> str:
        return f"<Hedging, {self._saved:.2f} saved, {len(self._newest)} samples>"

    def delay(self) -> float | None:
        """Seconds without a first token after which to hedge; None while too little is known.

        Called once for each request, which saves its share of a hedge.
        """
        self._saved = min(MOST_SAVED, self._saved + self._settings.share)
        if self._settings.percentile is None:
            return self._settings.seconds
        if len(self._sorted) < FEWEST_SAMPLES:
            return None
        return self._sorted[int(self._settings.percentile * (len(self._sorted) - 1))]

    def observe(self, seconds: float) -> None:
        """A first token took so long."""
        if self._settings.percentile is None:
            return
        insort(self._sorted, seconds)
        self._newest.append(seconds)
        if len(self._newest) > SAMPLES:
            oldest = self._newest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]

    def choose(self, ahead: Sequence[Deployment]) -> Deployment | None:
        """Who may be asked as well; None in a partial outage, or if nobody has an idle slot."""
        if not all(deployment.healthy() for deployment in self.deployments):
            return None
        return next((deployment for deployment in ahead if deployment.load < 1.0), None)

    def spend(self) -> bool:
        """Takes the right to one hedge, or says that there is none left."""
        if self._saved < 1.0:
            return False
        self._saved -= 1.0
        self._meters.hedge("started")
        return True

    def won(self) -> None:
        """The second deployment was the faster one."""
        self._meters.hedge("won")
