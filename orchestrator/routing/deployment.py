"""What routing knows of a deployment."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from orchestrator.inflight import Inflight
from orchestrator.request import PriorityRequest
from orchestrator.routing.latency import Latency
from orchestrator.runners.base import uncounted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Deployment:
    """One that a route may send requests to."""

    name: str
    inflight: Inflight
    inspect: Callable[[PriorityRequest], Awaitable[None] | None]
    """Refuses, by raising a `RequestError`, what this deployment can never serve."""
    ready: Callable[[], bool]
    """Whether a request sent now would be served; never false because of load."""
    count: Callable[[PriorityRequest], Awaitable[int | None]] = uncounted
    """Counts the tokens of a request's prompt; None where only its provider could."""
    healthy: Callable[[], bool]
    """Whether it is ready and its breaker would let an attempt through."""
    context: int | None = None
    """Tokens that prompt and answer may have together; None is unknown."""
    resumes: str | None = None
    """What deployments have in common that go on with each other's answers exactly; None can't."""
    prefill: bool = False
    """Whether it goes on with a text that it is given as the beginning of its own turn."""
    latency: Latency = field(default_factory=Latency)

    @property
    def load(self) -> float:
        """Requests that wait or run, per slot."""
        return len(self.inflight) / max(1, self.inflight.slots)
