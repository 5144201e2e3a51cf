"""One deployment while it runs: registry, queue, gates, and the actors that it starts."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from orchestrator import metrics
from orchestrator.actors.engine import Engine
from orchestrator.actors.messages import AttemptEnded, Poison, Shutdown, Wake
from orchestrator.actors.messages import Gone as GoneMessage
from orchestrator.actors.runtime import OnDeath, Ref, ended, kill, tell
from orchestrator.actors.session import Session
from orchestrator.actors.supervisor import Supervisor
from orchestrator.actors.worker import RemoteWorker, WorkerSettings
from orchestrator.attempt import Gates
from orchestrator.errors import InvalidRequestError, describe
from orchestrator.inflight import MAX_CAUSE_TEXT, Fault, Inflight, Poisoned, Shed, StateName, Ticket
from orchestrator.plan import DeploymentPlan
from orchestrator.points import Passage, Point, Points
from orchestrator.policies.breaker import Breaker, Forced
from orchestrator.policies.concurrency import Concurrency
from orchestrator.policies.limits.limiter import STATE_LEVELS, RateLimiter
from orchestrator.policies.limits.sharing import SharedKeys
from orchestrator.policies.queue import PriorityQueue
from orchestrator.policies.retry import RetryBudget, RetryPolicy
from orchestrator.request import PriorityRequest
from orchestrator.runners.remote.credentials import Credential

logger = logging.getLogger(__name__)

BREAKER_LEVELS = {"closed": 0.0, "half-open": 1.0, "open": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentHealth:
    """What the health page tells of a deployment."""

    name: str
    model: str
    state: StateName
    ready: bool
    live_slots: int
    slots: int
    generation: int
    breaker: str
    breaker_forced: bool = False
    """Whether an operator holds the breaker in that state."""
    queued: int
    inflight: int
    reason: str | None = None
    fault_id: str | None = None
    retry_after: float | None = None
    """Seconds until one that is poisoned or paused may be back; None if it is up or stays down."""


class RunningDeployment:
    """One deployment: its registry, queue and gates, and its supervisor while it runs.

    Args:
        plan: What it is built from.
        next_epoch: Gives a number that no attempt had before; one source for the whole system.
        points: Told of the passages in it, if anybody looks on.
        shared: The keys that it may have in common with other deployments.
    """

    def __init__(
        self,
        plan: DeploymentPlan,
        next_epoch: Callable[[], int],
        points: Points | None = None,
        shared: SharedKeys | None = None,
    ) -> None:
        self.plan = plan
        self.queue = PriorityQueue(
            plan.name,
            plan.queue_capacity,
            aging=plan.queue.aging,
            on_full=plan.queue.on_full,
            waiting=plan.queue.waiting,
        )
        self.gates = Gates(
            limiter=RateLimiter(plan.limits, [key.limits for key in plan.keys]),
            breaker=Breaker(
                plan.name,
                failure_threshold=plan.breaker.failure_threshold,
                failure_rate=plan.breaker.failure_rate,
                open_for=plan.breaker.open_for,
                max_open_for=plan.breaker.max_open_for,
                probes=plan.breaker.probes,
                points=points,
            ),
            retry=RetryPolicy(plan.retry, RetryBudget()),
            concurrency=plan.concurrency and Concurrency(*plan.concurrency),
            limits=plan.steps,
            keys=[key.access for key in plan.keys],
            points=points,
        )
        self.inflight = Inflight(
            deployment=plan.name,
            enqueue=self._enqueue,
            dequeue=self._dequeue,
            on_accepted=self._accepted,
            on_gone=self._gone,
            slots=plan.slots,
            waits=plan.queue.on_full == "wait",
            points=points,
        )
        self._next_epoch = next_epoch
        self._engine: Ref | None = None
        self._supervisor: Ref | None = None
        self._sessions: dict[Credential, Ref] = {}
        self._wake = Wake()
        self._shown = False
        self._shared = shared or SharedKeys()
        self.gates.limiter.on_turn = self._take_turn
        keys = [(key.account, key.limits) for key in plan.keys]
        self._shared.join(self.gates.limiter, keys or [(plan.account, plan.limits)])

    def show(self) -> None:
        """Lets the gauges of its name tell of this deployment from now on."""
        plan, self._shown = self.plan, True
        metrics.for_deployment(plan.name).observe(
            ready=self._ready_level,
            live_slots=lambda: float(self.inflight.live_slots),
            queued=lambda: float(len(self.queue)),
            inflight=lambda: float(len(self.inflight)),
            concurrency=self._concurrency,
            permits=lambda: float(self.gates.limiter.outstanding),
            breaker=lambda: BREAKER_LEVELS[self.gates.breaker.state],
            breaker_forced=lambda: float(self.gates.breaker.forced is not None),
            generation=lambda: float(self.inflight.generation),
        )
        for number in range(len(self.gates.limiter.keys)):
            metrics.for_deployment(plan.name).observe_key(
                number + 1,
                state=lambda number=number: self._key_level(number),
                # asked of the limiter each time: another deployment's may take a key's place
                rate=lambda number=number: self.gates.limiter.keys[number].rate,
            )

    def hide(self) -> None:
        """Leaves the gauges of its name to another deployment, or to nobody."""
        if self._shown:
            self._shown = False
            metrics.for_deployment(self.plan.name).forget()

    @property
    def supervisor(self) -> Ref | None:
        """Its supervisor, once it was started; whoever kills it proves that this fails closed."""
        return self._supervisor

    def inspect(self, request: PriorityRequest) -> Awaitable[None] | None:
        """Refuses what this deployment can never serve: raises a `RequestError`.

        Raises:
            InvalidRequestError: Its model does other work.
        """
        if request.work not in self.plan.factory.works:
            able = ", ".join(sorted(self.plan.factory.works))
            raise InvalidRequestError(
                f"the model {request.model[:100]!r} can't {request.work}; it can {able}",
                param="model",
            )
        self.gates.limiter.check(request.estimated_prompt_tokens, request.estimated_answer_tokens)
        return self.plan.factory.inspect(request)

    def start(self) -> None:
        """Starts the sessions of its keys, and the supervisor, which starts the rest."""
        credentials = [key.credential for key in self.plan.keys] or [self.plan.credential]
        for number, credential in enumerate(credentials):
            if credential is not None:
                credential.on_change = self.gates.limiter.keys[number].restore
                self._start_session(credential)
        self._supervisor = Supervisor.start(
            self.inflight,
            self.plan.supervision,
            start_engine=self._start_engine,
            start_worker=self._start_worker,
            on_death=self._supervisor_died,
        )

    @property
    def ready(self) -> bool:
        """Whether a request sent now would be taken up here; never false because of load."""
        return self.inflight.ready and not self._refuses(self._pause())

    @property
    def healthy(self) -> bool:
        """Whether it is ready and its breaker would let an attempt through now."""
        now = asyncio.get_running_loop().time()
        return self.ready and self.gates.breaker.refusal(now) is None

    def health(self) -> DeploymentHealth:
        """Reads the state; costs nothing and asks no actor."""
        state = self.inflight.state
        fault = state.fault if isinstance(state, Poisoned) else None
        pause, now = self._pause(), asyncio.get_running_loop().time()
        shut = self.gates.breaker.shut(now)
        waits = [pause] if self._refuses(pause) else []
        if shut is not None and shut.retry_after is not None:
            waits.append(shut.retry_after)
        return DeploymentHealth(
            name=self.plan.name,
            model=self.plan.factory.model,
            state=self.inflight.state_name,
            ready=self.ready and shut is None,
            live_slots=self.inflight.live_slots,
            slots=self.plan.slots,
            generation=self.inflight.generation,
            breaker=self.gates.breaker.state,
            breaker_forced=self.gates.breaker.forced is not None,
            queued=len(self.queue),
            inflight=len(self.inflight),
            reason=fault.describe()
            if fault
            else self._paused_text() or self._restart_text() or (shut and shut.message),
            fault_id=fault.fault_id if fault else None,
            retry_after=self.inflight.back_in(now) if fault else max(waits, default=None),
        )

    def _ready_level(self) -> float:
        now = asyncio.get_running_loop().time()
        return float(self.ready and self.gates.breaker.shut(now) is None)

    def _concurrency(self) -> float:
        adapts = self.gates.concurrency
        return float(self.plan.slots if adapts is None else adapts.limit)

    def _key_level(self, number: int) -> float:
        return STATE_LEVELS[self.gates.limiter.state(number, asyncio.get_running_loop().time())]

    def _pause(self) -> float:
        return self.gates.limiter.paused_for(asyncio.get_running_loop().time())

    def _refuses(self, pause: float) -> bool:
        # the engine waits for a short pause and refuses what comes during a long one
        return pause > 0 and pause >= self.gates.retry.longest_wait

    def _paused_text(self) -> str | None:
        if not self.inflight.ready:
            return None
        return self.gates.limiter.describe(asyncio.get_running_loop().time())

    def _restart_text(self) -> str | None:
        """What ended the slots that are being started again, if none is left."""
        inflight = self.inflight
        cause = inflight.last_fault
        if cause is None or inflight.ready or inflight.state_name != "serving":
            return None
        return f"no slot is live; the last one ended by {describe(cause)[:MAX_CAUSE_TEXT]}"

    def force_breaker(self, state: Forced | None) -> None:
        """Holds the circuit breaker open or closed, whatever happens, until it is let go (None)."""
        self.gates.breaker.force(state)
        logger.warning(
            "the circuit breaker of %s is %s",
            self.plan.name,
            f"held {state}" if state else "let go",
            extra={"deployment": self.plan.name},
        )

    def poison(self, stage: str, cause: BaseException) -> None:
        """Ends the engine's generation because of something outside of its actors."""
        fault = self._fault(stage, cause)
        if self._supervisor is None or not tell(self._supervisor, Poison(fault)):
            self.inflight.restart_after = None
            self.inflight.poison(fault)

    async def aclose(self) -> None:
        """Ends what is left of its requests, its actors and what its runners share."""
        self.inflight.stop()
        if self._supervisor is not None:
            if not tell(self._supervisor, Shutdown()):
                logger.debug("the supervisor of %s was gone before", self.plan.name)
            self._supervisor.stop(block=False)
            await ended(self._supervisor)
        sessions, self._sessions = self._sessions, {}
        for session in sessions.values():
            kill(session)  # it may be waiting for a key that nobody wants any more
            await ended(session)
        await self.plan.factory.aclose()
        self._shared.leave(self.gates.limiter)
        self.hide()

    def _start_session(self, credential: Credential) -> None:
        def died(cause: BaseException | None) -> None:
            if credential not in self._sessions:  # it was ended here
                return
            logger.error(
                "the session of %s died and is started anew", self.plan.name, exc_info=cause
            )
            self._start_session(credential)

        self._sessions[credential] = Session.start(self.plan.name, credential, on_death=died)

    def _enqueue(self, ticket: Ticket) -> Shed | None:
        shed = self.queue.push(ticket)
        if shed is not None:
            metrics.for_deployment(self.plan.name).shed(shed.ticket.request.priority)
        return shed

    def _dequeue(self, ticket: Ticket) -> None:
        self.queue.discard(ticket)
        if self.gates.limiter.shares:  # others may wait behind it for a key
            self._take_turn()

    def _accepted(self) -> None:
        self.gates.retry.budget.accepted(asyncio.get_running_loop().time())
        if self._engine is not None:
            tell(self._engine, self._wake)

    def _take_turn(self) -> None:
        if self._engine is not None:
            tell(self._engine, self._wake)

    def _gone(self, ticket: Ticket) -> None:
        if self._engine is not None:
            tell(self._engine, GoneMessage(ticket))

    def _start_engine(self, on_death: OnDeath) -> Ref:
        self._engine = Engine.start(
            self.inflight,
            self.queue,
            self.gates,
            next_epoch=self._next_epoch,
            on_death=on_death,
        )
        return self._engine

    def _start_worker(
        self,
        worker: str,
        on_ready: Callable[[], None],
        on_ended: Callable[[AttemptEnded], None],
        on_death: OnDeath,
    ) -> Ref:
        if self.gates.points is not None:
            on_death = _looked_on(self.gates.points, self.plan.name, worker, on_death)
        settings = WorkerSettings(
            deployment=self.plan.name,
            worker=worker,
            start_timeout=self.plan.start_timeout,
            gates=self.gates,
        )
        return RemoteWorker.start(
            settings,
            self.plan.factory.create(),
            on_ready=on_ready,
            on_ended=on_ended,
            on_death=on_death,
        )

    def _supervisor_died(self, cause: BaseException | None) -> None:
        # fail closed: without a supervisor a death would go unseen
        if cause is None:
            return
        self.inflight.restart_after = None
        fault = self._fault("supervise", cause)
        if self.inflight.poison(fault):
            logger.error(
                "the supervisor of %s died: %s", self.plan.name, fault.describe(), exc_info=cause
            )

    def _fault(self, stage: str, cause: BaseException) -> Fault:
        return Fault(
            scope="engine",
            stage=stage,
            worker=None,
            epoch=None,
            cause=cause,
            at=asyncio.get_running_loop().time(),
            fault_id=f"{self.plan.name}-{self.inflight.generation}-{stage.replace(' ', '-')}",
        )


def _looked_on(points: Points, deployment: str, worker: str, on_death: OnDeath) -> OnDeath:
    def ended_here(cause: BaseException | None) -> None:
        points(Passage(point=Point.WORKER_ENDED, deployment=deployment, worker=worker, error=cause))
        on_death(cause)

    points(Passage(point=Point.WORKER_STARTED, deployment=deployment, worker=worker))
    return ended_here
