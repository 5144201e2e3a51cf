"""The queue against a model that is obviously right; whom it refuses, and what it says to them."""

import asyncio
import math

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.errors import OrchestratorError, QueueFullError, QueueRejectedError
from orchestrator.inflight import Ticket
from orchestrator.policies.queue import (
    LATEST,
    SOONEST,
    SWEEP_FROM,
    OnFull,
    Pace,
    PriorityQueue,
)
from orchestrator.request import AttemptRecord, Priority
from tests.fakes.systems import make_request

CAPACITY = 5
EXTRA = 3


def ignore(_error: OrchestratorError) -> None:
    """Nobody is told."""


def make_ticket(sequence: int, priority: Priority = Priority.NORMAL) -> Ticket:
    return Ticket(make_request(priority=priority), sequence, ignore)


def record() -> AttemptRecord:
    return AttemptRecord(deployment="m", worker="m/0", epoch=1, started_at=0.0, queued_for=0.0)


class QueueMachine(RuleBasedStateMachine):
    """What waits, what backs off and what had to leave, against plain lists."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PriorityQueue("m", CAPACITY, on_full="wait", waiting=EXTRA)
        self.waiting: dict[Ticket, float] = {}
        """Ticket -> time from which it may start."""
        self.running: list[Ticket] = []
        self.now = 0.0
        self.sequence = 0

    def due(self) -> list[Ticket]:
        ready = [ticket for ticket, since in self.waiting.items() if since <= self.now]
        return sorted(ready, key=lambda t: (-t.request.priority, t.sequence))

    @rule(priority=st.sampled_from(Priority), patient=st.booleans())
    def push(self, priority: Priority, patient: bool) -> None:
        ticket = make_ticket(self.sequence, priority)
        ticket.arrived_at, ticket.patient = self.now, patient
        room = CAPACITY + (EXTRA if patient else 0)
        untried = [t for t in self.waiting if not t.request.attempts and self.waiting[t] == 0.0]
        lower = [t for t in untried if t.request.priority < priority]
        full = len(self.waiting) >= room
        if full and (not patient or not lower):
            with pytest.raises(QueueFullError):
                self.queue.push(ticket)
            return
        self.sequence += 1
        shed = self.queue.push(ticket)
        assert (shed is not None) == full
        if shed is not None:
            assert shed.ticket is max(lower, key=lambda t: (-t.request.priority, t.sequence))
            del self.waiting[shed.ticket]
        self.waiting[ticket] = 0.0

    @rule()
    def start_the_first(self) -> None:
        expected = next(iter(self.due()), None)
        ticket = self.queue.peek(self.now)

        assert ticket is expected
        if ticket is not None:
            self.queue.pop(ticket)
            self.queue.departed(self.now)
            del self.waiting[ticket]
            self.running.append(ticket)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.5, 1.0, 7.0]))
    def try_again(self, data: st.DataObject, delay: float) -> None:
        ticket = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        ticket.attempts += 1
        ticket.request.attempts.append(record())
        self.queue.push_back(ticket, not_before=self.now + delay)
        self.waiting[ticket] = self.now + delay

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        ticket = list(self.waiting)[data.draw(st.integers(0, len(self.waiting) - 1))]
        self.queue.discard(ticket)
        self.queue.discard(ticket)  # a second time changes nothing
        del self.waiting[ticket]

    @rule(seconds=st.sampled_from([0.25, 1.0, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def agrees(self) -> None:
        first = self.queue.peek(self.now)

        assert len(self.queue) == len(self.waiting)
        assert first is next(iter(self.due()), None)
        later = [since for since in self.waiting.values() if since > self.now]
        assert self.queue.next_time() == min(later, default=None)
        assert all(ticket.queued for ticket in self.waiting)
        assert not any(ticket.queued for ticket in self.running)


TestQueueAgainstAModel = QueueMachine.TestCase
TestQueueAgainstAModel.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_a_retry_is_never_refused_by_a_full_queue() -> None:
    queue = PriorityQueue("m", 2)
    old = make_ticket(0)
    old.attempts = 1
    for sequence in (1, 2):
        queue.push(make_ticket(sequence))

    queue.push_back(old, not_before=0.0)

    assert len(queue) == 3
    assert queue.peek(0.0) is old


def test_a_full_queue_says_how_many_wait_and_when_to_come_back() -> None:
    queue = PriorityQueue("smollm2", 1)
    queue.push(make_ticket(0))

    with pytest.raises(QueueFullError, match=r"queue of smollm2 is full \(1 requests") as caught:
        queue.push(make_ticket(1))

    assert caught.value.retry_after == 1.0
    assert caught.value.status_code == 429


def test_requests_that_ended_while_they_backed_off_are_swept_out() -> None:
    queue = PriorityQueue("m", 10)
    tickets = [make_ticket(sequence) for sequence in range(1000)]
    for ticket in tickets:
        queue.push_back(ticket, not_before=5.0)

    for ticket in tickets[1:]:
        queue.discard(ticket)

    assert len(queue) == 1
    assert len(queue._delayed) <= SWEEP_FROM + 1
    assert queue.peek(5.0) is tickets[0]


def test_once_nobody_backs_off_nothing_is_held_of_those_who_did() -> None:
    queue = PriorityQueue("m", 10)
    tickets = [make_ticket(sequence) for sequence in range(10)]
    for ticket in tickets:
        queue.push_back(ticket, not_before=5.0)
    for ticket in tickets:
        queue.discard(ticket)

    assert queue._delayed == []
    assert queue.next_time() is None


def full_queue(
    on_full: OnFull = "failover", *, capacity: int = 2, waiting: int = 0
) -> PriorityQueue:
    queue = PriorityQueue("m", capacity, on_full=on_full, waiting=waiting)
    for sequence in range(capacity):
        queue.push(make_ticket(sequence, Priority.BACKGROUND))
    return queue


@pytest.mark.parametrize(
    ("on_full", "kind"), [("failover", QueueFullError), ("reject", QueueRejectedError)]
)
def test_who_makes_room_is_told_why_and_when_to_come_back(
    on_full: OnFull, kind: type[QueueFullError]
) -> None:
    queue = full_queue(on_full)

    shed = queue.push(make_ticket(9, Priority.HIGH))

    assert shed is not None
    assert type(shed.error) is kind
    assert "gave its place up for one of a higher priority" in shed.error.message
    assert shed.error.retry_after == 1.0
    assert (shed.ticket.sequence, shed.ticket.queued, len(queue)) == (1, False, 2)


def test_extra_places_are_for_who_is_patient_and_there_is_an_end_of_them() -> None:
    queue = full_queue("wait", waiting=1)
    hasty, patient, late = (make_ticket(number) for number in (7, 8, 9))
    patient.patient = late.patient = True

    with pytest.raises(QueueFullError):
        queue.push(hasty)
    assert queue.push(patient) is None
    shed = queue.push(late)

    assert shed is not None
    assert shed.ticket.request.priority is Priority.BACKGROUND
    assert queue.peek(0.0) is patient  # one order holds over all places


def drain(queue: PriorityQueue, every: float, times: int, start: float = 0.0) -> float:
    """Serves one at a fixed pace; another one comes for each."""
    for number in range(times):
        now = start + number * every
        ticket = queue.peek(now)
        assert ticket is not None
        queue.pop(ticket)
        queue.departed(now)
        queue.push(make_ticket(1_000 + number, Priority.BACKGROUND))
    return start + (times - 1) * every


@pytest.mark.parametrize("every", [0.25, 2.0, 40.0])
def test_a_refusal_names_the_measured_time_to_the_next_place(every: float) -> None:
    queue = full_queue()
    now = drain(queue, every, 20)
    refused = make_ticket(99, Priority.BACKGROUND)
    refused.arrived_at = now

    with pytest.raises(QueueFullError) as caught:
        queue.push(refused)

    assert caught.value.retry_after == pytest.approx(every)


def test_each_further_refusal_names_a_later_place_and_a_higher_class_an_earlier_one() -> None:
    pace = Pace()
    for second in range(5):
        pace.departed(float(second), somebody_waits=True)

    told = [pace.promise(Priority.NORMAL, 4.0) for _ in range(3)]
    high = pace.promise(Priority.HIGH, 4.0)

    assert told == pytest.approx([1.0, 2.0, 3.0])
    assert high == pytest.approx(1.0)
    assert pace.promise(Priority.BACKGROUND, 4.0) == pytest.approx(4.0)
    assert pace.promise(Priority.NORMAL, 100.0) == pytest.approx(1.0)  # old promises are over


def test_times_without_anybody_waiting_say_nothing_about_the_pace() -> None:
    pace = Pace()
    pace.departed(0.0, somebody_waits=True)
    pace.departed(2.0, somebody_waits=False)
    pace.departed(500.0, somebody_waits=True)
    pace.departed(502.0, somebody_waits=True)

    assert pace.interval == pytest.approx(2.0)


def test_a_queue_that_is_held_frees_no_place_before_and_one_that_moves_is_not_held() -> None:
    pace = Pace()
    pace.hold(50.0, 0.0)
    assert pace.promise(Priority.BACKGROUND, 10.0) == pytest.approx(41.0)

    pace.departed(20.0, somebody_waits=True)
    assert pace.promise(Priority.HIGH, 20.0) == pytest.approx(1.0)
    pace.hold(math.inf, 0.0)
    assert pace.promise(Priority.CRITICAL, 20.0) == pytest.approx(1.0)


def test_a_refusal_is_never_at_once_and_never_beyond_reason() -> None:
    pace = Pace()
    for number in range(10):
        pace.departed(number * 0.001, somebody_waits=True)
    soon = pace.promise(Priority.NORMAL, 1.0)
    pace.hold(10_000.0, 0.0)

    assert soon == pytest.approx(SOONEST)
    assert pace.promise(Priority.NORMAL, 1.0) == pytest.approx(LATEST)


async def test_two_equal_requests_are_ordered_without_comparing_them() -> None:
    async with asyncio.timeout(5):
        queue = PriorityQueue("m", 10)
        first, second = make_ticket(0), make_ticket(1)
        first.attempts = second.attempts = 1
        await asyncio.sleep(0)
        queue.push_back(second, not_before=5.0)
        queue.push_back(first, not_before=5.0)

    assert queue.peek(5.0) is first


def test_the_time_in_which_permits_hold_the_queue_is_counted_apart():
    pace = Pace()

    pace.hold(5.0, 1.0)
    pace.hold(6.0, 3.0)
    held = [pace.held(4.0)]
    pace.departed(6.0, somebody_waits=True)
    held.append(pace.held(9.0))
    pace.hold(12.0, 10.0)
    held.append(pace.held(11.0))

    assert held == [3.0, 5.0, 6.0]
