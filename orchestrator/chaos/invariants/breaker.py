"""What the circuit breaker promises: legal moves, made by current results alone, and few probes.

Holds I5, I5b and I5c.
"""

from dataclasses import dataclass, field

from orchestrator.chaos.invariants.history import GRACE, History, Violation, worker_of
from orchestrator.chaos.journal import Event, Kind

MOVES = frozenset(
    {("closed", "open"), ("open", "half-open"), ("half-open", "open"), ("half-open", "closed")}
)
CONCERNED = frozenset({Kind.BREAKER, Kind.ADMIT, Kind.ATTEMPT_END})
VERDICT_FOR = {"open": "failure", "closed": "success"}


@dataclass(slots=True)
class _Breaker:
    state: str = "closed"
    era: int = 0
    moved: Event | None = None
    admitted: dict[int | None, int] = field(default_factory=dict[int | None, int])


def i5_breaker_moves_legally(history: History) -> list[Violation]:
    """It moves along its four ways only, by an attempt that began in the state it left.

    A cancel and an error of the caller are no verdict, so nothing moves by them.

    Raises:
        JournalError: An event lacks its state or verdict.
    """
    found: list[Violation] = []
    breakers: dict[str, _Breaker] = {}
    for event in history.milestones:
        if event.kind not in CONCERNED:
            continue
        breaker = breakers.setdefault(event.deployment, _Breaker())
        match event.kind:
            case Kind.BREAKER:
                found += _moved(breaker, event)
            case Kind.ADMIT:
                breaker.admitted[event.epoch] = breaker.era
                if breaker.state == "open":
                    text = f"attempt {event.epoch} was let through an open breaker at {event.t} s"
                    found.append(Violation("I5", event.request, text))
            case Kind.ATTEMPT_END:
                found += _moved_by(breaker, event)
            case _:
                pass
    return found


def _moved(breaker: _Breaker, event: Event) -> list[Violation]:
    before, breaker.state = breaker.state, event.text("state")
    breaker.era += 1
    breaker.moved = event if breaker.state in VERDICT_FOR else None
    if (before, breaker.state) in MOVES:
        return []
    return [Violation("I5", None, f"moved from {before} to {breaker.state} at {event.t} s")]


def _moved_by(breaker: _Breaker, end: Event) -> list[Violation]:
    moved, breaker.moved = breaker.moved, None
    began = breaker.admitted.pop(end.epoch, None)
    if moved is None:
        return []
    found: list[Violation] = []
    if began != breaker.era - 1:
        text = f"attempt {end.epoch} of an older era moved it to {breaker.state} at {moved.t} s"
        found.append(Violation("I5", end.request, text))
    if end.text("verdict") != VERDICT_FOR[breaker.state]:
        text = f"verdict {end.text('verdict')} moved it to {breaker.state} at {moved.t} s"
        found.append(Violation("I5", end.request, text))
    return found


def i5b_few_probes(history: History) -> list[Violation]:
    """While it is half-open no more attempts run through it than it has probes.

    Raises:
        JournalError: An event lacks its worker or state.
    """
    found: list[Violation] = []
    probing: dict[str, set[int | None]] = {}
    for event in history.milestones:
        if event.kind not in CONCERNED:
            continue
        name = event.deployment
        out = probing.setdefault(name, set())
        match event.kind:
            case Kind.BREAKER:
                out.clear()
            case Kind.ADMIT if event.text("state") == "half-open":
                out.add(event.epoch)
                probes = history.settings(name).number("probes", 1)
                if len(out) > probes:
                    text = f"probe {len(out)} at {worker_of(event)} at {event.t} s, of {probes:g}"
                    found.append(Violation("I5b", event.request, text))
            case Kind.ATTEMPT_END:
                out.discard(event.epoch)
            case _:
                pass
    return found


@dataclass(slots=True)
class _OpenTime:
    """How long a breaker has to stay open, as its moves so far make it."""

    needed: float
    state: str = "closed"
    since: float = 0.0
    opened: bool = False

    def move(self, state: str, at: float, first: float, longest: float) -> bool:
        """Follows a move; False if it came too soon."""
        before, stayed = self.state, at - self.since
        self.state, self.since = state, at
        if state == "half-open":
            return stayed >= self.needed - GRACE
        if state == "open":
            if before == "closed" and stayed >= self.needed - GRACE:
                self.needed = first
            elif self.opened:
                self.needed = min(2 * self.needed, longest)
            self.opened = True
        return True


def i5c_open_for_longer_each_time(history: History) -> list[Violation]:
    """It stays open for twice as long each time that it opens again, until it did well for as long.

    Raises:
        JournalError: An event lacks its state.
    """
    found: list[Violation] = []
    breakers: dict[str, _OpenTime] = {}
    for event in history.of(Kind.BREAKER):
        settings = history.settings(event.deployment)
        if "open_for" not in settings.value:
            continue
        first = settings.number("open_for")
        breaker = breakers.setdefault(event.deployment, _OpenTime(first))
        longest = settings.number("max_open_for", first)
        if not breaker.move(event.text("state"), event.t, first, longest):
            text = f"half-open at {event.t} s, though it had to be open for {breaker.needed:g} s"
            found.append(Violation("I5c", None, text))
    return found
