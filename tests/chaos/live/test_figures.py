"""What a live journal says of a deployment."""

import msgspec

from orchestrator.chaos.attendant.service import DebugDeployment
from orchestrator.chaos.invariants.history import History
from orchestrator.chaos.invariants.queueing import i7_queue_is_bounded, i16_priority_order
from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.figures import describe

DEPLOYMENT = DebugDeployment(
    name="local",
    state="serving",
    ready=True,
    slots=1,
    live_slots=1,
    queued=0,
    queue_capacity=1,
    waiting=1,
    aging=30.0,
    inflight=0,
    permits=0,
    breaker="closed",
    generation=1,
    max_restarts=5,
    within=30.0,
    stall=1.0,
    requests_per_minute=None,
    probes=1,
    stays_down=False,
    changes=0,
    hosts=[],
)


def found_by_waiting(seconds: float, deployment: DebugDeployment) -> list[str]:
    """What is wrong if a low request waits for so long and goes before a high one."""
    now = 0.0
    journal = Journal(lambda: now)
    describe(journal, deployment)
    for at, request, priority in ((0.0, "low", 1), (seconds - 1, "high", 2)):
        now = at
        more = {"priority": priority, "deadline": 99.0, "depth": 1 + (request == "high")}
        journal.record(Kind.ACCEPT, request=request, deployment="local", more=more)
    now = seconds
    journal.record(Kind.DISPATCH, request="low", worker="w", epoch=1, deployment="local")
    history = History(journal.events)
    found = [*i7_queue_is_bounded(history), *i16_priority_order(history)]
    return [violation.id for violation in found]


def test_waiting_and_the_places_for_those_who_wait_count_as_the_configuration_says() -> None:
    never = msgspec.structs.replace(DEPLOYMENT, aging=None)
    small = msgspec.structs.replace(DEPLOYMENT, waiting=0)

    assert found_by_waiting(31.0, DEPLOYMENT) == []
    assert found_by_waiting(20.0, DEPLOYMENT) == ["I16"]
    assert found_by_waiting(31.0, never) == ["I16"]
    assert found_by_waiting(31.0, small) == ["I7"]
