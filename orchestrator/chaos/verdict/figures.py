"""The figures of each phase of a run, from its journal alone."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.chaos.invariants.history import first
from orchestrator.chaos.journal import Event, Kind

WHOLE_RUN = "run"
"""The one phase of a journal that names none, as a simulation's."""
AT_ONCE = "at once"
SLOW_CONSUMER = "slow_consumer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What became of one request."""

    name: str
    phase: str
    asked: float
    outcome: str
    """done, error, canceled, rejected, cut, indeterminate, or open if the journal ends before.

    A caller who was to dawdle and was cut off for it left by its own doing: canceled."""
    code: str = ""
    first_token: float | None = None
    """Seconds from the question."""
    ended: float | None = None
    deadline: float | None = None
    attempts: int = 0
    must_succeed: bool = False


@dataclass(slots=True, kw_only=True)
class Figures:
    """Sums over the requests of one phase."""

    phase: str
    requests: int = 0
    done: int = 0
    canceled: int = 0
    rejected: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    attempts: int = 0
    first_tokens: list[float] = field(default_factory=list[float])
    lateness: float = 0.0
    """The most seconds by which one ended after its deadline."""

    @property
    def success(self) -> float:
        """Share of those that were neither cancelled nor left open by their caller."""
        judged = self.requests - self.canceled
        return self.done / judged if judged else 1.0

    def ttft(self, share: float) -> float | None:
        """A percentile of the time to the first token, seconds; None if nothing was read."""
        if not self.first_tokens:
            return None
        ordered = sorted(self.first_tokens)
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    def add(self, request: Request) -> None:
        """Counts one request."""
        self.requests += 1
        self.attempts += request.attempts
        match request.outcome:
            case "done":
                self.done += 1
            case "canceled":
                self.canceled += 1
            case "rejected":
                self.rejected += 1
                self.errors[request.code] += 1
            case _:
                self.errors[request.code or request.outcome] += 1
        if request.first_token is not None:
            self.first_tokens.append(request.first_token)
        if request.ended is not None and request.deadline is not None:
            self.lateness = max(self.lateness, request.ended - request.deadline)


def phases_of(events: Iterable[Event]) -> list[tuple[float, str]]:
    """When each phase began."""
    return [(event.t, event.text("name")) for event in events if event.kind is Kind.PHASE]


def requests_of(events: Sequence[Event]) -> list[Request]:
    """Every request that was asked, in the order of the questions.

    Raises:
        JournalError: An event lacks what its kind needs.
    """
    phases = phases_of(events)
    own: dict[str, list[Event]] = {}
    for event in events:
        if event.request is not None:
            own.setdefault(event.request, []).append(event)
    return [
        _request(name, mine, submit, phases)
        for name, mine in own.items()
        if (submit := first(mine, Kind.SUBMIT)) is not None
    ]


def _request(
    name: str, mine: Sequence[Event], submit: Event, phases: Sequence[tuple[float, str]]
) -> Request:
    read, accept = first(mine, Kind.READ), first(mine, Kind.ACCEPT)
    terminal, end = first(mine, Kind.TERMINAL), first(mine, Kind.END_READ)
    outcome, code = _outcome(mine, terminal, end)
    dawdles = submit.text("reads", AT_ONCE) != AT_ONCE
    if dawdles and terminal is not None and terminal.text("code", "") == SLOW_CONSUMER:
        outcome, code = "canceled", SLOW_CONSUMER
    return Request(
        name=name,
        phase=next((phase for at, phase in reversed(phases) if at <= submit.t), WHOLE_RUN),
        asked=submit.t,
        outcome=outcome,
        code=code,
        first_token=None if read is None else read.t - submit.t,
        ended=None if (last := terminal or end) is None else last.t,
        deadline=None if accept is None else accept.number("deadline"),
        attempts=sum(event.kind is Kind.ATTEMPT_START for event in mine),
        must_succeed=submit.flag("must_succeed"),
    )


def _outcome(mine: Sequence[Event], terminal: Event | None, end: Event | None) -> tuple[str, str]:
    last = end or terminal
    if last is None:
        return ("canceled", "") if first(mine, Kind.CANCEL) is not None else ("open", "")
    outcome, code = last.text("outcome"), last.text("code", "")
    if not code and terminal is not None:
        code = terminal.text("code", "")
    if outcome == "error" and first(mine, Kind.ACCEPT) is None:
        return "rejected", code
    return outcome, code


def figures_of(requests: Iterable[Request]) -> Mapping[str, Figures]:
    """Sums by phase, in the order in which the phases were."""
    found: dict[str, Figures] = {}
    for request in requests:
        found.setdefault(request.phase, Figures(phase=request.phase)).add(request)
    return found
