"""What is shared is conserved: slots, streams and permits, and the load on a provider.

Holds I4, I8, I10, I13 and I13b.
"""

from collections import Counter, deque

from orchestrator.chaos.invariants.history import (
    GRACE,
    History,
    Violation,
    first,
    request_of,
    worker_of,
)
from orchestrator.chaos.journal import Event, Kind

CANCEL_FREES = 0.25
"""Seconds after a cancel by which nothing of the request is left."""
PAUSE_LATENESS = 0.1
"""Seconds after the word of a pause that what was permitted before may still start in."""
RETRY_SHARE = 0.2
RETRY_FLOOR = 10
RETRY_WINDOW = 10.0
ACCEPTED_ROUNDING = 1.0
"""Seconds by which a budget may round the age of what it was given."""


def i4_resources_conserved(history: History) -> list[Violation]:
    """One stream a worker at a time, none open at the end, every gauge back where it began.

    Raises:
        JournalError: A gauge lacks its name or value, or a stream its worker.
    """
    found: list[Violation] = []
    streams: dict[tuple[str, int | None], Event] = {}
    busy: dict[str, Event] = {}
    for event in history.milestones:
        match event.kind:
            case Kind.PROVIDER_START:
                worker = worker_of(event)
                if worker in busy:
                    text = f"{worker} began a second stream at {event.t} s"
                    found.append(Violation("I4", event.request, text))
                busy[worker] = streams[worker, event.epoch] = event
            case Kind.PROVIDER_END:
                worker = worker_of(event)
                streams.pop((worker, event.epoch), None)
                if worker in busy and busy[worker].epoch == event.epoch:
                    del busy[worker]
            case Kind.WORKER_DEAD:
                busy.pop(worker_of(event), None)
            case Kind.GAUGE:
                found += _gauge(event)
            case _:
                pass
    return found + [
        Violation("I4", event.request, f"the stream {worker} began at {event.t} s never ended")
        for (worker, _), event in streams.items()
    ]


def _gauge(event: Event) -> list[Violation]:
    name, value = event.text("name"), event.number("value")
    if value < 0:
        return [Violation("I4", None, f"{name} was {value:g} at {event.t} s")]
    if "expected" in event.value and value != event.number("expected"):
        text = f"{name} was {value:g} at rest, not {event.number('expected'):g}"
        return [Violation("I4", None, text)]
    return []


def i8_cancel_frees_everything(history: History) -> list[Violation]:
    """A canceled request ends at once, starts nothing more, and its streams are closed.

    A hung worker can't be asked: its stream is excused until its lease has run out; one that can't
    be canceled at all is excused here and found by I4 if it never ends.

    Raises:
        JournalError: An event lacks its worker or budget.
    """
    found: list[Violation] = []
    for request, events in history.requests.items():
        kinds = [event.kind for event in events]
        if Kind.CANCEL not in kinds:
            continue
        place = kinds.index(Kind.CANCEL)
        cancel, before, after = events[place], events[:place], events[place + 1 :]
        if Kind.TERMINAL in kinds[:place] or Kind.ACCEPT not in kinds[:place]:
            continue
        found += _ends_at_once(history, request, cancel, after)
        begun = {event.epoch for event in before if event.kind is Kind.ATTEMPT_START}
        found += [
            Violation("I8", request, f"{event.kind} at {event.t} s, canceled at {cancel.t} s")
            for event in after
            if event.kind is Kind.DISPATCH
            or (event.kind is Kind.PROVIDER_START and event.epoch not in begun)
            or (
                event.kind is Kind.PROVIDER_START
                and event.t > cancel.t + history.on_its_way(cancel.t, event.t)
            )
        ]
        for stream in _open_streams(before):
            found += _closes(history, stream, cancel, after)
    return found


def _ends_at_once(
    history: History, request: str, cancel: Event, after: list[Event]
) -> list[Violation]:
    terminal = first(after, Kind.TERMINAL)
    if terminal is not None and terminal.t <= _freed_by(history, cancel, terminal):
        return []
    return [Violation("I8", request, f"was canceled at {cancel.t} s and didn't end at once")]


def _freed_by(history: History, cancel: Event, event: Event) -> float:
    return cancel.t + history.lateness(CANCEL_FREES, cancel.t, event.t)


def _open_streams(events: list[Event]) -> list[Event]:
    opened: dict[int | None, Event] = {}
    for event in events:
        if event.kind is Kind.PROVIDER_START:
            opened[event.epoch] = event
        elif event.kind is Kind.PROVIDER_END:
            opened.pop(event.epoch, None)
    return list(opened.values())


def _closes(history: History, stream: Event, cancel: Event, after: list[Event]) -> list[Violation]:
    if stream.flag("zombie"):
        return []
    worker = worker_of(stream)
    closed = [
        event for event in after if event.kind is Kind.PROVIDER_END and event.epoch == stream.epoch
    ]
    if closed and closed[0].t <= _freed_by(history, cancel, closed[0]):
        return []
    if _killed_in_time(history, worker, cancel):
        return []
    text = f"canceled at {cancel.t} s, its stream at {worker} was still open {CANCEL_FREES} s later"
    return [Violation("I8", stream.request, text)]


def _killed_in_time(history: History, worker: str, cancel: Event) -> bool:
    step = next(
        (s for s in reversed(history.of(Kind.STEP)) if s.worker == worker and s.t <= cancel.t), None
    )
    budget = 0.0 if step is None else step.number("budget")
    return any(
        cancel.t <= event.t <= _freed_by(history, cancel, event) + budget
        for kind in (Kind.KILL, Kind.WORKER_DEAD)
        for event in history.of(kind)
        if event.worker == worker
    )


def i10_bounded_amplification(history: History) -> list[Violation]:
    """Retries are a bounded share of what was accepted, and no attempt comes without one.

    A retry costs nothing if the attempt before it never reached the provider.

    Raises:
        JournalError: A deployment has no settings, or an event no request.
    """
    found: list[Violation] = []
    accepted: dict[str, deque[float]] = {}
    spent: dict[str, deque[float]] = {}
    allowed: Counter[tuple[str, str]] = Counter()
    reached: set[tuple[str, str]] = set()  # a hedge reaches one provider, its twin another or none
    for event in history.milestones:
        name = event.deployment
        match event.kind:
            case Kind.ACCEPT:
                allowed[request_of(event), name] += 1
                reached.discard((request_of(event), name))
                accepted.setdefault(name, deque()).append(event.t)
            case Kind.PROVIDER_START:
                reached.add((request_of(event), name))
            case Kind.ATTEMPT_START:
                allowed[request_of(event), name] -= 1
                if allowed[request_of(event), name] < 0 and not event.flag("resume"):
                    text = f"attempt {event.epoch} at {event.t} s that no retry allows"
                    found.append(Violation("I10", event.request, text))
            case Kind.RETRY:
                request = request_of(event)
                allowed[request, name] += 1
                if (request, name) in reached:
                    reached.discard((request, name))
                    spent.setdefault(name, deque()).append(event.t)
                    found += _over_budget(history, event, accepted.get(name, deque()), spent[name])
            case _:
                pass
    return found


def _over_budget(
    history: History, retry: Event, accepted: deque[float], spent: deque[float]
) -> list[Violation]:
    settings = history.settings(retry.deployment)
    window = settings.number("retry_window", RETRY_WINDOW)
    while spent and spent[0] <= retry.t - window + GRACE:
        spent.popleft()
    while accepted and accepted[0] < retry.t - window - ACCEPTED_ROUNDING:
        accepted.popleft()
    share = settings.number("retry_share", RETRY_SHARE)
    bound = share * len(accepted) + settings.number("retry_floor", RETRY_FLOOR)
    if len(spent) <= bound:
        return []
    text = f"{len(spent)} retries in {window:g} s up to {retry.t} s, {bound:g} are allowed"
    return [Violation("I10", retry.request, text)]


def i13_provider_sees_what_is_permitted(history: History) -> list[Violation]:
    """In any window the provider sees no more starts than burst plus rate times its length.

    Kept as a leaky bucket, which overflows exactly if one of all windows does. Starts may come
    closer together on their way, so windows may be that much shorter at the provider.

    Raises:
        JournalError: A deployment has no settings, or a rate without a burst.
    """
    found: list[Violation] = []
    levels: dict[tuple[str, float], tuple[float, float]] = {}
    spread = history.spread
    for event in history.of(Kind.PROVIDER_START):
        name = event.deployment
        settings = history.settings(name)
        if "permits_per_second" not in settings.value:
            continue
        rate, burst = settings.number("permits_per_second"), settings.number("permits_burst")
        key = history.key_of(event)
        then, level = levels.get(key, (event.t, 0.0))
        level = max(0.0, level - rate * (event.t - then)) + 1.0
        levels[key] = (event.t, level)
        if level > burst + rate * (GRACE + spread) + GRACE:
            text = f"start at {event.t} s is beyond {burst:g} + {rate:g} per second"
            found.append(Violation("I13", event.request, text))
    return found


def i13b_a_paused_key_rests(history: History) -> list[Violation]:
    """Nothing starts with a key until the pause is over that its provider asked for.

    What was permitted before may be on its way for a while.

    Raises:
        JournalError: A pause lacks its key or length.
    """
    found: list[Violation] = []
    pauses: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for event in history.milestones:
        if event.kind is Kind.KEY_PAUSED:
            place = pauses.setdefault(history.key_of(event), [])
            place.append((event.t + PAUSE_LATENESS, event.t + event.number("seconds") - GRACE))
        elif event.kind is Kind.PROVIDER_START:
            for begins, ends in pauses.get(history.key_of(event), ()):
                if begins < event.t < ends:
                    text = f"start at {event.t} s with a key that pauses until {ends:g} s"
                    found.append(Violation("I13b", event.request, text))
    return found
