"""What a run writes down of a gateway: how it is built, and at rest whether all is back."""

from collections.abc import Mapping

from orchestrator.chaos.attendant.service import DebugDeployment, DebugState
from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.places import streams_at
from orchestrator.chaos.provider.front import Front

BURST_SHARE = 60.0


def describe(journal: Journal, one: DebugDeployment, name: str = "") -> None:
    """Writes a deployment's settings and the begin of its engine.

    Args:
        journal: Where to.
        one: What it is like.
        name: Of another one like it that begins just now; its own if that is empty.
    """
    limits: dict[str, float] = {}
    if one.aging is not None:
        limits["aging"] = one.aging
    if one.requests_per_minute is not None:
        limits["permits_burst"] = max(1.0, one.requests_per_minute / BURST_SHARE)
        limits["permits_per_second"] = one.requests_per_minute / 60.0
    journal.record(
        Kind.DEPLOYMENT,
        deployment=name or one.name,
        slots=one.slots,
        queue_capacity=one.queue_capacity,
        waiting=one.waiting,
        max_restarts=one.max_restarts,
        restart_window=one.within,
        probes=one.probes,
        stall=one.stall,
        more=limits,
    )
    generation = 1 if name else one.generation
    journal.record(Kind.ENGINE_START, deployment=name or one.name, generation=generation)


def gauge(journal: Journal, name: str, value: int, expected: int) -> None:
    """Writes a measurement at rest."""
    journal.record(Kind.GAUGE, name=name, value=value, expected=expected)


def measure(journal: Journal, state: DebugState, places: Mapping[str, Front]) -> None:
    """Writes what a gateway at rest still holds."""
    for one in state.deployments:
        gauge(journal, f"queue of {one.name}", one.queued, 0)
        gauge(journal, f"inflight of {one.name}", one.inflight, 0)
        gauge(journal, f"permits of {one.name}", one.permits, 0)
        if one.state == "serving":
            gauge(journal, f"live slots of {one.name}", one.live_slots, one.slots)
    gauge(journal, "deployments of before a reload", state.retiring, 0)
    for name, front in places.items():
        gauge(journal, f"streams of {name}", front.open_streams, 0)


def is_whole(state: DebugState) -> bool:
    """Whether everything serves, with all its slots, and nothing of before a reload is left."""
    return not state.retiring and all(
        one.ready and one.live_slots == one.slots for one in state.deployments
    )


def is_quiet(state: DebugState, places: Mapping[str, Front]) -> bool:
    """Whether nobody is on the way any more."""
    return not streams_at(places) and not any(
        one.queued or one.inflight or one.permits or one.live_slots != one.slots
        for one in state.deployments
        if one.state == "serving"
    )
