"""What routing knows of a deployment, and of a route over some of them."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from orchestrator.inflight import Inflight
from orchestrator.request import PriorityRequest


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deployment:
    """What routing knows of a deployment."""

    name: str
    inflight: Inflight
    inspect: Callable[[PriorityRequest], Awaitable[None] | None]
    """Refuses, by raising a `RequestError`, what this deployment can never serve."""
    ready: Callable[[], bool]
    """Whether a request sent now would be served; never false because of load."""


@dataclass(frozen=True, slots=True)
class Route:
    """A public model name."""

    name: str
    deployments: Sequence[Deployment]
    timeout: float = 600.0
    """Seconds that a request has, if it doesn't say so itself."""

    @property
    def ready(self) -> bool:
        """Whether at least one deployment can serve."""
        return any(deployment.ready() for deployment in self.deployments)
