"""What there is in this process at rest, and what of it has grown."""

import gc
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from orchestrator import metrics
from orchestrator.channel import Channel
from orchestrator.inflight import Ticket
from orchestrator.policies.limits.key import Permit
from orchestrator.request import PriorityRequest
from orchestrator.runners.lease import Lease
from orchestrator.runners.torch.streams import HostStream
from orchestrator.stream import TokenStream

OURS = (Channel, PriorityRequest, Ticket, Permit, Lease, HostStream, TokenStream)
"""Of these none may be left at rest."""
KIB_PER_THOUSAND = 512
"""Growth of resident memory that is still noise of the allocator."""
ENOUGH_STREAMS = 3000
"""With fewer, the growth of memory says nothing."""


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


def objects_alive() -> int:
    """How many objects of ours there are.

    Before a run it isn't 0 where other tests ran: pytest keeps their parameters, and an error that
    was one of them and was raised keeps its traceback's frames.
    """
    gc.collect()
    return sum(isinstance(thing, OURS) for thing in gc.get_objects())


def count_now(streams: int, *, tasks: int, connections: int, alive_before: int) -> Count:
    """Counts what there is.

    Args:
        streams: Those that were asked for so far.
        tasks: Those that are left.
        connections: Those that are kept for the next request, both ends in this process.
        alive_before: Objects of ours that were there before the run.
    """
    return Count(
        streams=streams,
        descriptors=_descriptors() - 2 * connections,
        tasks=tasks,
        threads=threading.active_count(),
        objects=objects_alive() - alive_before,
        gauges=_gauges(),
        resident_kib=_resident_kib(),
    )


def growth(counts: Sequence[Count]) -> list[str]:
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


def kib_per_thousand(counts: Sequence[Count]) -> float:
    """Slope of the resident memory from the first of these counts to the last."""
    first, last = counts[0], counts[-1]
    return 1000 * (last.resident_kib - first.resident_kib) / max(1, last.streams - first.streams)


def table(counts: Sequence[Count]) -> Table:
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
