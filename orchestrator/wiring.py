"""Everything that runs, on one loop: the deployments, the routes over them, the monitor.

A reload builds the new beside the old and changes over in one step: whoever came before goes on by
the old routes at the old deployments, and these are closed when the last of them has ended.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from orchestrator.accounts import Accounts
from orchestrator.actors.monitor import LoopMonitor
from orchestrator.deployment import DeploymentHealth, RunningDeployment
from orchestrator.errors import LoopBlockedError, ReloadRefusedError
from orchestrator.plan import DeploymentPlan, RoutePlan
from orchestrator.points import Points
from orchestrator.policies.limits.sharing import SharedKeys
from orchestrator.routing.deployment import Deployment
from orchestrator.routing.hedging import Hedging
from orchestrator.routing.route import Route
from orchestrator.routing.router import Router
from orchestrator.routing.table import Table

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
        self._points = points
        self._next_epoch = itertools.count(1).__next__
        self._shared = SharedKeys()
        self.on_added: Callable[[RunningDeployment], None] = lambda _: None
        """Told of each deployment that a reload brings, before it starts."""
        self._deployments = {plan.name: self._build(plan) for plan in plans}
        self._known = self._knowledge({})
        for running in self._deployments.values():
            running.show()
        self.router = Router(self._routes(routes or {}, {}), chance or random.Random(), accounts)
        self._tables: list[Table] = []
        self._retiring: dict[RunningDeployment, asyncio.Task[None]] = {}

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
        await _settled(self._deployments.values())

    @property
    def retiring(self) -> Collection[RunningDeployment]:
        """Those that a reload has taken out of the routes and who still have requests."""
        return self._retiring.keys()

    async def prepare(self, plans: Sequence[DeploymentPlan]) -> dict[str, RunningDeployment]:
        """Starts what isn't running yet, beside all that runs, and waits until it is ready.

        Args:
            plans: All deployments that are to be; the very plan of one that runs means that one.

        Returns:
            The new ones by name, for `change_over`.

        Raises:
            ReloadRefusedError: One of them doesn't get ready; they are closed again.
        """
        fresh = {
            plan.name: self._build(plan)
            for plan in plans
            if plan.name not in self._deployments or self._deployments[plan.name].plan is not plan
        }
        ready = False
        try:
            for running in fresh.values():
                self.on_added(running)
                running.start()
            await _settled(fresh.values())
            for name, running in fresh.items():
                if not running.inflight.ready:
                    reason = running.health().reason or "it has no live slot"
                    raise ReloadRefusedError(f"deployments.{name}: it doesn't get ready: {reason}")
            ready = True
        finally:
            if not ready:
                for running in fresh.values():
                    await running.aclose()
        return fresh

    def change_over(
        self,
        fresh: Mapping[str, RunningDeployment],
        plans: Sequence[DeploymentPlan],
        routes: Mapping[str, RoutePlan | Sequence[str]],
    ) -> None:
        """Sends whoever comes from now on to other deployments, by other routes.

        Args:
            fresh: What `prepare` made of the plans.
            plans: All deployments that are to be.
            routes: Further routes, as at the start.
        """
        before, self._deployments = (
            self._deployments,
            {plan.name: fresh.get(plan.name) or self._deployments[plan.name] for plan in plans},
        )
        gone = [one for name, one in before.items() if self._deployments.get(name) is not one]
        for running in gone:
            running.hide()
        for running in fresh.values():
            running.show()
        self._known = self._knowledge(self._known)
        old = self.router.replace(self._routes(routes, self.router.routes))
        self._tables = [table for table in (*self._tables, old) if not table.empty]
        for running in gone:
            retiring = asyncio.get_running_loop().create_task(self._retire(running))
            self._retiring[running] = retiring
            retiring.add_done_callback(lambda _, running=running: self._retiring.pop(running))

    async def _retire(self, running: RunningDeployment) -> None:
        """Closes it once nobody goes by routes any more that may lead to it."""
        for table in tuple(self._tables):
            gone = asyncio.Event()
            table.when_empty(gone.set)
            await gone.wait()
        await running.aclose()
        logger.info("deployment %s of before the reload has ended", running.plan.name)

    async def drain(self, limit: float) -> None:
        """Accepts nothing new and lets what runs finish.

        Args:
            limit: Seconds after which what is left is ended with `EngineDrainingError`.
        """
        idle = asyncio.Event()
        all_of_them = (*self._deployments.values(), *self._retiring)
        busy = len(all_of_them)

        def one_is_idle() -> None:
            nonlocal busy
            busy -= 1
            if busy == 0:
                idle.set()

        for deployment in all_of_them:
            deployment.inflight.drain()
        for deployment in all_of_them:
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
        for deployment in (*self._deployments.values(), *self._retiring):
            deployment.inflight.stop()
        # now that every request has its ending, those that retire go by themselves
        await asyncio.gather(*self._retiring.values())
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
        for deployment in (*self._deployments.values(), *self._retiring):
            deployment.poison("event loop", LoopBlockedError(seconds))

    def _build(self, plan: DeploymentPlan) -> RunningDeployment:
        return RunningDeployment(plan, self._next_epoch, self._points, self._shared)

    def _knowledge(self, before: Mapping[str, Deployment]) -> dict[str, Deployment]:
        """What routing knows of each deployment; what was learnt of one that stays is kept."""
        return {
            name: _known(running, self._accounts, before.get(name))
            for name, running in self._deployments.items()
        }

    def _routes(
        self, plans: Mapping[str, RoutePlan | Sequence[str]], before: Mapping[str, Route]
    ) -> dict[str, Route]:
        plans = dict(plans) | {name: [name] for name in self._deployments}
        return {name: self._route(name, plan, before.get(name)) for name, plan in plans.items()}

    def _route(self, name: str, plan: RoutePlan | Sequence[str], before: Route | None) -> Route:
        if not isinstance(plan, RoutePlan):
            plan = RoutePlan(deployments=plan)
        first = self._deployments[plan.deployments[0]].plan
        policy = plan.policy
        if policy.max_attempts is None:
            limit = first.retry.max_attempts + len(plan.deployments) - 1
            policy = replace(policy, max_attempts=limit)
        deployments = [self._known[deployment] for deployment in plan.deployments]
        hedging = None
        if policy.hedge is not None and before is not None and before.policy.hedge == policy.hedge:
            hedging = before.hedging
        if policy.hedge is not None and hedging is None:
            hedging = Hedging(policy.hedge, deployments, name)
        if hedging is not None:
            hedging.deployments = deployments
        return Route(name, deployments, timeout=first.timeout, policy=policy, hedging=hedging)


async def _settled(deployments: Collection[RunningDeployment]) -> None:
    changed = asyncio.Event()
    for deployment in deployments:
        deployment.inflight.observe(changed.set)
    while any(
        not one.inflight.live_slots and one.inflight.state_name == "serving" for one in deployments
    ):
        await changed.wait()
        changed.clear()


def _known(
    running: RunningDeployment, accounts: Accounts | None, before: Deployment | None
) -> Deployment:
    name = running.plan.name
    inspect = accounts.guard(name, running.inspect) if accounts else running.inspect
    if before is not None and before.inflight is running.inflight:
        return replace(before, inspect=inspect)
    return Deployment(
        name=name,
        inflight=running.inflight,
        inspect=inspect,
        ready=lambda: running.ready,
        count=running.plan.factory.count,
        healthy=lambda: running.healthy,
        context=running.plan.context,
        resumes=running.plan.factory.resumes,
        prefill=running.plan.prefill,
    )
