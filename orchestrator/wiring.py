"""Everything that runs, on one loop: the deployments, the routes over them, the monitor."""

import asyncio
import itertools
import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from orchestrator.accounts import Accounts
from orchestrator.actors.monitor import LoopMonitor
from orchestrator.deployment import DeploymentHealth, RunningDeployment
from orchestrator.errors import LoopBlockedError
from orchestrator.plan import DeploymentPlan, RoutePlan
from orchestrator.points import Points
from orchestrator.routing.deployment import Deployment
from orchestrator.routing.hedging import Hedging
from orchestrator.routing.route import Route
from orchestrator.routing.router import Router

logger = logging.getLogger(__name__)


class System:
    """Everything that runs, on one loop.

    Args:
        plans: The deployments; each is also a route of its own name.
        routes: Further routes: plans, or just deployments by name, in failover order.
        monitored: Whether a thread watches the loop; a simulated loop has no threads.
        points: Told of every passage of a point, if anybody looks on.
        accounts: Enters what each request costs; None if nobody asks.
        chance: Of the routes' choices; a simulation hands in its own.
    """

    def __init__(
        self,
        plans: Sequence[DeploymentPlan],
        routes: Mapping[str, RoutePlan | Sequence[str]] | None = None,
        *,
        monitored: bool = True,
        points: Points | None = None,
        accounts: Accounts | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._accounts = accounts
        self._monitored = monitored
        self._monitor: LoopMonitor | None = None
        next_epoch = itertools.count(1).__next__
        self._deployments = {
            plan.name: RunningDeployment(plan, next_epoch, points) for plan in plans
        }
        self._known = {
            name: _known(running, accounts) for name, running in self._deployments.items()
        }
        plans_of_routes = dict(routes or {}) | {name: [name] for name in self._deployments}
        self.router = Router(
            {name: self._route(name, plan) for name, plan in plans_of_routes.items()},
            chance or random.Random(),
            accounts,
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

    def _route(self, name: str, plan: RoutePlan | Sequence[str]) -> Route:
        if not isinstance(plan, RoutePlan):
            plan = RoutePlan(deployments=plan)
        first = self._deployments[plan.deployments[0]].plan
        policy = plan.policy
        if policy.max_attempts is None:
            limit = first.retry.max_attempts + len(plan.deployments) - 1
            policy = replace(policy, max_attempts=limit)
        deployments = [self._known[deployment] for deployment in plan.deployments]
        return Route(
            name,
            deployments,
            timeout=first.timeout,
            policy=policy,
            hedging=Hedging(policy.hedge, deployments, name) if policy.hedge else None,
        )


def _known(running: RunningDeployment, accounts: Accounts | None) -> Deployment:
    name = running.plan.name
    return Deployment(
        name=name,
        inflight=running.inflight,
        inspect=accounts.guard(name, running.inspect) if accounts else running.inspect,
        ready=lambda: running.ready,
        count=running.plan.factory.count,
        healthy=lambda: running.healthy,
        context=running.plan.context,
        resumes=running.plan.factory.resumes,
        prefill=running.plan.prefill,
    )
