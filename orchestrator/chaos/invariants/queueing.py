"""What those who wait are promised: a bound, a prompt refusal, and a fair turn.

Holds I7, I16, I23 and I24.
"""

import math
from collections import Counter
from dataclasses import dataclass

from orchestrator.chaos.invariants.history import GRACE, History, Violation, request_of
from orchestrator.chaos.journal import Event, Kind
from orchestrator.request import Priority

REFUSED_WITHIN = 0.05
"""Seconds after it was asked within which a request is refused."""
ACCEPTED_WITHIN = 0.05
"""Seconds by which an acceptance may be written after it."""
TURNS = 2
"""Turns of one caller that another one may wait for: its rival's due one, and one in which both
come to a level."""


def i7_queue_is_bounded(history: History) -> list[Violation]:
    """Nobody is let into a full queue, and only a full queue refuses for being full, at once.

    What goes back for another try isn't refused, so as many as there are slots may wait beyond the
    bound; and whoever takes another one's place makes the queue no longer.

    Raises:
        JournalError: A deployment has no settings, or an event lacks depth or code.
    """
    found: list[Violation] = []
    asked: dict[str, float] = {}
    replacing: set[str] = set()
    for event in history.milestones:
        match event.kind:
            case Kind.SUBMIT:
                asked[request_of(event)] = event.t
            case Kind.SHED:
                replacing.add(event.text("by"))
            case Kind.ACCEPT:
                asked.pop(request_of(event), None)
                taken = request_of(event) in replacing
                replacing.clear()
                slots = history.settings(event.deployment).number("slots")
                found += _too_deep(history, event, extra=slots if taken else 0.0)
            case Kind.RETRY:
                slots = history.settings(event.deployment).number("slots")
                found += _too_deep(history, event, extra=slots)
            case Kind.REJECT:
                found += _refused_rightly(history, event, asked.get(request_of(event)))
            case _:
                pass
    for event in history.of(Kind.QUEUE_DEPTH):
        slots = history.settings(event.deployment).number("slots")
        found += _too_deep(history, event, extra=slots)
    return found


def _too_deep(history: History, event: Event, *, extra: float) -> list[Violation]:
    settings = history.settings(event.deployment)
    capacity = settings.number("queue_capacity") + settings.number("waiting", 0)
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
    if asked is not None and reject.t > asked + history.lateness(REFUSED_WITHIN, asked, reject.t):
        text = f"asked at {asked} s and was refused at {reject.t} s"
        found.append(Violation("I7", reject.request, text))
    return found


@dataclass(slots=True)
class Waiter:
    """A request in a queue."""

    request: str
    priority: int
    caller: str
    place: int
    """Of its acceptance in the journal."""
    since: float
    """Seconds; its age counts from here."""
    aging: float
    """Seconds for which it rises by one class."""
    not_before: float = -math.inf
    tried: bool = False

    def level(self, now: float) -> int:
        """How urgent it is then, by its class and what waiting has added (seconds of the run)."""
        aged = (now - self.since) / self.aging
        return min(int(max(Priority)), self.priority + int(max(0.0, aged)))

    def may_start(self, now: float) -> bool:
        """Whether its backoff is over then."""
        return self.not_before <= now - GRACE


class Queues:
    """Who waits in which deployment, as the journal goes on.

    Raises:
        JournalError: An event lacks its request, priority or time.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        self._known: dict[tuple[str, str], Waiter] = {}  # a hedge waits in two deployments
        self._attempted: set[str] = set()
        self.waiting: dict[str, dict[str, Waiter]] = {}
        """Deployment -> request -> what is known of it."""

    def follow(self, place: int, event: Event) -> Waiter | None:
        """Goes one event on; returns who is dispatched by it, taken out of its queue already."""
        queue = self.waiting.setdefault(event.deployment, {})
        match event.kind:
            case Kind.ACCEPT:
                request = request_of(event)
                shape = self._history.deployments.get(event.deployment)
                self._known[event.deployment, request] = queue[request] = Waiter(
                    request=request,
                    priority=int(event.number("priority")),
                    caller=event.text("caller", ""),
                    place=place,
                    since=event.t,
                    aging=math.inf if shape is None else shape.number("aging", math.inf),
                    tried=request in self._attempted,
                )
            case Kind.RETRY:
                waiter = self._known.get((event.deployment, request_of(event)))
                if waiter is not None:
                    waiter.tried, waiter.not_before = True, event.number("not_before")
                    queue[waiter.request] = waiter
            case Kind.DEQUEUE:
                queue.pop(request_of(event), None)
            case Kind.TERMINAL:
                for others in self.waiting.values():
                    others.pop(request_of(event), None)
            case Kind.ATTEMPT_START:
                self._attempted.add(request_of(event))
                for others in self.waiting.values():  # a hedge is tried while the first one waits
                    if (first := others.get(request_of(event))) is not None:
                        first.tried = True
            case Kind.DISPATCH:
                queue.pop(request_of(event), None)
                return self._known.get((event.deployment, request_of(event)))
            case _:
                pass
        return None


def i16_priority_order(history: History) -> list[Violation]:
    """Nobody goes before one who waits, may start, and is more urgent, or an older one's rival.

    Urgency is the class and what waiting has added to it; rivals are requests of one caller at one
    level. The arrival at the deployment counts, so a retry keeps its place.

    Raises:
        JournalError: An event lacks its request, priority or time.
    """
    found: list[Violation] = []
    queues = Queues(history)
    for place, event in enumerate(history.milestones):
        served = queues.follow(place, event)
        if event.kind is not Kind.DISPATCH:
            continue
        if served is None:
            text = f"dispatched at {event.t} s, never accepted"
            found.append(Violation("I16", event.request, text))
            continue
        # an acceptance is written a little late, so the one who went may be older by that
        low, high = served.level(event.t), served.level(event.t + ACCEPTED_WITHIN)
        for other in queues.waiting[event.deployment].values():
            level = other.level(event.t - GRACE)
            older = other.caller == served.caller and other.place < served.place
            if (level > high or (older and level == low == high)) and other.may_start(event.t):
                text = f"was overtaken by {served.request} at {event.t} s"
                found.append(Violation("I16", other.request, text))
    return found


def i23_callers_take_turns(history: History) -> list[Violation]:
    """Of two callers with requests at one level none is served again and again.

    Whoever is taken out of the queue has had its turn, whether it is dispatched then, goes on to
    another deployment or ends because it can't be; whoever is shed, or was over before, has not.

    Raises:
        JournalError: An event lacks its request, priority or time.
    """
    found: list[Violation] = []
    queues = Queues(history)
    passed: dict[str, Counter[tuple[str, str, int]]] = {}
    """Deployment -> (request that waits, caller, level) -> that caller's turns meanwhile."""
    shed: set[tuple[str, str]] = set()
    for place, event in enumerate(history.milestones):
        taken = queues.waiting.get(event.deployment, {}).get(event.request or "")
        served = queues.follow(place, event)
        if event.kind is Kind.SHED:
            shed.add((event.deployment, request_of(event)))
        if (
            event.kind is Kind.DEQUEUE
            and taken is not None
            and (event.deployment, taken.request) not in shed
        ):
            passed[event.deployment] = _after_turn(
                passed.get(event.deployment, Counter()),
                queues.waiting[event.deployment],
                taken.caller,
            )
        if event.kind is not Kind.DISPATCH or served is None:
            continue
        level = served.level(event.t)
        waiting = queues.waiting[event.deployment]
        passed[event.deployment] = _after_turn(
            passed.get(event.deployment, Counter()), waiting, served.caller
        )
        for other in waiting.values():
            if other.caller == served.caller or not other.may_start(event.t):
                continue
            if (
                other.level(event.t - GRACE) != level
                or served.level(event.t + ACCEPTED_WITHIN) != level
            ):
                continue
            key = (other.request, served.caller, level)
            passed[event.deployment][key] += 1
            if passed[event.deployment][key] > TURNS:
                text = f"of {other.caller!r} waited at {event.t} s for {TURNS + 1} turns"
                found.append(Violation("I23", other.request, f"{text} of {served.caller!r}"))
    return found


def _after_turn(
    turns: Counter[tuple[str, str, int]], waiting: dict[str, Waiter], caller: str
) -> Counter[tuple[str, str, int]]:
    """What is left of the counts when that caller had its turn: it ends the wait of all its own."""
    return Counter(
        {
            key: count
            for key, count in turns.items()
            if key[0] in waiting and waiting[key[0]].caller != caller
        }
    )


def i24_only_the_least_urgent_is_shed(history: History) -> list[Violation]:
    """Whoever gives its place up was never tried and is less urgent, or of the larger crowd.

    Raises:
        JournalError: An event lacks its request, priority or time.
    """
    found: list[Violation] = []
    queues = Queues(history)
    left: dict[str, set[str]] = {}
    """Deployment -> those that it has shed."""
    pending: tuple[Event, Waiter] | None = None
    for place, event in enumerate(history.milestones):
        waiting = queues.waiting.get(event.deployment, {})
        if event.kind is Kind.SHED:
            shed = waiting.get(request_of(event))
            left.setdefault(event.deployment, set()).add(request_of(event))
            pending = None if shed is None else (event, shed)
            if shed is None or shed.tried:
                why = "waited no more" if shed is None else "had been tried"
                text = f"was shed at {event.t} s although it {why}"
                found.append(Violation("I24", event.request, text))
        served = queues.follow(place, event)
        if event.kind is Kind.ACCEPT and pending is not None:
            found += _less_urgent(*pending, queues.waiting[event.deployment], request_of(event))
            pending = None
        if served is not None and served.request in left.get(event.deployment, ()):
            text = f"was shed and dispatched at {event.t} s all the same"
            found.append(Violation("I24", served.request, text))
    return found


def _spared(crowd: list[Waiter], level: int, now: float) -> Waiter | None:
    """One of a class who should have been shed before somebody of that level; None if nobody.

    Of a class the caller with most waiting gives up, the youngest that was never tried. Who backs
    off isn't counted there, and a journal can't tell who just stopped to; so each caller that may
    have most waiting must have somebody who was never tried, and none of them risen as far.
    """
    untried: dict[str, list[Waiter]] = {}
    sizes: Counter[str] = Counter()
    for other in crowd:
        sizes[other.caller] += 1
        mine = untried.setdefault(other.caller, [])
        if not other.tried:
            mine.append(other)
    most = max(map(len, untried.values()), default=0)
    if most == 0:
        return None
    longest = [untried[caller] for caller, size in sizes.items() if size >= most]
    if all(mine and max(one.level(now) for one in mine) < level for mine in longest):
        return longest[0][-1]
    return None


def _less_urgent(
    event: Event, shed: Waiter, waiting: dict[str, Waiter], by: str
) -> list[Violation]:
    taker = waiting[by]
    if shed.priority < taker.priority and shed.level(event.t - GRACE) < taker.priority:
        level = shed.level(event.t - GRACE)
        for priority in range(shed.priority):
            crowd = [other for other in waiting.values() if other.priority == priority]
            spared = _spared(crowd, level, event.t + GRACE)
            if spared is not None:
                text = f"was shed at {event.t} s although {spared.request} is less urgent"
                return [Violation("I24", shed.request, text)]
        return []
    # who backs off counts for neither in the queue, and a journal can't tell who just stopped to
    rivals = [other for other in waiting.values() if other.priority == taker.priority]
    crowd = sum(other.caller == shed.caller for other in rivals)
    own = sum(other.caller == taker.caller and not other.tried for other in rivals)
    if shed.priority == taker.priority and crowd > own:
        return []
    text = f"was shed at {event.t} s for {by}, which is no more urgent"
    return [Violation("I24", shed.request, text)]
