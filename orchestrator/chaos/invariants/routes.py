"""What a route promises: no loop, no multiplied tries, and few second attempts beside a first.

Holds I26, I27 and I28.
"""

from orchestrator.chaos.invariants.history import History, Violation, first
from orchestrator.chaos.journal import Kind

SAVED = 10.0
"""Hedges that a route may have saved up."""
ON_THE_WAY = 1.0
"""A hedge may be paid for just before a request, whose `submit` is told first, adds its share."""


def i26_no_deployment_twice(history: History) -> list[Violation]:
    """A deployment that gave a request up, or was left for another one, never gets it again."""
    found: list[Violation] = []
    for request, events in history.requests.items():
        seen: set[str] = set()
        for event in events:
            if event.kind is Kind.ACCEPT:
                if event.deployment in seen:
                    text = f"came to {event.deployment} again at {event.t} s"
                    found.append(Violation("I26", request, text))
                seen.add(event.deployment)
    return found


def i27_one_bound_on_all_attempts(history: History) -> list[Violation]:
    """The attempts at all deployments of a route together are no more than its bound.

    Raises:
        JournalError: A bound is no number.
    """
    found: list[Violation] = []
    for request, events in history.requests.items():
        submit = first(events, Kind.SUBMIT)
        if submit is None or "attempts" not in submit.value:
            continue
        limit = submit.number("attempts")
        hedges = {
            event.epoch for event in events if event.kind is Kind.DISPATCH and event.flag("hedge")
        }
        made = sum(
            event.kind is Kind.ATTEMPT_START and event.epoch not in hedges for event in events
        )
        if made > limit:
            found.append(Violation("I27", request, f"made {made} attempts of {limit:g}"))
        if len(hedges) > 1:
            found.append(Violation("I27", request, f"was hedged {len(hedges)} times"))
    return found


def i28_few_hedges(history: History) -> list[Violation]:
    """Second attempts beside a first are no more than a route's share of its requests.

    One counts when it is accepted: it is paid for then, and may wait for its slot and permit.

    Raises:
        JournalError: A share is no number.
    """
    saved: dict[str, float] = {}
    routes: dict[str, str] = {}
    found: list[Violation] = []
    for event in history.milestones:
        if event.kind is Kind.SUBMIT and "hedge_share" in event.value and event.request:
            route = routes[event.request] = event.text("route")
            share = event.number("hedge_share")
            saved[route] = min(SAVED, saved.get(route, 1.0) + share)
        elif event.kind is Kind.ACCEPT and event.flag("hedge") and event.request in routes:
            route = routes[event.request]
            saved[route] -= 1.0
            if saved[route] < -ON_THE_WAY:
                text = f"was hedged at {event.t} s beyond the budget of {route}"
                found.append(Violation("I28", event.request, text))
    return found
