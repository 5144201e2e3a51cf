"""What a provider's own word about its limits is worth.

Holds I29 and I30. Before its first true word about a key nothing is known of it, so nothing can be
promised; and whoever has said nothing for a minute is looked at once, whatever was left.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.chaos.invariants.history import GRACE, History, Violation
from orchestrator.chaos.journal import Event, Kind

LOOK_SECONDS = 60.0
SHARE = 0.5
"""Of its rate, what a key has left after a refusal."""
STEP_SHARE = 0.02
"""Of its rate, what a key wins back in a second at the most."""
LOWEST_RATE = 1 / 60
"""Starts per second that every key keeps."""
FIRST_MINUTE = 59.0
"""Seconds of a run; a rate that nobody has told is measured from its beginning until then."""
SHORTEST_MEASURE = 1.0
"""Seconds over which it is measured at the least."""
RETURNED_WITHIN = 10.0
"""Seconds within which a permit comes back with which nothing was sent."""

_Key = tuple[str, float]
_Attempt = tuple[str | None, int | None]


@dataclass(slots=True)
class _Told:
    first: int | None = None
    """Place in the journal of the provider's first true word."""
    at: list[float] = field(default_factory=list[float])
    """Seconds; all its true words."""


def i29_what_is_left_is_believed(history: History) -> list[Violation]:
    """Once a provider has told what is left of a key, nothing meets a limit that is used up.

    Only what was permitted before its first word may, and the one look after a silent minute.

    Raises:
        JournalError: An event lacks its key.
    """
    found: list[Violation] = []
    told: dict[_Key, _Told] = {}
    permitted: dict[_Attempt, tuple[int, Event]] = {}
    for place, event in enumerate(history.milestones):
        match event.kind:
            case Kind.DISPATCH:
                permitted[event.request, event.epoch] = place, event
            case Kind.KEY_TOLD:
                words = told.setdefault(history.key_of(event), _Told())
                words.first = place if words.first is None else words.first
                words.at.append(event.t)
            case Kind.KEY_LIMITED if event.flag("used_up"):
                words = told.get(history.key_of(event))
                begun = permitted.get((event.request, event.epoch))
                if words is None or words.first is None or begun is None or begun[0] < words.first:
                    continue
                at = begun[1].t
                if any(at - LOOK_SECONDS < word <= at for word in words.at):
                    text = f"permitted at {at} s, refused at {event.t} s, for nothing was left"
                    found.append(Violation("I29", event.request, text))
            case _:
                pass
    return found


@dataclass(slots=True)
class _Refused:
    deployment: str
    measured: float = 0.0
    """Starts per second that it may have been given at the most, when it was refused."""
    at: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    """When (seconds), and what was measured until then; only the first of refusals of attempts that
    ran at the same time."""


class _Keys:
    """What was sent with each key, and when it was refused for its rate."""

    def __init__(self, history: History) -> None:
        self.starts: dict[_Key, list[tuple[float, str | None]]] = {}
        """When each was permitted (seconds), and whose it was."""
        self.never_sent: dict[str, list[float]] = {}
        """Account -> when permits were given with which nothing was sent, with whichever key."""
        self.refused: dict[_Key, _Refused] = {}
        self._permitted: dict[_Attempt, float] = {}
        sent = {
            (event.request, event.epoch): history.key_of(event)
            for kind in (Kind.PROVIDER_START, Kind.KEY_LIMITED)
            for event in history.of(kind)
        }
        for event in history.milestones:
            if event.kind is Kind.DISPATCH:
                attempt = event.request, event.epoch
                self._permitted[attempt] = event.t
                if (key := sent.get(attempt)) is not None:
                    self.starts.setdefault(key, []).append((event.t, event.request))
                else:
                    account, _ = history.key_of(event)
                    self.never_sent.setdefault(account, []).append(event.t)
            elif event.kind is Kind.KEY_LIMITED:
                self._refuse(history, event)

    def _refuse(self, history: History, event: Event) -> None:
        key = history.key_of(event)
        refused = self.refused.setdefault(key, _Refused(event.deployment))
        known = len(self.starts.get(key, ())) + len(self.never_sent.get(key[0], ()))
        refused.measured = max(refused.measured, known / max(event.t, SHORTEST_MEASURE))
        begun = self._permitted.get((event.request, event.epoch))
        if begun is not None and (not refused.at or begun > refused.at[-1][0]):
            refused.at.append((event.t, refused.measured))


def i30_a_refused_key_is_slowed_down(history: History) -> list[Violation]:
    """After a refusal a key has half its rate, and wins it back step by step.

    That is the rate that is configured; else what its provider tells, or what it was given until
    then, which is known of the first minute.

    Raises:
        JournalError: A deployment has no settings, or an event lacks its key.
    """
    found: list[Violation] = []
    keys = _Keys(history)
    for key, refused in keys.refused.items():
        settings = history.settings(refused.deployment)
        if not settings.flag("learns"):
            continue
        starts = keys.starts.get(key, ())
        never_sent = keys.never_sent.get(key[0], ())
        for at, measured in refused.at:
            rate = settings.number("permits_per_second", 0.0)
            if not rate and at <= FIRST_MINUTE:
                rate = max(measured, settings.number("told_per_second", 0.0))
            if rate:
                found += _too_fast(history, starts, never_sent, at, rate)
    return found


def _too_fast(
    history: History,
    starts: Sequence[tuple[float, str | None]],
    never_sent: Sequence[float],
    refused: float,
    rate: float,
) -> list[Violation]:
    """The first start that follows too soon after those before it; a pause saves nothing up.

    A permit that comes back may let one more follow at once.
    """
    level, before, spent = 0.0, refused, 0
    for at, request in starts:
        if at <= refused + history.on_its_way(refused, at):
            continue
        if (at - refused) * STEP_SHARE > 1 - SHARE:
            break
        level = max(0.0, level - _won_back(rate, before - refused, at - refused)) + 1.0
        if level > 1.0 + GRACE * (1.0 + rate):
            since = bisect_left(never_sent, refused - RETURNED_WITHIN)
            spent += 1
            if spent > bisect_right(never_sent, at) - since:
                text = f"permitted at {at} s, too soon after {before} s: refused at {refused} s"
                return [Violation("I30", request, text)]
            level = 1.0
        before = at
    return []


def _won_back(rate: float, since: float, until: float) -> float:
    """How many may start between two times, in seconds since the refusal.

    A step may have been due just when it was refused.
    """
    seconds, squares = until - since, until**2 - since**2
    share = (SHARE + STEP_SHARE) * seconds + STEP_SHARE * squares / 2
    return max(rate * share, LOWEST_RATE * seconds)
