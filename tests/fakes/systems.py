"""A real system over scripted runners, and requests for it."""

import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

from orchestrator.accounts import Accounts
from orchestrator.actors.supervisor import Supervision
from orchestrator.channel import Channel
from orchestrator.errors import OrchestratorError
from orchestrator.events import Ending, Failed, Finished
from orchestrator.plan import BreakerSettings, DeploymentPlan, QueueSettings, RoutePlan
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import Message, Priority, PriorityRequest, SamplingParams
from orchestrator.runners.lease import StepLimits
from orchestrator.wiring import System
from tests.fakes.scripted import Stage

_numbers = itertools.count()


def make_request(
    model: str = "m",
    *,
    priority: Priority = Priority.NORMAL,
    held: bool = False,
    timeout: float | None = None,
    idempotent: bool = True,
    request_id: str | None = None,
    max_tokens: int | None = None,
    capacity_bytes: int | None = None,
    caller: str = "",
    extra: Mapping[str, object] | None = None,
    n: int = 1,
) -> PriorityRequest:
    return PriorityRequest(
        request_id=request_id or f"r{next(_numbers)}",
        model=model,
        messages=[Message("user", "hi")],
        sampling=SamplingParams(max_tokens=max_tokens, n=n),
        extra=extra or {},
        channel=Channel(held=held, capacity_bytes=capacity_bytes),
        priority=priority,
        timeout=timeout,
        idempotent=idempotent,
        caller=caller,
    )


class Settings(TypedDict, total=False):
    """What a test may set of every plan."""

    slots: int
    queue_capacity: int
    queue: QueueSettings
    concurrency: tuple[int, int]
    limits: RateLimits
    retry: RetrySettings
    breaker: BreakerSettings
    steps: StepLimits
    timeout: float
    start_timeout: float
    supervision: Supervision


@dataclass
class Answer:
    text: str
    ending: Ending


async def read(request: PriorityRequest) -> Answer:
    """Reads a request to its end."""
    text = ""
    while True:
        chunks, ending = await request.channel.receive()
        text += "".join(chunk.text for chunk in chunks)
        if ending is not None:
            return Answer(text, ending)


async def ask(system: System, request: PriorityRequest) -> Answer:
    """Submits a request and reads it to its end."""
    system.router.submit(request)
    return await read(request)


async def ask_all(system: System, requests: Sequence[PriorityRequest]) -> list[Answer]:
    """Submits all at once, then reads one after the other."""
    for request in requests:
        system.router.submit(request)
    return [await read(request) for request in requests]


async def error_of(system: System, request: PriorityRequest) -> OrchestratorError:
    """Submits a request that fails."""
    ending = (await ask(system, request)).ending
    assert isinstance(ending, Failed)
    return ending.error


def codes(answers: Sequence[Answer]) -> Counter[str]:
    """How many ended how: `ok`, or the error's code."""
    return Counter(
        "ok" if isinstance(answer.ending, Finished) else answer.ending.error.code
        for answer in answers
    )


def assert_at_rest(system: System, slots: int) -> None:
    """Every slot is idle, every permit and probe is back, nobody waits."""
    for health in system.health():
        assert (health.live_slots, health.queued, health.inflight) == (slots, 0, 0)
    for deployment in system.deployments.values():
        assert deployment.gates.limiter.outstanding == 0
        assert deployment.gates.breaker._probing == 0


@contextlib.asynccontextmanager
async def running(
    stages: Mapping[str, Stage],
    routes: Mapping[str, RoutePlan | Sequence[str]] | None = None,
    *,
    ready: bool = True,
    monitored: bool = False,
    accounts: Accounts | None = None,
    **settings: Unpack[Settings],
) -> AsyncGenerator[System]:
    """A started system with a deployment per stage, ready if that is wanted; closed at the end."""
    plans = [
        DeploymentPlan(
            name=name,
            factory=stage.factory(),
            context=stage.context,
            prefill=stage.prefill,
            **settings,
        )
        for name, stage in stages.items()
    ]
    system = System(plans, routes, monitored=monitored, accounts=accounts)
    system.start()
    try:
        if ready:
            await system.settled()
        yield system
    finally:
        await system.aclose()
