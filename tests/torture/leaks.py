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
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from orchestrator import metrics
from orchestrator.channel import Channel
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.listener import Listener, bind
from orchestrator.inflight import Ticket
from orchestrator.policies.rate_limit import Permit
from orchestrator.request import PriorityRequest
from orchestrator.runners.lease import Lease
from orchestrator.runners.remote.openai import factory as remote_factory
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.torch.runner import factory as local_factory
from orchestrator.runners.torch.settings import TorchSettings
from orchestrator.runners.torch.streams import HostStream
from orchestrator.sdk import Orchestrator, TokenStream
from orchestrator.wiring import DeploymentPlan, System
from tests.fakes import model_host
from tests.fakes.sse_server import SseServer
from tests.torture.traffic import STALLED, WHOLE, through_gateway, through_sdk

OURS = (Channel, PriorityRequest, Ticket, Permit, Lease, HostStream, TokenStream)
"""Of these none may be left at rest."""
CALLERS = 32
SLOTS = 8
GATEWAY_SHARE = 5
"""One stream over HTTP for so many through the SDK."""
WARM_UP_SHARE = 10
"""One stream before the first count for so many after it: pools fill, code is loaded."""
KIB_PER_THOUSAND = 512
"""Growth of resident memory that is still noise of the allocator."""
ENOUGH_STREAMS = 3000
"""With fewer, the growth of memory says nothing."""
REST_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What there is at rest."""

    streams: int
    descriptors: int
    """Without both ends of the connections that the provider keeps open for the next request."""
    tasks: int
    threads: int
    objects: int
    gauges: dict[str, float]
    resident_kib: int


@dataclass(slots=True, eq=False, kw_only=True)
class Subject:
    """All that runs in this process."""

    providers: tuple[SseServer, ...]
    system: System
    orchestrator: Orchestrator
    url: str
    went: Counter[str] = field(default_factory=Counter[str])
    streams: int = 0

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
        return Count(
            streams=self.streams,
            descriptors=_descriptors() - 2 * self._kept_connections,
            tasks=tasks,
            threads=threading.active_count(),
            objects=sum(isinstance(thing, OURS) for thing in gc.get_objects()),
            gauges=_gauges(),
            resident_kib=_resident_kib(),
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


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _gauges() -> dict[str, float]:
    return {
        f"{sample.name}{sorted(sample.labels.values())}": sample.value
        for metric in metrics.REGISTRY.collect()
        if metric.type == "gauge"
        for sample in metric.samples
    }


def _resident_kib() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


@contextlib.asynccontextmanager
async def running_subject() -> AsyncGenerator[Subject]:
    """Starts everything and ends it."""
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


def _remote_plan(name: str, provider: SseServer) -> DeploymentPlan:
    settings = OpenAISettings(base_url=provider.url, model="big", provider=name)
    return DeploymentPlan(name=name, factory=remote_factory(settings), slots=SLOTS)


async def measure(streams: int, console: Console) -> tuple[list[Count], Counter[str]]:
    """Counts after a warm-up and after each third."""
    async with running_subject() as subject:
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


def growth(counts: list[Count]) -> list[str]:
    """What grew from the first count to the last, a line each."""
    first, last = counts[0], counts[-1]
    found = [
        f"{name}: {before} at first, {after} at last"
        for name, before, after in (
            ("file descriptors", first.descriptors, last.descriptors),
            ("tasks", first.tasks, last.tasks),
            ("threads", first.threads, last.threads),
            ("requests and what belongs to them", 0, last.objects),
        )
        if after > before
    ]
    found += [
        f"gauge {name}: {value} at first, {last.gauges.get(name)} at last"
        for name, value in first.gauges.items()
        if last.gauges.get(name) != value
    ]
    slope = kib_per_thousand(counts[1:])
    if last.streams >= ENOUGH_STREAMS and slope > KIB_PER_THOUSAND:
        found.append(f"resident memory: {slope:.0f} KiB more with each 1000 streams")
    return found


def kib_per_thousand(counts: list[Count]) -> float:
    """Slope of the resident memory from the first of these counts to the last."""
    first, last = counts[0], counts[-1]
    return 1000 * (last.resident_kib - first.resident_kib) / max(1, last.streams - first.streams)


def table(counts: list[Count]) -> Table:
    """A row for each count."""
    columns = ("streams", "descriptors", "tasks", "threads", "objects", "gauges", "resident MiB")
    made = Table(*columns, title="at rest")
    for count in counts:
        busy = sum(v for name, v in count.gauges.items() if "inflight" in name or "queued" in name)
        made.add_row(
            *map(str, (count.streams, count.descriptors, count.tasks, count.threads)),
            str(count.objects),
            f"{len(count.gauges)}, {busy:g} busy",
            f"{count.resident_kib / 1024:.1f}",
        )
    return made


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000, help="through the SDK")
    options = parser.parse_args()
    logging.getLogger("orchestrator").setLevel(logging.WARNING)
    console = Console(highlight=False, soft_wrap=True)
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
