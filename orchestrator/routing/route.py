"""A public model name: deployments, and how one of them is chosen and followed by another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from orchestrator.routing.deployment import Deployment
from orchestrator.routing.hedging import HedgeSettings, Hedging
from orchestrator.routing.rules import NO_RULES, Rules

Strategy = Literal["failover", "weighted", "least_busy", "latency"]
Midstream = Literal["resume", "continue", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutePolicy:
    """How a route chooses among its deployments, and what it does when one fails."""

    strategy: Strategy = "failover"
    weights: Mapping[str, float] = field(default_factory=dict[str, float])
    """For `weighted`, by deployment; one that isn't named has 1."""
    max_attempts: int | None = None
    """Attempts of one request over all deployments; None is no bound of the route's own."""
    rules: Rules = NO_RULES
    hedge: HedgeSettings | None = None
    midstream: Midstream = "resume"
    """What follows a break after delivery: `resume` goes on exactly where a runner can, `continue`
    also as a text at a deployment that can be prefilled, `error` never."""

    @property
    def measures(self) -> bool:
        """Whether it wants to know how long first tokens take."""
        return self.strategy == "latency"


@dataclass(frozen=True, slots=True)
class Route:
    """A public model name."""

    name: str
    deployments: Sequence[Deployment]
    timeout: float = 600.0
    """Seconds that a request has, if it doesn't say so itself."""
    policy: RoutePolicy = field(default_factory=RoutePolicy)
    hedging: Hedging | None = None

    @property
    def ready(self) -> bool:
        """Whether at least one deployment can serve."""
        return any(deployment.ready() for deployment in self.deployments)
