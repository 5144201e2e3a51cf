"""What the probes are told; read from the state itself, never through the queue.

`livez` is about this process: it fails only when nothing here can bring a deployment back.
`readyz` is about requests: it answers 200 as long as one route would serve one. One dead model
takes no other out of service, and load alone never makes anything unready. A circuit breaker that
is open does, until its next probe is due.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from pydantic import BaseModel

from orchestrator.deployment import DeploymentHealth
from orchestrator.errors import ModelNotFoundError
from orchestrator.routing.route import Route
from orchestrator.wiring import System

SOON = 1.0
"""Seconds; the advice when nothing says when a deployment will be back."""


class Liveness(BaseModel):
    """The answer of `/livez`."""

    live: bool


class DeploymentState(BaseModel):
    """One deployment on the health page."""

    name: str
    state: str
    ready: bool
    live_slots: int
    slots: int
    generation: int
    breaker: str
    breaker_forced: bool
    queued: int
    inflight: int
    reason: str | None
    fault_id: str | None


class Readiness(BaseModel):
    """The answer of `/readyz`."""

    ready: bool
    deployments: list[DeploymentState]
    routes: dict[str, bool]


def liveness(system: System) -> Liveness:
    """False if every deployment is poisoned and stays down."""
    return Liveness(
        live=not all(
            health.state == "poisoned" and health.retry_after is None for health in system.health()
        )
    )


def readiness(
    system: System, *, route: str | None = None, draining: bool = False
) -> tuple[Readiness, float]:
    """The state of everything, or of one route; and seconds after which to ask again.

    Raises:
        ModelNotFoundError: There is no route of that name.
    """
    routes = system.router.routes
    if route is not None:
        if route not in routes:
            raise ModelNotFoundError(f"no route is called {route[:100]!r}", param="route")
        routes = {route: routes[route]}
    states = _states(system, routes)
    serving = {health.name for health in states if health.ready}
    ready = {
        name: not draining and any(one.name in serving for one in found.deployments)
        for name, found in routes.items()
    }
    page = Readiness(
        ready=any(ready.values()),
        deployments=[_shown(health) for health in states],
        routes=ready,
    )
    waits = [health.retry_after for health in states if health.retry_after is not None]
    return page, min(waits, default=SOON)


def _states(system: System, routes: Mapping[str, Route]) -> Sequence[DeploymentHealth]:
    names = {deployment.name for route in routes.values() for deployment in route.deployments}
    return [health for health in system.health() if health.name in names]


def _shown(health: DeploymentHealth) -> DeploymentState:
    state = DeploymentState.model_validate(asdict(health))
    if state.reason is None and health.state == "serving" and not health.ready:
        state.reason = "no slot is live yet"
    return state
