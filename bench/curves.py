"""Whether costs grow: CPU per request over slots, queue length, deployments and uptime.

All in one process, over a runner that answers at once, so that what is left is our own. Writes
`results/curves.csv` and prints it. A curve is flat when its last point is near its first.
"""

import asyncio
import csv
import gc
import resource
import time
from collections.abc import AsyncGenerator, Sequence

import uvloop

from bench.machine import HERE
from orchestrator.errors import WorkerHungError
from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.plan import DeploymentPlan
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import Abilities, SlotFactory
from orchestrator.runners.lease import Lease, Step
from orchestrator.sdk import Orchestrator
from orchestrator.stream import TokenStream
from orchestrator.wiring import System

SLOTS = (8, 64, 512, 4096)
QUEUED = (10, 100, 1_000, 10_000, 100_000)
DEPLOYMENTS = (1, 10, 100)
BLOCKS = 4
"""Of requests one after the other on one system: what uptime costs."""
PER_POINT = 3_000
REPEATS = 3


class AtOnce:
    """Answers with one token."""

    @property
    def abilities(self) -> Abilities:
        return Abilities()

    async def start(self) -> None:
        pass

    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        lease.arm(Step.FIRST_TOKEN)
        await asyncio.sleep(0)  # a provider answers in a later turn
        yield TokenChunk(request.model)
        yield Finished(FinishReason.STOP)

    async def closed(self) -> BaseException:
        return await asyncio.get_running_loop().create_future()

    def hung(self, cause: WorkerHungError) -> None:
        pass

    async def aclose(self) -> None:
        pass


def orchestrator(*, slots: int, deployments: int = 1) -> Orchestrator:
    limits = RateLimits(requests_per_minute=1e9, tokens_per_minute=1e9)
    plans = [
        DeploymentPlan(
            name=f"m{number}",
            factory=SlotFactory(create=AtOnce, model="m"),
            slots=slots,
            queue_capacity=max(QUEUED),
            limits=limits,
        )
        for number in range(deployments)
    ]
    return Orchestrator.over(System(plans, monitored=False), default_model="m0", drain=5.0)


async def cost(running: Orchestrator, *, at_once: int, total: int, models: Sequence[str]) -> float:
    """CPU microseconds a request, the best of some repeats: what disturbs only ever adds."""
    best = float("inf")
    for _ in range(REPEATS if total <= 4 * PER_POINT else 1):  # long ones are smooth by themselves
        gc.collect()
        began = time.process_time()
        for block in range(0, total, at_once):
            count = min(at_once, total - block)
            streams: list[TokenStream] = []
            for number in range(count):
                streams.append(running.submit("hi", models[number % len(models)], max_tokens=1))
                if number % 100 == 99:
                    await asyncio.sleep(0)  # as from many callers, not as one burst
            for stream in streams:
                async for _ in stream:
                    pass
        best = min(best, (time.process_time() - began) / total * 1e6)
    return best


async def over_slots() -> list[tuple[str, int, float]]:
    points: list[tuple[str, int, float]] = []
    for slots in SLOTS:
        async with orchestrator(slots=slots) as running:
            await running.system.settled()
            spent = await cost(running, at_once=min(slots, 64), total=PER_POINT, models=["m0"])
            points.append(("slots", slots, spent))
    return points


async def over_queue() -> list[tuple[str, int, float]]:
    points: list[tuple[str, int, float]] = []
    async with orchestrator(slots=8) as running:
        await running.system.settled()
        for queued in QUEUED:
            total = max(PER_POINT, queued)
            spent = await cost(running, at_once=queued, total=total, models=["m0"])
            points.append(("requests at once on 8 slots", queued, spent))
    return points


async def over_deployments() -> list[tuple[str, int, float]]:
    points: list[tuple[str, int, float]] = []
    for deployments in DEPLOYMENTS:
        async with orchestrator(slots=8, deployments=deployments) as running:
            await running.system.settled()
            names = [f"m{number}" for number in range(deployments)]
            spent = await cost(running, at_once=64, total=PER_POINT, models=names)
            points.append(("deployments", deployments, spent))
    return points


async def over_uptime() -> list[tuple[str, int, float]]:
    points: list[tuple[str, int, float]] = []
    async with orchestrator(slots=64) as running:
        await running.system.settled()
        for block in range(1, BLOCKS + 1):
            spent = await cost(running, at_once=64, total=PER_POINT, models=["m0"])
            served = block * PER_POINT * REPEATS
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            points.append(("requests served", served, spent))
            points.append(("peak MB after requests served", served, memory))
    return points


async def main() -> None:
    points: list[tuple[str, int, float]] = []
    for curve in (over_slots, over_deployments, over_uptime, over_queue):
        for point in await curve():
            print(f"{point[0]:32} {point[1]:>8} {point[2]:8.1f}", flush=True)
            points.append(point)
    path = HERE / "results" / "curves.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("curve", "at", "CPU us per request, or MB"))
        for curve, at, value in points:
            writer.writerow((curve, at, f"{value:.1f}"))


if __name__ == "__main__":
    uvloop.run(main())
