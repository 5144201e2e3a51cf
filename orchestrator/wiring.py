"""From configuration to what runs: deployments with their actors, and the routes over them.

A `DeploymentPlan` is a deployment's part of the configuration in the words of the inner settings;
`System` builds everything from plans. A test or a simulation makes its own plans, with a runner of
its own, and gets the very same system.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypedDict, assert_never

from orchestrator import config as sections
from orchestrator import metrics
from orchestrator.actors.engine import Engine
from orchestrator.actors.messages import AttemptEnded, Poison, Shutdown, Wake
from orchestrator.actors.messages import Gone as GoneMessage
from orchestrator.actors.monitor import LoopMonitor
from orchestrator.actors.runtime import OnDeath, Ref, ended, kill, tell
from orchestrator.actors.session import Session
from orchestrator.actors.supervisor import Supervision, Supervisor
from orchestrator.actors.worker import RemoteWorker, WorkerSettings
from orchestrator.attempt import Gates
from orchestrator.config import Config
from orchestrator.errors import LoopBlockedError
from orchestrator.inflight import Fault, Inflight, Poisoned, StateName, Ticket
from orchestrator.points import Passage, Point, Points
from orchestrator.policies.breaker import Breaker
from orchestrator.policies.queue import PriorityQueue
from orchestrator.policies.rate_limit import RateLimiter, RateLimits
from orchestrator.policies.retry import RetryBudget, RetryPolicy, RetrySettings
from orchestrator.reading.credentials import Fetched, Google, OAuth2
from orchestrator.reading.presets import PRESETS
from orchestrator.reading.references import Secret
from orchestrator.request import PriorityRequest
from orchestrator.routing import Deployment, Route, Router
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import StepLimits
from orchestrator.runners.remote.credentials import Credential, KeySource, file_source, text_in

logger = logging.getLogger(__name__)

BREAKER_LEVELS = {"closed": 0.0, "half-open": 1.0, "open": 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """See `policies.breaker.Breaker`."""

    failure_threshold: int = 10
    open_for: float = 30.0
    """Seconds."""
    probes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentPlan:
    """All that a deployment is built from."""

    name: str
    factory: SlotFactory
    slots: int = 8
    queue_capacity: int = 256
    limits: RateLimits = field(default_factory=RateLimits)
    retry: RetrySettings = field(default_factory=RetrySettings)
    breaker: BreakerSettings = field(default_factory=BreakerSettings)
    steps: StepLimits = field(default_factory=StepLimits)
    timeout: float = 600.0
    """Seconds that a request has, unless it says so itself."""
    start_timeout: float = 600.0
    """Seconds that a runner may take to get ready."""
    supervision: Supervision = field(default_factory=Supervision)
    credential: Credential | None = None
    """The key of its slots, if it may change while they run."""


OnProgress = Callable[[str, str], None]
"""(deployment, what it is doing): steps of a model that is being loaded."""


def _log_progress(deployment: str, doing: str) -> None:
    logger.info("%s: %s", deployment, doing)


def plan_deployments(
    config: Config, on_progress: OnProgress = _log_progress
) -> tuple[list[DeploymentPlan], dict[str, Sequence[str]]]:
    """Turns a configuration into plans and routes.

    Raises:
        ConfigError: A runner can't be made from it.
    """
    plans = [_plan(name, section, on_progress) for name, section in config.deployments.items()]
    return plans, {name: route.deployments for name, route in config.routes.items()}


def _plan(name: str, section: sections.Deployment, on_progress: OnProgress) -> DeploymentPlan:
    timeouts, rules = section.timeouts, section.supervision
    credential = _credential(section.runner)
    return DeploymentPlan(
        name=name,
        factory=_factory(name, section.runner, on_progress, credential),
        credential=credential,
        slots=section.slots,
        queue_capacity=section.queue.capacity,
        limits=RateLimits(
            requests_per_minute=section.limits.requests_per_minute,
            tokens_per_minute=section.limits.tokens_per_minute,
        ),
        retry=RetrySettings(
            max_attempts=section.retry.max_attempts,
            initial_backoff=section.retry.initial_backoff,
            max_backoff=section.retry.max_backoff,
        ),
        breaker=BreakerSettings(
            failure_threshold=section.breaker.failure_threshold,
            open_for=section.breaker.open_for,
            probes=section.breaker.probes,
        ),
        steps=StepLimits(
            connect=timeouts.connect,
            first_token=timeouts.first_token,
            inter_token=timeouts.inter_token,
        ),
        timeout=timeouts.total,
        start_timeout=rules.start_timeout,
        supervision=Supervision(
            max_restarts=rules.max_restarts,
            within=rules.within,
            initial_backoff=rules.initial_backoff,
            max_backoff=rules.max_backoff,
            on_poison=rules.on_poison,
        ),
    )


def _factory(
    name: str, runner: sections.Kind, on_progress: OnProgress, credential: Credential | None
) -> SlotFactory:
    # the one place for lazy imports: a runner's libraries are loaded only if it is configured
    match runner:
        case sections.Torch():
            from orchestrator.runners.torch.runner import factory as torch_factory  # noqa: PLC0415
            from orchestrator.runners.torch.settings import TorchSettings  # noqa: PLC0415

            return torch_factory(
                TorchSettings(
                    model=runner.model,
                    dtype=runner.dtype,
                    device=runner.device,
                    threads=runner.threads,
                    trust_remote_code=runner.trust_remote_code,
                    revision=runner.revision,
                ),
                on_progress=lambda doing: on_progress(name, doing),
            )
        case sections.OpenAI():
            from orchestrator.runners.remote import openai  # noqa: PLC0415

            preset = PRESETS[runner.kind]
            return openai.factory(
                openai.OpenAISettings(
                    organization=runner.organization,
                    project=runner.project,
                    azure=runner.kind == "azure",
                    api_version=runner.api_version,
                    max_tokens_field=runner.max_tokens_field,
                    renamed=preset.renamed,
                    unsupported=preset.unsupported,
                    stream_options=preset.stream_options,
                    **_common(name, runner, credential),
                )
            )
        case sections.OpenAIResponses():
            from orchestrator.runners.remote import responses  # noqa: PLC0415

            return responses.factory(
                responses.OpenAISettings(
                    organization=runner.organization,
                    project=runner.project,
                    **_common(name, runner, credential),
                )
            )
        case sections.Ollama():
            from orchestrator.runners.remote import ollama  # noqa: PLC0415

            return ollama.factory(ollama.RemoteSettings(**_common(name, runner, credential)))
        case sections.Anthropic():
            from orchestrator.runners.remote import anthropic  # noqa: PLC0415

            return anthropic.factory(
                anthropic.AnthropicSettings(
                    version=runner.version,
                    max_tokens=runner.max_tokens,
                    **_common(name, runner, credential),
                )
            )
        case sections.Gemini():
            from orchestrator.runners.remote import gemini  # noqa: PLC0415

            return gemini.factory(
                gemini.GeminiSettings(
                    project=runner.project,
                    region=runner.region,
                    **_common(name, runner, credential),
                )
            )
        case _:
            assert_never(runner)


class _Common(TypedDict):
    """What the settings of all remote runners have in common, by their names."""

    base_url: str
    model: str
    api_key: Callable[[], str] | None
    renew: Callable[[str], Awaitable[None]] | None
    bearer: bool
    headers: Mapping[str, str]
    extra_body: Mapping[str, object]
    drop_params: bool
    provider: str
    ca_file: str | None
    client_cert: tuple[str, str | None] | None
    verify: bool


def _common(name: str, runner: sections.Remote, credential: Credential | None) -> _Common:
    api_key = runner.api_key.reveal if isinstance(runner.api_key, Secret) else None
    return {
        "base_url": runner.base_url,
        "model": runner.model,
        "api_key": credential.read if credential else api_key,
        "renew": credential.renew if credential else None,
        "bearer": credential.source.token if credential else False,
        "headers": {key: value.reveal() for key, value in runner.headers.items()},
        "extra_body": runner.extra_body,
        "drop_params": runner.drop_params,
        "provider": name,
        "ca_file": _path(runner.ca_file),
        "client_cert": (
            (str(runner.client_cert), _path(runner.client_key)) if runner.client_cert else None
        ),
        "verify": runner.verify,
    }


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _credential(runner: sections.Kind) -> Credential | None:
    """Returns what holds a key that may change; None for one that can't, or none at all."""
    match runner:
        case sections.Remote(api_key=Secret(path=Path() as path) as secret):
            return Credential(file_source(path), secret.reveal())
        case sections.Remote(api_key=Fetched() as fetched):
            return Credential(_key_source(fetched))
        case _:
            return None


def _key_source(fetched: Fetched) -> KeySource:
    match fetched.way:
        case OAuth2() as client:
            from orchestrator.runners.remote import token_endpoint  # noqa: PLC0415

            secret = client.client_secret
            return token_endpoint.client_credentials_source(
                token_endpoint.TokenEndpoint(url=client.token_url, ca_file=_path(client.ca_file)),
                token_endpoint.ClientCredentials(
                    client_id=client.client_id,
                    client_secret=partial(text_in, secret.path) if secret.path else secret.reveal,
                    scope=client.scope,
                    params=client.params,
                    auth=client.auth,
                ),
            )
        case Google() as account:
            from orchestrator.runners.remote.google_account import google_source  # noqa: PLC0415

            return google_source(account.file, account.scopes, _path(account.ca_file))
        case command:
            from orchestrator.runners.remote.key_command import command_source  # noqa: PLC0415

            return command_source(command, fetched.ttl)


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
    queued: int
    inflight: int
    reason: str | None = None
    fault_id: str | None = None
    retry_after: float | None = None
    """Seconds until a poisoned deployment may be back; None if it isn't poisoned or stays down."""


class RunningDeployment:
    """One deployment: its registry, queue and gates, and its supervisor while it runs.

    Args:
        plan: What it is built from.
        next_epoch: Gives a number that no attempt had before; one source for the whole system.
        points: Told of the passages in it, if anybody looks on.
    """

    def __init__(
        self, plan: DeploymentPlan, next_epoch: Callable[[], int], points: Points | None = None
    ) -> None:
        self.plan = plan
        self.queue = PriorityQueue(plan.name, plan.queue_capacity)
        self.gates = Gates(
            limiter=RateLimiter(plan.limits),
            breaker=Breaker(
                plan.name,
                failure_threshold=plan.breaker.failure_threshold,
                open_for=plan.breaker.open_for,
                probes=plan.breaker.probes,
                points=points,
            ),
            retry=RetryPolicy(plan.retry, RetryBudget()),
            limits=plan.steps,
            points=points,
        )
        self.inflight = Inflight(
            deployment=plan.name,
            enqueue=self.queue.push,
            dequeue=self.queue.discard,
            on_accepted=self._accepted,
            on_gone=self._gone,
            slots=plan.slots,
            points=points,
        )
        self._next_epoch = next_epoch
        self._engine: Ref | None = None
        self._supervisor: Ref | None = None
        self._session: Ref | None = None
        self._wake = Wake()
        metrics.for_deployment(plan.name).observe(
            ready=lambda: float(self.inflight.ready),
            live_slots=lambda: float(self.inflight.live_slots),
            queued=lambda: float(len(self.queue)),
            inflight=lambda: float(len(self.inflight)),
            permits=lambda: float(self.gates.limiter.outstanding),
            breaker=lambda: BREAKER_LEVELS[self.gates.breaker.state],
            generation=lambda: float(self.inflight.generation),
        )

    @property
    def supervisor(self) -> Ref | None:
        """Its supervisor, once it was started; whoever kills it proves that this fails closed."""
        return self._supervisor

    def inspect(self, request: PriorityRequest) -> Awaitable[None] | None:
        """Refuses what this deployment can never serve: raises a `RequestError`."""
        self.gates.limiter.check(request.estimated_tokens)
        return self.plan.factory.inspect(request)

    def start(self) -> None:
        """Starts its key's session, if it has one, and the supervisor, which starts the rest."""
        if self.plan.credential is not None:
            self._start_session(self.plan.credential)
        self._supervisor = Supervisor.start(
            self.inflight,
            self.plan.supervision,
            start_engine=self._start_engine,
            start_worker=self._start_worker,
            on_death=self._supervisor_died,
        )

    def health(self) -> DeploymentHealth:
        """Reads the state; costs nothing and asks no actor."""
        state = self.inflight.state
        fault = state.fault if isinstance(state, Poisoned) else None
        return DeploymentHealth(
            name=self.plan.name,
            model=self.plan.factory.model,
            state=self.inflight.state_name,
            ready=self.inflight.ready,
            live_slots=self.inflight.live_slots,
            slots=self.plan.slots,
            generation=self.inflight.generation,
            breaker=self.gates.breaker.state,
            queued=len(self.queue),
            inflight=len(self.inflight),
            reason=fault.describe() if fault else None,
            fault_id=fault.fault_id if fault else None,
            retry_after=self.inflight.restart_after if fault else None,
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
        if self._session is not None:
            session, self._session = self._session, None
            kill(session)  # it may be waiting for a key that nobody wants any more
            await ended(session)
        await self.plan.factory.aclose()
        metrics.for_deployment(self.plan.name).forget()

    def _start_session(self, credential: Credential) -> None:
        def died(cause: BaseException | None) -> None:
            if self._session is None:  # it was ended here
                return
            logger.error(
                "the session of %s died and is started anew", self.plan.name, exc_info=cause
            )
            self._start_session(credential)

        self._session = Session.start(self.plan.name, credential, on_death=died)

    def _accepted(self) -> None:
        self.gates.retry.budget.accepted(asyncio.get_running_loop().time())
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


class System:
    """Everything that runs, on one loop.

    Args:
        plans: The deployments; each is also a route of its own name.
        routes: Further routes: deployments by name, in failover order.
        monitored: Whether a thread watches the loop; a simulated loop has no threads.
        points: Told of every passage of a point, if anybody looks on.
    """

    def __init__(
        self,
        plans: Sequence[DeploymentPlan],
        routes: Mapping[str, Sequence[str]] | None = None,
        *,
        monitored: bool = True,
        points: Points | None = None,
    ) -> None:
        self._monitored = monitored
        self._monitor: LoopMonitor | None = None
        next_epoch = itertools.count(1).__next__
        self._deployments = {
            plan.name: RunningDeployment(plan, next_epoch, points) for plan in plans
        }
        orders = dict(routes or {}) | {name: [name] for name in self._deployments}
        self.router = Router({name: self._route(name, order) for name, order in orders.items()})

    @property
    def deployments(self) -> Mapping[str, RunningDeployment]:
        """The deployments by name."""
        return self._deployments

    def start(self) -> None:
        """Starts every deployment; returns while their runners are still getting ready."""
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
        while any(not health.ready and health.state == "serving" for health in self.health()):
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
                Deployment(name=d.plan.name, inflight=d.inflight, inspect=d.inspect)
                for d in deployments
            ],
            timeout=deployments[0].plan.timeout,
        )
