"""A lease expires for missing progress, and for nothing else."""

import asyncio
import threading

from orchestrator.runners.lease import Lease, Step, StepLimits


async def test_a_step_without_progress_expires_once() -> None:
    expired: list[Lease] = []
    heard = asyncio.Event()

    def on_expired(lease: Lease) -> None:
        expired.append(lease)
        heard.set()

    lease = Lease(StepLimits(first_token=0.05), on_expired)
    begin = asyncio.get_running_loop().time()

    lease.arm(Step.FIRST_TOKEN)
    async with asyncio.timeout(5):
        await heard.wait()

    assert expired == [lease]
    assert asyncio.get_running_loop().time() - begin >= 0.05
    lease.disarm()


async def test_progress_keeps_a_lease_alive_for_ever() -> None:
    expired: list[Lease] = []
    lease = Lease(StepLimits(inter_token=0.2), expired.append)
    lease.arm(Step.NEXT_TOKEN)

    loop, later = asyncio.get_running_loop(), asyncio.Event()
    for tick in range(1, 12):
        loop.call_later(tick * 0.05, lease.progress)
    loop.call_later(0.6, later.set)
    async with asyncio.timeout(5):
        await later.wait()

    assert expired == []
    lease.disarm()


async def test_a_disarmed_lease_never_expires_afterwards() -> None:
    expired: list[Lease] = []
    lease = Lease(StepLimits(connect=0.01), expired.append)
    lease.arm(Step.CONNECT)
    lease.disarm()

    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, later.set)
    async with asyncio.timeout(5):
        await later.wait()

    assert expired == []


async def test_a_shorter_step_pulls_the_timer_in() -> None:
    heard = asyncio.Event()
    lease = Lease(StepLimits(first_token=60, inter_token=0.02), lambda _: heard.set())
    lease.arm(Step.FIRST_TOKEN)

    lease.arm(Step.NEXT_TOKEN)
    async with asyncio.timeout(5):
        await heard.wait()

    assert lease.expired
    lease.disarm()


async def test_an_expired_lease_tells_what_it_missed_after_its_runner_disarmed_it() -> None:
    heard = asyncio.Event()
    lease = Lease(StepLimits(first_token=0.02), lambda _: heard.set())
    lease.arm(Step.FIRST_TOKEN)
    async with asyncio.timeout(5):
        await heard.wait()

    lease.disarm()

    assert lease.missed is Step.FIRST_TOKEN
    assert lease.budget == 0.02


async def test_a_worker_is_not_blamed_for_a_pause_of_this_process() -> None:
    expired: list[Lease] = []
    lease = Lease(StepLimits(inter_token=0.1), expired.append)
    lease.arm(Step.NEXT_TOKEN)

    threading.Event().wait(0.5)  # the loop stands still, the lease's time passes
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert expired == []
    lease.disarm()
