"""The first step after a load has a budget of its own, and only that one."""

import asyncio

from orchestrator.plan import DeploymentPlan
from orchestrator.runners.lease import Lease, Step, StepLimits
from orchestrator.runners.torch.runner import factory
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.sdk import Orchestrator
from orchestrator.wiring import System
from tests.fakes import model_host
from tests.runners.torch.asking import answer, request

LIMITS = StepLimits(first_step=30.0, first_token=0.1, inter_token=30.0)


def plan() -> DeploymentPlan:
    made = factory(
        TorchSettings(model="fake"), on_progress=lambda _: None, program=model_host.PROGRAM
    )
    return DeploymentPlan(name="m", factory=made, slots=1, steps=LIMITS)


async def test_only_the_first_step_after_a_load_may_take_as_long_as_its_own_budget() -> None:
    slow = "slow"  # five times the budget of an ordinary first token
    async with (
        asyncio.timeout(20),  # two hosts are started one after the other
        Orchestrator.over(System([plan()]), default_model="m", drain=0.0) as orchestrator,
    ):
        first, second = orchestrator.submit(slow), orchestrator.submit(slow)
        answers = [await first, await second]

    assert [answer.text for answer in answers] == ["slow", "slow"]
    assert [attempt.outcome for attempt in first.attempts] == ["done"]
    # its host is killed, and what it asks again is the first step of the next one
    assert [attempt.outcome for attempt in second.attempts] == ["worker_lost", "done"]
    assert "0.1 s in step: first token" in (second.attempts[0].error or "")


async def test_whoever_waits_beside_the_first_step_has_the_usual_budget_from_then_on() -> None:
    made = plan().factory
    runners = [made.create(), made.create()]
    missed = asyncio.Event()
    lease = Lease(LIMITS, lambda _: missed.set())
    try:
        async with asyncio.timeout(5):
            await asyncio.gather(*(runner.start() for runner in runners))
            # the host is at the first one while the second waits, and stops before it
            freezing = asyncio.create_task(answer(runners[0], request("freeze")))
            waiting = asyncio.create_task(answer(runners[1], request("wait"), lease))
            await missed.wait()
    finally:
        await made.aclose()
    await asyncio.gather(freezing, waiting, return_exceptions=True)

    assert lease.missed is Step.FIRST_TOKEN
