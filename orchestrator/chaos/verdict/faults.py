"""What is known of each planned fault: whether it landed, when it was seen, when all was well."""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.chaos.journal import Event, Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """One fault of the scenario."""

    number: int
    what: str
    planned_at: float
    """Seconds from the begin of the faults."""
    landed: int
    """How often it took effect."""
    landed_at: float | None
    evidence: str
    healed_at: float | None
    detected_after: float | None
    """Seconds from its landing to the first consequence within the gateway."""
    recovered_after: float | None
    """Seconds from its landing until every deployment was ready again."""
    exposed: int
    """Requests that met it."""


def faults_of(events: Sequence[Event]) -> list[FaultRecord]:
    """Every planned fault, in the order of the scenario.

    Raises:
        JournalError: An event lacks what its kind needs.
    """
    return [_record(events, plan) for plan in events if plan.kind is Kind.FAULT_PLANNED]


def _record(events: Sequence[Event], plan: Event) -> FaultRecord:
    number = int(plan.number("fault"))
    landed = [e for e in events if e.kind is Kind.FAULT_LANDED and e.value.get("fault") == number]
    healed = [e for e in events if e.kind is Kind.FAULT_HEALED and e.value.get("fault") == number]
    first = landed[0] if landed else None
    last = healed[-1].t if healed else None
    return FaultRecord(
        number=number,
        what=plan.text("what"),
        planned_at=plan.number("at"),
        landed=len(landed),
        landed_at=None if first is None else first.t,
        evidence="" if first is None else first.text("evidence", first.text("text", "")),
        healed_at=last,
        detected_after=None if first is None else _detected(events, first),
        recovered_after=None if first is None else _recovered(events, first),
        exposed=_exposed(events, plan, landed, last),
    )


SEEN_LATE = 0.5
"""Seconds by which the gateway may know of a death before the run sees it."""
CONSEQUENCES = frozenset({Kind.WORKER_DEAD, Kind.POISON, Kind.BREAKER})


def _detected(events: Sequence[Event], landed: Event) -> float | None:
    for event in events:
        if event.t < landed.t - SEEN_LATE:
            continue
        if event.kind in CONSEQUENCES:
            return max(0.0, event.t - landed.t)
        if event.t < landed.t:
            continue
        if landed.request is not None and event.request == landed.request:
            failed = event.kind is Kind.ATTEMPT_END and event.value.get("verdict") == "failure"
            if failed or event.kind is Kind.TERMINAL:
                return event.t - landed.t
    return None


def _recovered(events: Sequence[Event], landed: Event) -> float | None:
    """None if nothing was ever unready because of it."""
    ready: dict[str, bool] = {}
    fell = False
    for event in events:
        if event.kind is Kind.RETIRED:
            ready.pop(event.deployment, None)
        if event.kind is not Kind.READY:
            continue
        ready[event.deployment] = event.flag("ready")
        if event.t < landed.t:
            continue
        fell = fell or not event.flag("ready")
        if fell and all(ready.values()):
            return event.t - landed.t
    return None


def _exposed(
    events: Sequence[Event], plan: Event, landed: Sequence[Event], healed: float | None
) -> int:
    """Those that the fault names, or whose life it fell into."""
    if not landed:
        return 0
    named = {event.request for event in landed if event.request is not None}
    if named:
        return len(named)
    if plan.text("what").startswith("provider "):  # each strike is one request, whoever's it was
        return len(landed)
    # what lasts has landed only at its end
    begin = min(landed[0].t, plan.t + plan.number("at"))
    end = max(healed or landed[-1].t, landed[-1].t)
    lives: dict[str, tuple[float, float]] = {}
    for event in events:
        if event.request is not None:
            since, _ = lives.get(event.request, (event.t, event.t))
            lives[event.request] = (since, event.t)
    return sum(since <= end and until >= begin for since, until in lives.values())
