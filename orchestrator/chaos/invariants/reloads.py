"""What a reload promises: nobody ends because of it.

Holds I31.
"""

from orchestrator.chaos.invariants.history import History, Violation
from orchestrator.chaos.journal import Kind

TOLD_TO_END = "gateway sigterm"
DRAIN = "drain"


def i31_a_reload_ends_nobody(history: History) -> list[Violation]:
    """In a run with reloads no request fails as if its service came to its end, while it doesn't.

    Raises:
        JournalError: An event lacks what its kind needs.
    """
    if not history.of(Kind.RELOAD):
        return []
    if any(event.text("what") == TOLD_TO_END for event in history.of(Kind.FAULT_PLANNED)):
        return []
    drains = [event.t for event in history.of(Kind.PHASE) if event.text("name") == DRAIN]
    end = min(drains, default=float("inf"))
    return [
        Violation("I31", event.request, f"ended at {event.t} s, for its deployment was stopping")
        for event in history.of(Kind.TERMINAL)
        if event.t < end and event.text("code", "") == "draining"
    ]
