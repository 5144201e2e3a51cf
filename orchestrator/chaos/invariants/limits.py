"""What a provider's own word about its limits is worth.

Holds I29 and I30. Before its first true word about a key nothing is known of it, so nothing can be
promised; and whoever has said nothing for a minute is looked at once, whatever was left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.chaos.invariants.history import GRACE, History, Violation
from orchestrator.chaos.journal import Event, Kind

LOOK_SECONDS = 60.0
SHARE = 0.5
"""Of its rate, what a key has left after a refusal."""
STEP_SHARE = 0.02
"""Of its rate, what a key wins back in a second at the most."""

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


def i30_a_refused_key_is_slowed_down(history: History) -> list[Violation]:
    """After a refusal a key has half its rate, and wins it back step by step.

    Judged where the rate is configured. Of refusals of attempts that ran at the same time only the
    first counts.

    Raises:
        JournalError: A deployment has no settings, or an event lacks its key.
    """
    found: list[Violation] = []
    permitted: dict[_Attempt, float] = {}
    starts: dict[_Key, list[tuple[float, str | None]]] = {}
    refusals: dict[_Key, list[float]] = {}
    deployments: dict[_Key, str] = {}
    for event in history.milestones:
        match event.kind:
            case Kind.DISPATCH:
                permitted[event.request, event.epoch] = event.t
            case Kind.PROVIDER_START:
                at = permitted.get((event.request, event.epoch), event.t)
                starts.setdefault(history.key_of(event), []).append((at, event.request))
            case Kind.KEY_LIMITED:
                deployments.setdefault(history.key_of(event), event.deployment)
                places = refusals.setdefault(history.key_of(event), [])
                begun = permitted.get((event.request, event.epoch))
                if begun is not None and (not places or begun > places[-1]):
                    places.append(event.t)
            case _:
                pass
    for key, places in refusals.items():
        settings = history.settings(deployments[key])
        if settings.flag("learns") and "permits_per_second" in settings.value:
            rate = settings.number("permits_per_second")
            for at in places:
                found += _too_fast(history, sorted(starts.get(key, ())), at, rate)
    return found


def _too_fast(
    history: History, starts: Sequence[tuple[float, str | None]], refused: float, rate: float
) -> list[Violation]:
    count = 0
    for at, request in starts:
        seconds = at - refused
        if at <= refused + history.on_its_way(refused, at):
            continue
        if seconds * STEP_SHARE > 1 - SHARE:
            break
        count += 1
        # one at once, and the rate's integral; a step may have been due just when it was refused
        share = SHARE + STEP_SHARE + STEP_SHARE * seconds / 2
        bound = 1 + rate * seconds * share
        if count > bound + GRACE:
            text = f"start {count} permitted at {at} s, {bound:.2f} are after {refused} s"
            return [Violation("I30", request, text)]
    return []
