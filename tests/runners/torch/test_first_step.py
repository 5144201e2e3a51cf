"""The first step after a load has a budget of its own, and a hang is counted over all streams."""

import asyncio
import contextlib

from orchestrator.plan import DeploymentPlan
from orchestrator.runners.lease import Lease, Step, StepLimits
from orchestrator.runners.torch.runner import TorchRunner, factory
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


async def test_a_host_that_hangs_is_found_though_each_stream_leaves_before_its_own_budget() -> None:
    limits = StepLimits(first_step=30.0, first_token=2.0, inter_token=2.0)
    made = plan().factory
    runner = made.create()
    missed: list[Lease] = []
    try:
        async with asyncio.timeout(20):
            await runner.start()
            assert (await answer(runner, request("say 1")))[0]  # the first step is done
            with contextlib.suppress(TimeoutError):  # no caller waits for more than half a budget
                async with asyncio.timeout(1.0):
                    await answer(runner, request("freeze"), Lease(limits, missed.append))
            while not missed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.5):
                        await answer(runner, request("say 1"), Lease(limits, missed.append))
    finally:
        await made.aclose()

    assert [lease.missed for lease in missed] == [Step.FIRST_TOKEN]


async def test_a_host_that_works_owes_nothing_however_many_streams_leave_it() -> None:
    made = plan().factory
    runner = made.create()
    assert isinstance(runner, TorchRunner)
    try:
        async with asyncio.timeout(10):
            await runner.start()
            process = runner.process
            assert process is not None
            for _ in range(20):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.001):
                        await answer(runner, request("wait"))
            await answer(runner, request("say 1"))  # told behind all the cancels, so answered last
            owed = process.silence
    finally:
        await made.aclose()

    assert owed == 0.0
