"""The queue against a model that is obviously right, and the cost of a step."""

import asyncio
from collections.abc import Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.errors import OrchestratorError, QueueFullError
from orchestrator.inflight import Ticket
from orchestrator.policies.queue import SWEEP_FROM, PriorityQueue
from orchestrator.request import Priority
from tests.fakes.systems import make_request

CAPACITY = 12


def ignore(_error: OrchestratorError) -> None:
    """Nobody is told."""


def make_ticket(sequence: int, priority: Priority = Priority.NORMAL) -> Ticket:
    return Ticket(make_request(priority=priority), sequence, ignore)


class QueueMachine(RuleBasedStateMachine):
    """A sorted list does what the two heaps do."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = PriorityQueue("m", CAPACITY)
        self.waiting: dict[Ticket, float] = {}
        """Ticket -> time from which it may start."""
        self.running: list[Ticket] = []
        self.now = 0.0
        self.sequence = 0

    def due(self) -> list[Ticket]:
        ready = [ticket for ticket, since in self.waiting.items() if since <= self.now]
        return sorted(ready, key=lambda t: (-t.request.priority, t.sequence))

    @rule(priority=st.sampled_from(Priority))
    def push(self, priority: Priority) -> None:
        ticket = make_ticket(self.sequence, priority)
        if len(self.waiting) >= CAPACITY:
            with pytest.raises(QueueFullError):
                self.queue.push(ticket)
            return
        self.sequence += 1
        self.queue.push(ticket)
        self.waiting[ticket] = 0.0

    @rule()
    def start_the_first(self) -> None:
        expected = next(iter(self.due()), None)
        ticket = self.queue.peek(self.now)

        assert ticket is expected
        if ticket is not None:
            self.queue.pop(ticket)
            del self.waiting[ticket]
            self.running.append(ticket)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), delay=st.sampled_from([0.0, 0.5, 1.0, 7.0]))
    def try_again(self, data: st.DataObject, delay: float) -> None:
        ticket = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
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
TestQueueAgainstAModel.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def test_a_retry_is_never_refused_by_a_full_queue() -> None:
    queue = PriorityQueue("m", 2)
    old = make_ticket(0)
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


def test_requests_that_ended_are_swept_out_and_do_not_pile_up() -> None:
    queue = PriorityQueue("m", 100_000)
    tickets = [make_ticket(sequence) for sequence in range(1000)]
    for ticket in tickets:
        queue.push(ticket)

    for ticket in tickets[1:]:
        queue.discard(ticket)

    assert len(queue) == 1
    assert len(queue._ready) <= 2 * SWEEP_FROM + 2
    assert queue.peek(0.0) is tickets[0]


class Counted(int):
    """A priority that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, int) and int(self) < int(other)


def cost_of_a_step(length: int) -> int:
    queue = PriorityQueue("m", length + 1)
    for sequence in range(length):
        queue.push(make_ticket(sequence, Priority(sequence % 4)))
    counted: Iterator[tuple[int, int, Ticket]] = iter(queue._ready)
    queue._ready = [(priority, Counted(sequence), ticket) for priority, sequence, ticket in counted]
    Counted.comparisons = 0
    for _ in range(100):
        ticket = queue.peek(0.0)
        assert ticket is not None
        queue.pop(ticket)
    return Counted.comparisons


def test_a_step_costs_the_logarithm_of_the_length_and_not_the_length() -> None:
    short, long = cost_of_a_step(500), cost_of_a_step(8_000)

    assert long < 3 * short  # linear would be 16 times


async def test_two_equal_requests_are_ordered_without_comparing_them() -> None:
    async with asyncio.timeout(5):
        queue = PriorityQueue("m", 10)
        first, second = make_ticket(0), make_ticket(1)
        await asyncio.sleep(0)
        queue.push_back(second, not_before=5.0)
        queue.push_back(first, not_before=5.0)

    assert queue.peek(5.0) is first
