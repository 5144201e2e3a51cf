"""What the timeline shows, from the journal: bands, steps, curves and bars on one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from orchestrator.chaos.journal import Event, Kind

MAX_BARS = 2000
GONE = "gone"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time with a word for it."""

    begin: float
    end: float
    word: str
    about: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """All that is drawn."""

    seconds: float
    phases: Sequence[Span]
    faults: Sequence[Span]
    states: dict[str, list[Span]]
    """Readiness, engine state and breaker of each deployment, by the lane's name."""
    queues: dict[str, list[tuple[float, float]]]
    """Depth over time, by deployment."""
    slots: dict[str, list[Span]]
    """Attempts by slot; the word is the outcome."""
    hidden: int
    """Attempts that are left out, because there are more than can be drawn."""


def picture_of(events: Sequence[Event], keep: frozenset[str]) -> Picture:
    """Sorts a journal into lanes.

    Args:
        events: In the order of time.
        keep: Requests that are always drawn.
    """
    seconds = events[-1].t if events else 0.0
    slots, hidden = _slots(events, seconds, keep)
    return Picture(
        seconds=seconds,
        phases=_phases(events, seconds),
        faults=_faults(events, seconds),
        states=_states(events, seconds),
        queues=_queues(events),
        slots=slots,
        hidden=hidden,
    )


def _phases(events: Sequence[Event], seconds: float) -> list[Span]:
    begun = [(event.t, event.text("name")) for event in events if event.kind is Kind.PHASE]
    edges = [*begun, (seconds, "")]
    return [Span(at, end, name) for (at, name), (end, _) in pairwise(edges)]


def _faults(events: Sequence[Event], seconds: float) -> list[Span]:
    names = {
        event.number("fault"): event.text("what")
        for event in events
        if event.kind is Kind.FAULT_PLANNED
    }
    found: list[Span] = []
    for number, name in names.items():
        struck = [
            event
            for event in events
            if event.kind is Kind.FAULT_LANDED and event.value.get("fault") == number
        ]
        healed = [
            event.t
            for event in events
            if event.kind is Kind.FAULT_HEALED and event.value.get("fault") == number
        ]
        if struck:
            end = max(healed[-1] if healed else seconds, struck[-1].t)
            about = f"{name}: {struck[0].text('evidence', '')}, {len(struck)} times"
            found.append(Span(struck[0].t, end, f"{number:g}", about))
    return found


def _states(events: Sequence[Event], seconds: float) -> dict[str, list[Span]]:
    changes: dict[str, list[tuple[float, str]]] = {}
    for event in events:
        name = event.deployment
        match event.kind:
            case Kind.READY:
                word = "ready" if event.flag("ready") else "not ready"
                changes.setdefault(f"{name} readiness", []).append((event.t, word))
            case Kind.ENGINE_START:
                changes.setdefault(f"{name} engine", []).append((event.t, "serving"))
            case Kind.POISON:
                changes.setdefault(f"{name} engine", []).append((event.t, "poisoned"))
            case Kind.RETIRED:
                for lane in (f"{name} readiness", f"{name} engine", f"{name} breaker"):
                    if lane in changes:
                        changes[lane].append((event.t, GONE))
            case Kind.BREAKER:
                lane = changes.setdefault(f"{name} breaker", [(0.0, "closed")])
                lane.append((event.t, event.text("state")))
            case _:
                pass
    return {
        lane: [span for span in _spans(steps, seconds) if span.word != GONE]
        for lane, steps in sorted(changes.items())
    }


def _spans(steps: Sequence[tuple[float, str]], seconds: float) -> list[Span]:
    spans: list[Span] = []
    for place, (at, word) in enumerate(steps):
        end = steps[place + 1][0] if place + 1 < len(steps) else seconds
        if spans and spans[-1].word == word:
            spans[-1] = Span(spans[-1].begin, end, word)
        else:
            spans.append(Span(at, end, word))
    return spans


def _queues(events: Sequence[Event]) -> dict[str, list[tuple[float, float]]]:
    """Depths as they are told by whoever comes, and lower by one with whoever leaves."""
    found: dict[str, list[tuple[float, float]]] = {}
    waiting: dict[str, set[str]] = {}
    for event in events:
        name, request = event.deployment, event.request or ""
        match event.kind:
            case Kind.ACCEPT | Kind.RETRY:
                waiting.setdefault(name, set()).add(request)
                found.setdefault(name, []).append((event.t, event.number("depth")))
            case Kind.DEQUEUE | Kind.SHED | Kind.TERMINAL:
                # an ending names no deployment, and a hedge waits in two
                left = waiting if event.kind is Kind.TERMINAL else (name,)
                for one in left:
                    if request in waiting.get(one, ()):
                        waiting[one].remove(request)
                        found[one].append((event.t, max(0.0, found[one][-1][1] - 1)))
            case Kind.POISON if waiting.get(name):
                waiting[name].clear()
                found[name].append((event.t, 0.0))
            case _:
                pass
    return found


def _slots(
    events: Sequence[Event], seconds: float, keep: frozenset[str]
) -> tuple[dict[str, list[Span]], int]:
    begun: dict[tuple[str, int | None], Event] = {}
    bars: list[tuple[str, str, Span]] = []
    for event in events:
        if event.worker is None:
            continue
        key = (event.worker, event.epoch)
        if event.kind is Kind.ATTEMPT_START:
            begun[key] = event
        elif event.kind is Kind.ATTEMPT_END and key in begun:
            bars.append(_bar(begun.pop(key), event.t, event.text("verdict", "none")))
        elif event.kind is Kind.WORKER_DEAD:
            cut = [key for key in begun if key[0] == event.worker]
            bars += [_bar(begun.pop(key), event.t, "worker died") for key in cut]
    bars += [_bar(start, seconds, "open") for start in begun.values()]
    shown = [bar for bar in bars if bar[1] in keep]
    others = [bar for bar in bars if bar[1] not in keep]
    step = max(1, -(-len(others) // max(1, MAX_BARS - len(shown))))
    shown += others[::step]
    lanes: dict[str, list[Span]] = {}
    for slot, _, span in sorted(shown, key=lambda bar: (bar[0], bar[2].begin)):
        lanes.setdefault(slot, []).append(span)
    return lanes, len(bars) - len(shown)


def _bar(start: Event, end: float, word: str) -> tuple[str, str, Span]:
    # a worker is `deployment/slot.life`: all lives of a slot share its lane
    slot = (start.worker or "").rpartition(".")[0] or start.worker or ""
    about = f"{start.request}, attempt {start.attempt or 1}: {word}"
    return slot, start.request or "", Span(start.t, end, word, about)
