"""Looks whether anything grows with the number of streams: `python -m tests.torture.leaks`.

Ten thousand streams through the SDK, and a fifth as many over HTTP, against a provider on loopback
and a model host in a process; a third of the callers go away at a random point. At the start and
after each third everything that could leak is counted at rest. `make leaks N=10000` runs it; it
exits with 1 if something grew.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import uvloop
from rich.console import Console

from orchestrator.gateway.app import Gateway
from orchestrator.gateway.listener import Listener, bind
from orchestrator.gateway.screen import plain_console
from orchestrator.plan import DeploymentPlan
from orchestrator.runners.remote.openai import factory as remote_factory
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.torch.runner import factory as local_factory
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.sdk import Orchestrator
from orchestrator.wiring import System
from tests.fakes import model_host
from tests.fakes.sse_server import SseServer
from tests.torture.counts import Count, count_now, growth, kib_per_thousand, objects_alive, table
from tests.torture.traffic import STALLED, WHOLE, through_gateway, through_sdk

CALLERS = 32
READING_THREADS = 4
SLOTS = 8
GATEWAY_SHARE = 5
"""One stream over HTTP for so many through the SDK."""
WARM_UP_SHARE = 10
"""One stream before the first count for so many after it: pools fill, code is loaded."""
REST_SECONDS = 30.0


@dataclass(slots=True, eq=False, kw_only=True)
class Subject:
    """All that runs in this process."""

    providers: tuple[SseServer, ...]
    system: System
    orchestrator: Orchestrator
    url: str
    went: Counter[str] = field(default_factory=Counter[str])
    streams: int = 0
    alive_before: int = 0

    async def drive(self, streams: int) -> None:
        """Lets so many streams pass through the SDK, and a share of that over HTTP."""
        seed = self.streams
        self.went += await through_sdk(self.orchestrator, streams, CALLERS, seed)
        over_http = streams // GATEWAY_SHARE
        self.went += await through_gateway(self.url, over_http, CALLERS, seed)
        self.streams += streams + over_http

    async def count(self) -> Count:
        """Waits until nothing runs any more and counts what is left."""
        async with asyncio.timeout(REST_SECONDS):
            tasks = await self._rest()
        return count_now(
            self.streams,
            tasks=tasks,
            connections=self._kept_connections,
            alive_before=self.alive_before,
        )

    @property
    def _kept_connections(self) -> int:
        """Those that are kept for the next request; each has a task of the provider."""
        return sum(provider.open_connections for provider in self.providers)

    async def _rest(self) -> int:
        """Returns the number of tasks, once it stays as it is and no request is left."""
        seen = -1
        while True:
            for provider in self.providers:
                provider.requests.clear()  # its record would be the leak
            gc.collect()
            # the other side of a closed connection learns of it through the kernel
            await asyncio.sleep(0.05)
            tasks = len(asyncio.all_tasks()) - self._kept_connections
            if tasks == seen and not any(health.inflight for health in self.system.health()):
                return tasks
            seen = tasks


@contextlib.asynccontextmanager
async def running_subject() -> AsyncGenerator[Subject]:
    """Starts everything and ends it."""
    await _start_threads()
    async with SseServer(WHOLE) as provider, SseServer(STALLED) as stalled:
        local = local_factory(
            TorchSettings(model="fake"), on_progress=lambda _: None, program=model_host.PROGRAM
        )
        plans = [
            DeploymentPlan(name="local", factory=local, slots=SLOTS),
            _remote_plan("remote", provider),
            _remote_plan("stalled", stalled),
        ]
        system = System(plans)
        gateway = Gateway(system, max_body=1 << 20, access_log=False)
        orchestrator = Orchestrator.over(system, default_model="remote", drain=5.0)
        with bind("127.0.0.1", 0) as sock:
            listener = Listener(gateway, sock)
            async with orchestrator:
                await system.settled()
                serving = asyncio.create_task(listener.run_until_closed())
                await listener.listening.wait()
                yield Subject(
                    providers=(provider, stalled),
                    system=system,
                    orchestrator=orchestrator,
                    url=f"http://127.0.0.1:{listener.port}",
                )
                listener.close()
                await serving


async def _start_threads() -> None:
    """All that callers will read on: a pool that grows on demand would look like a leak."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(READING_THREADS))
    together = threading.Barrier(READING_THREADS)
    await asyncio.gather(*(asyncio.to_thread(together.wait) for _ in range(READING_THREADS)))


def _remote_plan(name: str, provider: SseServer) -> DeploymentPlan:
    settings = OpenAISettings(base_url=provider.url, model="big", provider=name)
    return DeploymentPlan(name=name, factory=remote_factory(settings), slots=SLOTS)


async def measure(streams: int, console: Console) -> tuple[list[Count], Counter[str]]:
    """Counts after a warm-up and after each third."""
    alive_before = objects_alive()
    async with running_subject() as subject:
        subject.alive_before = alive_before
        await subject.drive(max(CALLERS, streams // WARM_UP_SHARE))
        counts = [await subject.count()]
        for third in range(1, 4):
            begin = time.perf_counter()
            await subject.drive(streams // 3)
            counts.append(await subject.count())
            seconds = time.perf_counter() - begin
            console.print(
                f"{third}/3: {subject.streams} streams, the last third in {seconds:.1f} s"
            )
    return counts, subject.went


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="through the SDK")
    options = parser.parse_args()
    logging.getLogger("orchestrator").setLevel(logging.WARNING)
    console = plain_console()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        counts, went = runner.run(measure(options.streams, console))
    console.print(table(counts))
    console.print(f"resident memory: {kib_per_thousand(counts[1:]):.0f} KiB per 1000 streams")
    for how, number in sorted(went.items()):
        console.print(f"{number:7} {how}")
    found = growth(counts)
    for line in found:
        console.print(f"GREW {line}", style="red")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
