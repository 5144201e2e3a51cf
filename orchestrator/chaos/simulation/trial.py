"""One run of a plan: the real system over a simulated world, then rest, then the verdict.

    load       the callers come, the planned faults strike
    rest       no more faults; every deployment must come back, or stay down for a reason
    probe      as many requests as there are slots must be served at the same time
    close      the system ends; nothing may be left

What is measured at rest is written into the journal, so that the verdict needs nothing else.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from orchestrator.actors.runtime import kill
from orchestrator.actors.supervisor import Supervision
from orchestrator.chaos.invariants.history import Violation
from orchestrator.chaos.invariants.verdict import judge
from orchestrator.chaos.journal import Event, Journal, Kind
from orchestrator.chaos.simulation import world
from orchestrator.chaos.simulation.caller import ask, cancel
from orchestrator.chaos.simulation.loop import SimLoop, SimulationError
from orchestrator.chaos.simulation.plan import Action, Caller, Injection, Plan, RouteShape, Shape
from orchestrator.chaos.simulation.provider import Provider
from orchestrator.chaos.simulation.quota import Bucket, highest_told
from orchestrator.chaos.simulation.recorder import Recorder
from orchestrator.deployment import RunningDeployment
from orchestrator.events import Finished
from orchestrator.plan import BreakerSettings, DeploymentPlan, KeyPlan, QueueSettings, RoutePlan
from orchestrator.policies.limits.pace import BURST_SHARE
from orchestrator.policies.limits.settings import Account, RateLimits
from orchestrator.policies.limits.window import SPAN_SECONDS
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from orchestrator.routing.hedging import HedgeSettings
from orchestrator.routing.route import RoutePolicy
from orchestrator.runners.lease import KeyAccess, StepLimits
from orchestrator.wiring import System

SAMPLE_SECONDS = 0.25
REST_SECONDS = 60.0
REST_STEP = 0.5
PAUSE_SECONDS = 3.5
READ_SECONDS = 60.0
"""Seconds after the last deadline by which even the slowest reader is done."""
PROBE_SECONDS = 120.0
PROBE_STEP = 0.05
WIN_BACK_SECONDS = 900.0
"""Seconds by which every key has its rate back; one that was refused may rest for 300."""
WIN_BACK_STEP = 1.0
AFTER_HEAL = 20
WARM_UPS = 12
A_LITTLE_MORE = 1.05
SAME: Mapping[str, str] = MappingProxyType({})
LONGER_OPEN = 4.0
"""Times its first open time, the longest that a breaker is open."""


class StuckError(SimulationError):
    """Somebody waits for ever while time goes on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a run."""

    plan: Plan
    events: Sequence[Event]
    trace: str
    """Hash of the journal."""
    seconds: float
    """Virtual."""
    violations: Sequence[Violation]
    failure: SimulationError | None = None
    """Why the run could not go on, if it couldn't."""

    @property
    def passed(self) -> bool:
        """Whether every invariant held in a run that came to its end."""
        return not self.violations and self.failure is None

    @property
    def requests(self) -> int:
        """Requests that were submitted."""
        return sum(event.kind is Kind.SUBMIT for event in self.events)


def run_plan(plan: Plan) -> Report:
    """Runs a plan to its end and judges it."""
    journals: list[Journal] = []

    async def main() -> float:
        journals.append(Journal(asyncio.get_running_loop().time))
        await _Trial(plan, journals[0]).run()
        return asyncio.get_running_loop().time()

    failure: SimulationError | None = None
    seconds = 0.0
    with _quiet():
        try:
            seconds = world.run(plan.seed, main, shuffle=plan.shuffle, grid=plan.grid)
        except SimulationError as error:
            failure = error
    events = journals[0].events
    return Report(
        plan=plan,
        events=events,
        trace=journals[0].hash(),
        seconds=seconds if failure is None else events[-1].t,
        violations=judge(events),
        failure=failure,
    )


class _Trial:
    def __init__(self, plan: Plan, journal: Journal) -> None:
        self._plan = plan
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._callers = {caller.name: caller for caller in plan.callers}
        self._providers = _providers(plan, self._callers, journal)
        self._recorder = Recorder(journal, plan.injections, self._fire)
        self._system = System(
            [_deployment_plan(shape, self._providers[shape.name]) for shape in plan.shapes],
            {name: _route_plan(plan, name) for name in plan.routes},
            monitored=False,
            points=self._recorder,
            chance=random.Random(plan.seed),
        )
        self._system.on_added = self._added
        self._names = {shape.name: shape.name for shape in plan.shapes}
        """Of the deployments that run, by those of the plan."""
        self._reloads: list[asyncio.Task[None]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._unwatched: set[str] = set()
        self._drains: asyncio.Task[None] | None = None
        self._stopped = False

    async def run(self) -> None:
        """Load, rest, probe, close."""
        self._introduce()
        self._recorder.watch(list(self._system.deployments.values()))
        self._system.start()
        for injection in self._plan.injections:
            if injection.at is not None:
                self._timers.append(self._loop.call_at(injection.at, self._do, injection, None))
        self._sample()
        await self._load()
        self._calm_down()
        if self._drains is not None:
            await self._drains
        await asyncio.gather(*self._reloads)
        await self._rest()
        for deployment in list(self._system.deployments.values()):
            if deployment.inflight.state_name == "serving":
                await self._probe(deployment)
        if self._plan.mode == "liveness":
            await self._go_on_as_before()
        self._measure()
        self._stopped = True
        await self._system.aclose()
        self._measure_the_end()

    async def _load(self) -> None:
        if not self._plan.callers:  # a plan that was made small may have none left
            return
        last = max(caller.at + caller.timeout for caller in self._plan.callers)
        callers = [
            self._loop.create_task(self._ask(caller), name=caller.name)
            for caller in self._plan.callers
        ]
        _, waiting = await asyncio.wait(callers, timeout=last + READ_SECONDS)
        names = sorted(task.get_name() for task in waiting)
        if names:
            raise StuckError(f"{len(names)} readers still wait: {', '.join(names[:5])}")
        for caller in callers:
            caller.result()

    async def _ask(self, caller: Caller, *, must_succeed: bool = False) -> bool:
        ending = await ask(
            caller,
            self._journal,
            self._system.router.submit,
            must_succeed=must_succeed,
            route=self._promises(caller.route),
        )
        return isinstance(ending, Finished)

    def _promises(self, route: str) -> dict[str, str | float]:
        policy = self._system.router.route(route).policy
        told: dict[str, str | float] = {"route": route}
        if policy.max_attempts is not None:
            told["attempts"] = policy.max_attempts
        if policy.hedge is not None:
            told["hedge_share"] = policy.hedge.share
        return told

    def _introduce(self) -> None:
        plan = self._plan
        self._journal.record(Kind.RUN, seed=plan.seed, mode=plan.mode, grid=plan.grid)
        for shape in self._plan.shapes:
            self._introduce_one(shape)
        for shape in self._plan.shapes:
            self._journal.record(Kind.ENGINE_START, deployment=shape.name, generation=1)

    def _introduce_one(self, shape: Shape) -> None:
        limits: dict[str, float | bool | str] = {}
        if shape.requests_per_minute is not None:
            limits["permits_burst"] = max(1.0, shape.requests_per_minute * BURST_SHARE)
            limits["permits_per_second"] = shape.requests_per_minute / SPAN_SECONDS
        if shape.aging is not None:
            limits["aging"] = shape.aging
        if shape.quota is not None:
            limits["learns"] = True
            limits["told_per_second"] = highest_told(shape.quota) / SPAN_SECONDS
        if shape.account:
            limits["account"] = shape.account
        self._journal.record(
            Kind.DEPLOYMENT,
            deployment=shape.name,
            slots=shape.slots,
            queue_capacity=shape.queue_capacity,
            waiting=shape.waiting if shape.on_full == "wait" else 0,
            max_restarts=shape.max_restarts,
            restart_window=shape.within,
            probes=shape.probes,
            open_for=shape.open_for,
            max_open_for=LONGER_OPEN * shape.open_for,
            more=limits,
        )

    # --- faults ---

    def _fire(self, injection: Injection, request: PriorityRequest | None) -> None:
        if injection.do is Action.STRETCH:
            if isinstance(self._loop, SimLoop):
                self._journal.record(Kind.STRETCHED, seconds=injection.delay)
                self._loop.stretch(injection.delay)
            return
        # the soonest is the next turn: a synchronous step can't be interrupted in production
        if injection.delay:
            timer = self._loop.call_later(injection.delay, self._do, injection, request)
            self._timers.append(timer)
        else:
            self._loop.call_soon(self._do, injection, request)

    def _do(self, injection: Injection, request: PriorityRequest | None) -> None:
        if self._stopped:
            return
        name = self._names[injection.deployment]
        deployment = self._system.deployments[name]
        match injection.do:
            case Action.POISON:
                drill = RuntimeError(f"poison drill in {deployment.plan.name}")
                self._providers[name].concerns_all(str(drill))
                deployment.poison("drill", drill)
            case Action.KILL_HOST:
                provider = self._providers[name]
                provider.kill_host(RuntimeError(f"host killed in {deployment.plan.name}"))
            case Action.STOP_HOST:
                self._providers[name].stop_host(injection.seconds)
            case Action.DRAIN:
                self._drains = self._loop.create_task(self._system.drain(injection.seconds))
            case Action.RELOAD:
                self._reloads.append(self._loop.create_task(self._reload()))
            case Action.KILL_SUPERVISOR:
                self._kill_supervisor(deployment)
            case Action.CANCEL if request is not None:
                cancel(request, self._journal)
            case _:
                pass

    async def _reload(self) -> None:
        """Every deployment is replaced by another one like it, as a configuration would have it."""
        number = len(self._reloads)
        self._journal.record(Kind.RELOAD, number=number)
        names = {shape.name: f"{shape.name}-{number}" for shape in self._plan.shapes}
        for shape in self._plan.shapes:
            new = names[shape.name]
            self._providers[new] = Provider(
                msgspec.structs.replace(shape, name=new),
                self._callers,
                self._journal,
                [
                    msgspec.structs.replace(weather, deployment=new)
                    for weather in self._plan.weather
                    if weather.deployment == shape.name
                ],
            )
        plans = [
            _deployment_plan(self._providers[new].shape, self._providers[new])
            for new in names.values()
        ]
        fresh = await self._system.prepare(plans)
        routes = {name: _route_plan(self._plan, name, names) for name in self._plan.routes}
        self._names = names
        self._system.change_over(fresh, plans, routes)

    def _added(self, deployment: RunningDeployment) -> None:
        name = deployment.plan.name
        self._recorder.watch([deployment])
        self._introduce_one(self._providers[name].shape)
        self._journal.record(Kind.ENGINE_START, deployment=name, generation=1)

    def _kill_supervisor(self, deployment: RunningDeployment) -> None:
        if deployment.supervisor is None or deployment.plan.name in self._unwatched:
            return
        self._unwatched.add(deployment.plan.name)
        self._journal.record(Kind.SUPERVISOR_DEAD, deployment=deployment.plan.name)
        self._providers[deployment.plan.name].concerns_all(asyncio.CancelledError.__name__)
        kill(deployment.supervisor)

    def _calm_down(self) -> None:
        self._recorder.stop()
        for timer in self._timers:
            timer.cancel()
        for provider in self._providers.values():
            provider.healed = True

    # --- rest ---

    def _sample(self) -> None:
        if self._stopped:
            return
        for name, deployment in self._system.deployments.items():
            self._journal.record(Kind.QUEUE_DEPTH, deployment=name, depth=len(deployment.queue))
            self._journal.record(Kind.READY, deployment=name, ready=deployment.inflight.ready)
        self._loop.call_later(SAMPLE_SECONDS, self._sample)

    async def _rest(self) -> None:
        """Waits out pauses and zombies, and until everything that can come back is back."""
        await asyncio.sleep(PAUSE_SECONDS)
        for _ in range(int(REST_SECONDS / REST_STEP)):
            if not self._system.retiring and all(map(self._is_at_rest, self._system.deployments)):
                return
            await asyncio.sleep(REST_STEP)

    def _is_at_rest(self, name: str) -> bool:
        deployment = self._system.deployments[name]
        live, paused = deployment.inflight.live_slots, deployment.gates.limiter.paused_until
        return live == self._expected_slots(name) and paused <= self._loop.time()

    def _expected_slots(self, name: str) -> int:
        if self._plan.mode == "liveness":
            return self._providers[name].shape.slots
        deployment = self._system.deployments[name]
        shape = self._providers[name].shape
        poisons = self._recorder.poisons[name]
        down_for_good = (
            name in self._unwatched
            or (poisons and shape.stays_down)
            # every generation failed once, the last one too; one that served for long gives the
            # budget back, and then another one follows
            or (
                deployment.inflight.state_name == "poisoned"
                and deployment.inflight.generation > shape.max_restarts
                and deployment.inflight.restart_after is None
            )
        )
        return 0 if down_for_good else deployment.plan.slots

    async def _probe(self, deployment: RunningDeployment) -> None:
        """All slots at once must serve: what is lost to a leak is seen from outside."""
        name = deployment.plan.name
        if self._providers[name].shape.quota is not None:
            await self._win_back(deployment)
        elif self._providers[name].shape.tokens_per_minute is not None:
            # what the load used counts for a minute, and a small queue holds no more who wait
            await asyncio.sleep(SPAN_SECONDS * A_LITTLE_MORE)
        for number in range(WARM_UPS):  # a breaker may be open still, and lets one in at a time
            if await self._ask(self._prober(name, f"warm-{name}-{number}", tokens=1)):
                break
            await asyncio.sleep(REST_STEP)
        provider = self._providers[name]
        adapts = deployment.gates.concurrency
        if adapts is not None:  # what the last one has shown may be on its way to the engine
            await asyncio.sleep(PROBE_STEP)
        slots = deployment.plan.slots if adapts is None else max(1, adapts.limit)
        provider.most_open = 0
        provider.gather = slots
        # one after the other, so that they need no more room than the smallest queue has
        rate = provider.shape.requests_per_minute
        step = PROBE_STEP if rate is None else max(PROBE_STEP, SPAN_SECONDS / rate)
        now = self._loop.time()
        probers = [
            self._prober(name, f"probe-{name}-{n}", tokens=2, at=now + n * step)
            for n in range(slots)
        ]
        await asyncio.gather(*(self._ask(prober, must_succeed=True) for prober in probers))
        self._gauge(f"served at once by {name}", min(provider.most_open, slots), slots)

    async def _win_back(self, deployment: RunningDeployment) -> None:
        """A key that was slowed down gets its rate back, step by step, by what is accepted."""
        name, keys = deployment.plan.name, deployment.gates.limiter.keys
        until = self._loop.time() + WIN_BACK_SECONDS

        def slowed() -> int:
            return sum(key.slowed_to is not None for key in keys)

        for number in itertools.count():
            if not slowed() or self._loop.time() > until:
                break
            await self._ask(self._prober(name, f"back-{name}-{number}", tokens=1))
            await asyncio.sleep(WIN_BACK_STEP)
        self._gauge(f"slowed keys of {name}", slowed(), 0)
        await asyncio.sleep(SPAN_SECONDS * A_LITTLE_MORE)

    async def _go_on_as_before(self) -> None:
        """Every request over every route succeeds, once nothing is broken any more."""
        rates = [shape.requests_per_minute or SPAN_SECONDS for shape in self._plan.shapes]
        rates += [shape.quota.per_minute for shape in self._plan.shapes if shape.quota is not None]
        # what was sent before counts for a minute, and each request for a little longer than that
        await asyncio.sleep(SPAN_SECONDS * A_LITTLE_MORE)
        step = A_LITTLE_MORE * SPAN_SECONDS / min(SPAN_SECONDS, *rates)
        now = self._loop.time()
        probers = [
            self._prober(route, f"after-{route}-{number}", tokens=3, at=now + place * step)
            for place, (number, route) in enumerate(
                itertools.product(range(AFTER_HEAL), self._system.router.routes)
            )
        ]
        await asyncio.gather(*(self._ask(prober, must_succeed=True) for prober in probers))

    def _prober(self, route: str, name: str, *, tokens: int, at: float = 0.0) -> Caller:
        caller = Caller(name=name, at=at, route=route, tokens=tokens, timeout=PROBE_SECONDS)
        self._callers[name] = caller
        return caller

    def _measure(self) -> None:
        for name, deployment in self._system.deployments.items():
            live = deployment.inflight.live_slots
            self._gauge(f"live slots of {name}", live, self._expected_slots(name))
            self._gauge(f"queue of {name}", len(deployment.queue), 0)
            self._gauge(f"inflight of {name}", len(deployment.inflight), 0)
            self._gauge(f"permits of {name}", deployment.gates.limiter.outstanding, 0)
        if self._reloads:
            self._gauge("deployments of before a reload", len(self._system.retiring), 0)

    def _measure_the_end(self) -> None:
        for name, provider in self._providers.items():
            self._gauge(f"streams of {name}", provider.open_streams, 0)

    def _gauge(self, name: str, value: int, expected: int) -> None:
        self._journal.record(Kind.GAUGE, name=name, value=value, expected=expected)


def _route_plan(plan: Plan, name: str, names: Mapping[str, str] = SAME) -> RoutePlan:
    shape = plan.route_shapes.get(name, RouteShape())
    hedge = None
    if shape.hedge_after is not None:
        hedge = HedgeSettings(seconds=shape.hedge_after, share=shape.hedge_share)
    return RoutePlan(
        deployments=[names.get(one, one) for one in plan.routes[name]],
        policy=RoutePolicy(
            strategy=shape.strategy,
            midstream=shape.midstream,
            max_attempts=shape.max_attempts,
            hedge=hedge,
        ),
    )


def _deployment_plan(shape: Shape, provider: Provider) -> DeploymentPlan:
    limits = RateLimits(
        requests_per_minute=shape.requests_per_minute,
        tokens_per_minute=shape.tokens_per_minute,
        learn=shape.quota is not None,
    )
    return DeploymentPlan(
        name=shape.name,
        factory=provider.factory(),
        prefill=shape.prefill,
        slots=shape.slots,
        queue_capacity=shape.queue_capacity,
        queue=QueueSettings(aging=shape.aging, on_full=shape.on_full, waiting=shape.waiting),
        concurrency=(1, shape.slots) if shape.adapts else None,
        limits=limits,
        keys=_keys(shape, limits) if shape.keys > 1 else (),
        account=_account(shape, "0"),
        retry=RetrySettings(max_attempts=shape.max_attempts, initial_backoff=0.05, max_backoff=1.0),
        breaker=BreakerSettings(
            failure_threshold=shape.failure_threshold,
            open_for=shape.open_for,
            max_open_for=LONGER_OPEN * shape.open_for,
            probes=shape.probes,
        ),
        steps=StepLimits(connect=shape.stall, first_token=shape.stall, inter_token=shape.stall),
        start_timeout=5.0,
        supervision=Supervision(
            max_restarts=shape.max_restarts,
            within=shape.within,
            initial_backoff=0.05,
            max_backoff=3.0,
            on_poison="stay" if shape.stays_down else "restart",
        ),
    )


def _keys(shape: Shape, limits: RateLimits) -> list[KeyPlan]:
    texts = [str(number) for number in range(shape.keys)]
    return [
        KeyPlan(access=KeyAccess(text.__str__), limits=limits, account=_account(shape, text))
        for text in texts
    ]


def _account(shape: Shape, key: str) -> Account | None:
    return Account("simulated", shape.account, key) if shape.account else None


def _providers(plan: Plan, callers: dict[str, Caller], journal: Journal) -> dict[str, Provider]:
    accounts: dict[str, list[Shape]] = {}
    for shape in plan.shapes:
        accounts.setdefault(shape.account or shape.name, []).append(shape)
    found: dict[str, Provider] = {}
    for shapes in accounts.values():
        quota = shapes[0].quota
        buckets = [Bucket(quota) for _ in range(shapes[0].keys)] if quota is not None else []
        names = [shape.name for shape in shapes]
        for shape in shapes:
            found[shape.name] = Provider(
                shape, callers, journal, plan.weather, partners=names, buckets=buckets
            )
    return {shape.name: found[shape.name] for shape in plan.shapes}


@contextmanager
def _quiet() -> Generator[None, None, None]:
    # a fault's traceback in the log costs more than the run around it, and nobody reads it here
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
