"""Who gets the permits of a key that several deployments send. Holds I32.

Only a deployment with an idle slot and a closed circuit wants a permit, and a journal shows of a
worker that it is idle once an attempt of it has ended. Nothing is judged of a deployment whose
number of attempts adapts: it may have a slot idle on purpose.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from orchestrator.chaos.invariants.history import History, Violation, worker_of
from orchestrator.chaos.invariants.queueing import ACCEPTED_WITHIN, Queues, Waiter
from orchestrator.chaos.journal import Event, Kind


@dataclass(slots=True)
class _Member:
    """A deployment of several with one account."""

    alive: set[str] = field(default_factory=set[str])
    """Workers; attempts of those that were poisoned end later."""
    idle: dict[str, float] = field(default_factory=dict[str, float])
    """Worker -> since when it is idle, for certain (seconds)."""
    closed_since: float = 0.0
    """When its circuit was closed (seconds); infinite while it isn't."""
    adapts: bool = False

    def follow(self, event: Event) -> None:
        match event.kind:
            case Kind.WORKER_START:
                self.alive.add(worker_of(event))
            case Kind.ATTEMPT_END if worker_of(event) in self.alive:
                self.idle[worker_of(event)] = event.t
            case Kind.BREAKER:
                closed = event.text("state") == "closed"
                self.closed_since = event.t if closed else math.inf
            case Kind.DISPATCH:
                self.idle.pop(worker_of(event), None)
                self.adapts = self.adapts or "limit" in event.value
            case Kind.WORKER_DEAD | Kind.KILL:
                self.idle.pop(worker_of(event), None)
                self.alive.discard(worker_of(event))
            case Kind.POISON:
                self.idle.clear()
                self.alive.clear()
            case _:
                pass

    def wants_one(self, before: float) -> bool:
        """Whether it had a slot to give somebody, for certain, since before then."""
        if self.adapts or self.closed_since >= before:
            return False
        return any(since < before for since in self.idle.values())


def i32_the_most_urgent_gets_the_key(history: History) -> list[Violation]:
    """Of deployments with one key none gets a permit while another one has somebody more urgent.

    Raises:
        JournalError: An event lacks its request, worker, priority or time.
    """
    accounts = _accounts(history)
    if not accounts:
        return []
    found: list[Violation] = []
    queues = Queues(history)
    members = {name: _Member() for account in accounts.values() for name in account}
    for place, event in enumerate(history.milestones):
        served = queues.follow(place, event)
        if event.deployment not in members:
            continue
        members[event.deployment].follow(event)
        if event.kind is not Kind.DISPATCH or served is None:
            continue
        # a word needs a moment to whoever has become the first, and so does a timer
        since = event.t - history.lateness(ACCEPTED_WITHIN, event.t - ACCEPTED_WITHIN, event.t)
        account = history.key_of(event)[0]
        others = [
            other
            for name in accounts[account]
            if name != event.deployment and members[name].wants_one(since)
            for other in queues.waiting.get(name, {}).values()
        ]
        if (first := _more_urgent(others, served, event.t, since)) is not None:
            text = f"was overtaken at a key by {served.request} at {event.t} s"
            found.append(Violation("I32", first.request, text))
    return found


def _accounts(history: History) -> dict[str, list[str]]:
    accounts: dict[str, list[str]] = {}
    for name, settings in history.deployments.items():
        accounts.setdefault(settings.text("account", name), []).append(name)
    return {account: names for account, names in accounts.items() if len(names) > 1}


def _more_urgent(
    others: Iterable[Waiter], served: Waiter, now: float, since: float
) -> Waiter | None:
    level = served.level(now + ACCEPTED_WITHIN)
    for other in others:
        # a hedged request waits in two deployments, and may be served by either
        waits = other.request != served.request and other.since < since and other.may_start(since)
        if waits and other.level(since) > level:
            return other
    return None
