"""What those who wait are promised: a bound, a prompt refusal, and a fair turn.

Holds I7 and I16.
"""

import math

from orchestrator.chaos.invariants.history import GRACE, History, Violation, request_of
from orchestrator.chaos.journal import Event, Kind

REFUSED_WITHIN = 0.05
"""Seconds after it was asked within which a request is refused."""


def i7_queue_is_bounded(history: History) -> list[Violation]:
    """Nobody is let into a full queue, and only a full queue refuses for being full, at once.

    What goes back for another try isn't refused, so as many as there are slots may wait beyond the
    bound.

    Raises:
        JournalError: A deployment has no settings, or an event lacks depth or code.
    """
    found: list[Violation] = []
    asked: dict[str, float] = {}
    for event in history.milestones:
        match event.kind:
            case Kind.SUBMIT:
                asked[request_of(event)] = event.t
            case Kind.ACCEPT:
                asked.pop(request_of(event), None)
                found += _too_deep(history, event, extra=0.0)
            case Kind.RETRY | Kind.QUEUE_DEPTH:
                slots = history.settings(event.deployment).number("slots")
                found += _too_deep(history, event, extra=slots)
            case Kind.REJECT:
                found += _refused_rightly(history, event, asked.get(request_of(event)))
            case _:
                pass
    return found


def _too_deep(history: History, event: Event, *, extra: float) -> list[Violation]:
    capacity = history.settings(event.deployment).number("queue_capacity")
    depth = event.number("depth")
    if depth <= capacity + extra:
        return []
    text = f"{depth:g} waited at {event.t} s ({event.kind}), the bound is {capacity:g}"
    return [Violation("I7", event.request, text)]


def _refused_rightly(history: History, reject: Event, asked: float | None) -> list[Violation]:
    found: list[Violation] = []
    capacity = history.settings(reject.deployment).number("queue_capacity")
    if reject.text("code") == "queue_full" and reject.number("depth") < capacity:
        text = f"was refused at {reject.t} s by a queue of {reject.number('depth'):g}"
        found.append(Violation("I7", reject.request, f"{text}, the bound is {capacity:g}"))
    if asked is not None and reject.t > asked + REFUSED_WITHIN + GRACE:
        text = f"asked at {asked} s and was refused at {reject.t} s"
        found.append(Violation("I7", reject.request, text))
    return found


def i16_priority_order(history: History) -> list[Violation]:
    """Nobody goes before one who waits, may start, and is more urgent, or as urgent and older.

    The arrival at the deployment counts, so a retry keeps its place.

    Raises:
        JournalError: An event lacks its request, priority or time.
    """
    found: list[Violation] = []
    keys: dict[str, tuple[float, int]] = {}
    waiting: dict[str, dict[str, float]] = {}  # deployment -> request -> not before
    for place, event in enumerate(history.milestones):
        queue = waiting.setdefault(event.deployment, {})
        match event.kind:
            case Kind.ACCEPT:
                keys[request_of(event)] = (-event.number("priority"), place)
                queue[request_of(event)] = -math.inf
            case Kind.RETRY:
                queue[request_of(event)] = event.number("not_before")
            case Kind.DEQUEUE:
                queue.pop(request_of(event), None)
            case Kind.DISPATCH:
                request = request_of(event)
                queue.pop(request, None)
                found += _overtaken(request, event, queue, keys)
            case Kind.TERMINAL:
                for others in waiting.values():
                    others.pop(request_of(event), None)
            case _:
                pass
    return found


def _overtaken(
    request: str, dispatch: Event, queue: dict[str, float], keys: dict[str, tuple[float, int]]
) -> list[Violation]:
    key = keys.get(request)
    if key is None:
        return [Violation("I16", request, f"dispatched at {dispatch.t} s, never accepted")]
    return [
        Violation("I16", other, f"was overtaken by {request} at {dispatch.t} s")
        for other, not_before in queue.items()
        if keys[other] < key and not_before <= dispatch.t - GRACE
    ]
