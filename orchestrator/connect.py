"""Whether every deployment of a configuration could serve: asked once, with a few tokens.

A deployment is looked at in steps: it can be reached, its key is taken, it has the model, a first
token comes. One small request takes all of them; what it fails with tells which. A model on this
machine is only looked for, unless it is to be loaded.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.channel import Channel
from orchestrator.errors import (
    ConfigError,
    OrchestratorError,
    RequestError,
    UpstreamAuthenticationError,
    UpstreamConnectError,
    UpstreamNotFoundError,
    UpstreamPermissionError,
    UpstreamProtocolError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamTimeoutError,
    UpstreamTruncatedError,
    WorkerError,
    WorkerStartError,
)
from orchestrator.plan import DeploymentPlan
from orchestrator.request import Message, PriorityRequest, SamplingParams
from orchestrator.runners.lease import Lease, Step

STEPS = ("reachable", "key", "model", "first token")
MAX_TOKENS = 16
"""OpenAI's Responses API wants at least that many; the answer is left after its first piece."""
EXPLAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Meaning:
    """What an error says of the steps."""

    step: str
    """The one that failed."""
    passed: int
    """How many are known to be passed."""
    advice: str


MEANINGS: Mapping[type[OrchestratorError], Meaning] = {
    UpstreamConnectError: Meaning("reachable", 0, "check base_url, the network and ca_file"),
    UpstreamAuthenticationError: Meaning("key", 1, "check api_key"),
    UpstreamPermissionError: Meaning("key", 1, "allow this key the model, or take another"),
    UpstreamNotFoundError: Meaning("model", 1, "check model and base_url"),
    UpstreamQuotaExceededError: Meaning("first token", 2, "top up the provider's account"),
    UpstreamRateLimitedError: Meaning("first token", 2, "wait, or raise the account's limits"),
    UpstreamTimeoutError: Meaning("first token", 1, "try again, or give it more time"),
    UpstreamTruncatedError: Meaning("first token", 1, "check base_url and kind"),
    UpstreamProtocolError: Meaning("first token", 1, "check base_url and kind"),
    RequestError: Meaning("first token", 2, "check kind, extra_body and drop_params"),
    ConfigError: Meaning("model", 0, "check model"),
    WorkerError: Meaning("first token", 0, "check model, dtype, device and the memory"),
    OrchestratorError: Meaning("first token", 1, "ask the provider, or look into the log"),
}
"""By class; the nearest base class counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is known of one deployment."""

    deployment: str
    model: str
    local: bool
    steps: Mapping[str, bool | None]
    """By step: passed, failed, or not known because nothing looked."""
    first_token: float | None = None
    """Seconds to the first piece of the answer, connecting included."""
    failed: str | None = None
    """The step that failed."""
    error: OrchestratorError | None = None
    advice: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing has failed."""
        return self.error is None


async def connect(
    plans: Sequence[DeploymentPlan], *, limit: float, load: bool = False
) -> list[Finding]:
    """Looks at all deployments at once, and closes them.

    Args:
        plans: The deployments, not running.
        limit: Seconds for each.
        load: Whether local models are loaded and asked as well; each then has the start timeout
            of its deployment besides.
    """
    async with asyncio.TaskGroup() as group:
        looks = [group.create_task(_look(plan, limit=limit, load=load)) for plan in plans]
    return [look.result() for look in looks]


async def _look(plan: DeploymentPlan, *, limit: float, load: bool) -> Finding:
    probe = _Probe(plan)
    seconds = limit + plan.start_timeout if probe.local and load else limit
    try:
        async with asyncio.timeout(seconds):
            if probe.local:
                await probe.find()
            if load or not probe.local:
                await probe.ask()
        return probe.finding()
    except TimeoutError:
        return probe.finding(probe.late(seconds))
    except UpstreamNotFoundError as error:
        return probe.finding(await probe.explained(error))
    except OrchestratorError as error:
        return probe.finding(error)
    finally:
        await probe.aclose()


class _Probe:
    """One deployment while it is looked at."""

    def __init__(self, plan: DeploymentPlan) -> None:
        self._plan = plan
        self._runner = plan.factory.create()
        self._request = PriorityRequest(
            request_id=f"check-{plan.name}",
            model=plan.name,
            messages=[Message("user", "Say hello.")],
            sampling=SamplingParams(max_tokens=MAX_TOKENS),
            channel=Channel(),
        )
        self._passed: set[str] = set()
        self._asked = False
        self._step: Step | None = None
        """What it waited for when it was over."""
        self._first_token: float | None = None

    @property
    def local(self) -> bool:
        """Whether the model is on this machine."""
        return self._runner.abilities.local

    async def find(self) -> None:
        """Looks for a local model."""
        await self._plan.factory.find(self._request)
        self._passed.add("model")

    async def ask(self) -> None:
        """Sends the request and waits for the first piece of its answer.

        Raises:
            OrchestratorError: What any of the steps failed with.
        """
        await self._fetch_key()
        await self._runner.start()
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        scope = asyncio.timeout(None)
        lease = Lease(self._plan.steps, lambda _: scope.reschedule(loop.time()))
        self._asked = True
        try:
            async with scope:
                await self._first_piece(lease)
        except TimeoutError:
            late = self.late(lease.budget)
            raise late from None
        self._first_token = loop.time() - began_at
        self._passed.update(STEPS[-1:] if self.local else STEPS)

    async def _first_piece(self, lease: Lease) -> None:
        try:
            async with contextlib.aclosing(self._runner.generate(self._request, lease)) as stream:
                await anext(stream)
        finally:
            self._step = lease.step
            lease.disarm()

    async def explained(self, error: UpstreamNotFoundError) -> OrchestratorError:
        """Returns the error, or what the provider's own list of models says of it."""
        try:
            async with asyncio.timeout(EXPLAIN_SECONDS):
                await self._plan.factory.find(self._request)
        except UpstreamNotFoundError as better:
            return better
        except (OrchestratorError, TimeoutError):
            pass  # a provider without a list that can be had: nothing to add
        return error

    def late(self, limit: float) -> OrchestratorError:
        """Returns what it means that so many seconds were over."""
        within = f"within {limit:g} s"
        if not self._asked:
            if "model" in self._passed:
                return WorkerStartError(f"the model was not loaded {within}")
            if self.local:
                return ConfigError(f"the model was not found {within}")
            return UpstreamAuthenticationError(f"no key was fetched {within}")
        if self._step is Step.CONNECT:
            return UpstreamConnectError(f"no connection stood {within}")
        return UpstreamTimeoutError(f"no token came {within}")

    def finding(self, error: OrchestratorError | None = None) -> Finding:
        """Returns what is known now.

        Args:
            error: What it failed with.
        """
        meaning = None
        if error is not None:
            meaning = next(MEANINGS[kind] for kind in type(error).__mro__ if kind in MEANINGS)
            if self._asked and not self.local:
                self._passed.update(STEPS[: meaning.passed])
        failed = None if meaning is None else meaning.step
        known = {step: True if step in self._passed else None for step in STEPS}
        return Finding(
            deployment=self._plan.name,
            model=self._plan.factory.model,
            local=self.local,
            steps=known if failed is None else known | {failed: False},
            first_token=self._first_token,
            failed=failed,
            error=error,
            advice=None if meaning is None else meaning.advice,
        )

    async def aclose(self) -> None:
        """Frees everything of the deployment."""
        await self._runner.aclose()
        await self._plan.factory.aclose()

    async def _fetch_key(self) -> None:
        """Does what the deployment's session would do.

        Raises:
            UpstreamAuthenticationError: There is no key.
        """
        credential = self._plan.credential
        if credential is None:
            return
        try:
            credential.key = await credential.source.fetch()
        except OrchestratorError as error:
            raise UpstreamAuthenticationError(f"there is no key: {error.message}") from error
