"""Everything that runs, on one loop: the deployments, the routes over them, the monitor."""

import asyncio
import itertools
import logging
from collections.abc import Mapping, Sequence

from orchestrator.accounts import Accounts
from orchestrator.actors.monitor import LoopMonitor
from orchestrator.deployment import DeploymentHealth, RunningDeployment
from orchestrator.errors import LoopBlockedError
from orchestrator.plan import DeploymentPlan
from orchestrator.points import Points
from orchestrator.routing.route import Deployment, Route
from orchestrator.routing.router import Router

logger = logging.getLogger(__name__)


class System:
    """Everything that runs, on one loop.

    Args:
        plans: The deployments; each is also a route of its own name.
        routes: Further routes: deployments by name, in failover order.
        monitored: Whether a thread watches the loop; a simulated loop has no threads.
        points: Told of every passage of a point, if anybody looks on.
        accounts: Enters what each request costs; None if nobody asks.
    """

    def __init__(
        self,
        plans: Sequence[DeploymentPlan],
        routes: Mapping[str, Sequence[str]] | None = None,
        *,
        monitored: bool = True,
        points: Points | None = None,
        accounts: Accounts | None = None,
    ) -> None:
        self._accounts = accounts
        self._monitored = monitored
        self._monitor: LoopMonitor | None = None
        next_epoch = itertools.count(1).__next__
        self._deployments = {
            plan.name: RunningDeployment(plan, next_epoch, points) for plan in plans
        }
        orders = dict(routes or {}) | {name: [name] for name in self._deployments}
        self.router = Router(
            {name: self._route(name, order) for name, order in orders.items()}, accounts
        )

    @property
    def deployments(self) -> Mapping[str, RunningDeployment]:
        """The deployments by name."""
        return self._deployments

    def start(self) -> None:
        """Starts every deployment; returns while their runners are still getting ready."""
        if self._accounts is not None:
            self._accounts.start()  # it may read for a while, so it comes before all that must move
        for deployment in self._deployments.values():
            deployment.start()
        if self._monitored:
            self._watch_the_loop()

    def health(self) -> list[DeploymentHealth]:
        """The state of every deployment."""
        return [deployment.health() for deployment in self._deployments.values()]

    async def settled(self) -> None:
        """Waits until every deployment is ready or has failed to get ready."""
        changed = asyncio.Event()
        for deployment in self._deployments.values():
            deployment.inflight.observe(changed.set)
        while any(not one.live_slots and one.state == "serving" for one in self.health()):
            await changed.wait()
            changed.clear()

    async def drain(self, limit: float) -> None:
        """Accepts nothing new and lets what runs finish.

        Args:
            limit: Seconds after which what is left is ended with `EngineDrainingError`.
        """
        idle = asyncio.Event()
        busy = len(self._deployments)

        def one_is_idle() -> None:
            nonlocal busy
            busy -= 1
            if busy == 0:
                idle.set()

        for deployment in self._deployments.values():
            deployment.inflight.drain()
        for deployment in self._deployments.values():
            deployment.inflight.when_idle(one_is_idle)
        try:
            async with asyncio.timeout(limit):
                await idle.wait()
        except TimeoutError:
            logger.warning("the drain limit of %g s has passed; ending what is left", limit)

    async def aclose(self) -> None:
        """Ends everything; what still runs gets `EngineDrainingError`."""
        if self._monitor is not None:
            self._monitor.stop()
        self.router.stop()
        for deployment in self._deployments.values():
            deployment.inflight.stop()
        for deployment in self._deployments.values():
            await deployment.aclose()
        if self._accounts is not None:
            self._accounts.stop()

    def _watch_the_loop(self) -> None:
        self._monitor = LoopMonitor(asyncio.get_running_loop(), self._loop_was_blocked)
        try:
            self._monitor.start()
        except RuntimeError as error:  # fail closed: nobody would see a blocked loop
            self._monitor = None
            for deployment in self._deployments.values():
                deployment.poison("monitor", error)

    def _loop_was_blocked(self, seconds: float) -> None:
        for deployment in self._deployments.values():
            deployment.poison("event loop", LoopBlockedError(seconds))

    def _route(self, name: str, order: Sequence[str]) -> Route:
        deployments = [self._deployments[deployment] for deployment in order]
        return Route(
            name,
            [
                Deployment(
                    name=d.plan.name,
                    inflight=d.inflight,
                    inspect=self._accounts.guard(d.plan.name, d.inspect)
                    if self._accounts
                    else d.inspect,
                    ready=lambda d=d: d.ready,
                )
                for d in deployments
            ],
            timeout=deployments[0].plan.timeout,
        )
