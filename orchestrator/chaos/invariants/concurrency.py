"""What a deployment whose concurrency adapts is promised: never more at once than its limit.

Holds I25.
"""

from orchestrator.chaos.invariants.history import History, Violation, request_of
from orchestrator.chaos.journal import Kind


def i25_no_more_at_once_than_the_limit(history: History) -> list[Violation]:
    """No attempt is dispatched beside as many as the limit allows; a lower limit stops none.

    Raises:
        JournalError: An event lacks its request or limit.
    """
    found: list[Violation] = []
    running: dict[str, dict[str, str | None]] = {}
    """Deployment -> request -> its worker; what a journal doesn't tell to be over may still run."""
    hedged = {event.request for event in history.of(Kind.ACCEPT) if event.flag("hedge")}
    for event in history.milestones:
        here = running.setdefault(event.deployment, {})
        match event.kind:
            case Kind.DISPATCH:
                here[request_of(event)] = event.worker
                if "limit" in event.value and len(here) > event.number("limit"):
                    text = f"was one of {len(here)} at {event.t} s, the limit was "
                    text += f"{event.number('limit'):g}"
                    found.append(Violation("I25", event.request, text))
                if event.request in hedged:
                    # it may have lost while the order was on its way, or meet an open circuit, and
                    # the other one go on: nothing tells that its slot is free again
                    del here[request_of(event)]
            case Kind.ADMIT if event.request in hedged:
                here[request_of(event)] = event.worker
            case Kind.RETRY | Kind.TERMINAL | Kind.ACCEPT | Kind.REJECT:
                for others in running.values():
                    others.pop(request_of(event), None)
            case Kind.ATTEMPT_END if event.request in hedged:
                # one contender may be over and the request go on with the other
                if here.get(request_of(event)) == event.worker:
                    del here[request_of(event)]
            case Kind.WORKER_DEAD:
                running[event.deployment] = {
                    request: worker for request, worker in here.items() if worker != event.worker
                }
            case Kind.POISON:
                here.clear()
            case _:
                pass
    return found
