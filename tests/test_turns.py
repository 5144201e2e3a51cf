"""Whose turn it is, against rules that are checked by looking at everybody; what a turn costs."""

import math
import sys
from collections import Counter
from types import FrameType
from typing import Self

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.errors import OrchestratorError
from orchestrator.inflight import Ticket
from orchestrator.request import AttemptRecord, Priority
from orchestrator.turns import SWEEP_FROM, TOP, Turns
from tests.fakes.systems import make_request

AGING = 10.0
CALLERS = ("", "ann", "bob")


def ignore(_error: OrchestratorError) -> None:
    """Nobody is told."""


def record() -> AttemptRecord:
    return AttemptRecord(deployment="m", worker="m/0", epoch=1, started_at=0.0, queued_for=0.0)


def make_ticket(
    sequence: int,
    priority: Priority = Priority.NORMAL,
    caller: str = "",
    at: float = 0.0,
) -> Ticket:
    request = make_request(priority=priority, caller=caller)
    return Ticket(request, sequence, ignore, queued=True, arrived_at=at)


def waits(turns: Turns, ticket: Ticket) -> Ticket:
    turns.add(ticket)
    return ticket


def serve(turns: Turns, now: float = 0.0) -> Ticket:
    ticket = turns.first(now)
    assert ticket is not None
    ticket.queued = False
    turns.serve(ticket)
    return ticket


def come_back(turns: Turns, ticket: Ticket) -> Ticket:
    ticket.queued = True
    ticket.attempts += 1
    ticket.request.attempts.append(record())
    turns.add(ticket)
    return ticket


def leave(turns: Turns, ticket: Ticket) -> None:
    ticket.queued = False
    turns.remove(ticket)


class TurnsMachine(RuleBasedStateMachine):
    """Whoever is served might be found by asking everybody who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns(AGING)
        self.waiting: list[Ticket] = []
        self.served: list[Ticket] = []
        self.now = 0.0
        self.sequence = 0
        self.passed_over: Counter[tuple[Ticket, str]] = Counter()
        """(who waits at the top, caller) -> that caller's turns since, nobody of his own served."""

    def level(self, ticket: Ticket) -> int:
        aged = int((self.now - ticket.arrived_at) / AGING)
        return min(TOP, ticket.request.priority + aged)

    @rule(priority=st.sampled_from(Priority), caller=st.sampled_from(CALLERS))
    def add(self, priority: Priority, caller: str) -> None:
        ticket = make_ticket(self.sequence, priority, caller, self.now)
        self.sequence += 1
        self.waiting.append(waits(self.turns, ticket))

    @precondition(lambda self: self.served)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        ticket = self.served.pop(data.draw(st.integers(0, len(self.served) - 1)))
        self.waiting.append(come_back(self.turns, ticket))

    @precondition(lambda self: self.waiting)
    @rule()
    def serve_the_first(self) -> None:
        ticket = self.turns.first(self.now)
        assert ticket is not None
        top, caller = self.level(ticket), ticket.request.caller

        assert top == max(map(self.level, self.waiting))
        rivals = [other for other in self.waiting if self.level(other) == top]
        own = [other for other in rivals if other.request.caller == caller]
        assert ticket is min(own, key=lambda other: other.sequence)
        for other in rivals:
            if other.request.caller != caller:
                self.passed_over[other, caller] += 1
                # one turn more than one's share where both have come to the level meanwhile
                assert self.passed_over[other, caller] <= 2
        for other, whose in list(self.passed_over):
            if other.request.caller == caller and whose != caller:
                del self.passed_over[other, whose]
        serve(self.turns, self.now)
        self.waiting.remove(ticket)
        self.served.append(ticket)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def go_away(self, data: st.DataObject) -> None:
        ticket = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        leave(self.turns, ticket)

    @rule(seconds=st.sampled_from([0.5, AGING, 2.5 * AGING]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.passed_over.clear()  # levels change, and with them who is whose rival

    @rule(priority=st.sampled_from(Priority), caller=st.sampled_from(CALLERS))
    def who_would_make_room(self, priority: Priority, caller: str) -> None:
        request = make_request(priority=priority, caller=caller)
        ticket = self.turns.to_shed(request, self.now)

        if ticket is None:
            return
        assert ticket in self.waiting
        assert not ticket.request.attempts
        assert self.level(ticket) <= priority
        if ticket.request.priority == priority:
            sizes = Counter(
                other.request.caller for other in self.waiting if other.request.priority == priority
            )
            assert sizes[ticket.request.caller] > sizes[caller] + 1
        else:
            assert self.level(ticket) < priority

    @invariant()
    def the_first_one_tells_the_highest_level_until_somebody_rises(self) -> None:
        first = self.turns.first(self.now)
        if first is None:
            return
        level = max(map(self.level, self.waiting))
        rises = [
            ticket.arrived_at + (self.level(ticket) + 1 - ticket.request.priority) * AGING
            for ticket in self.waiting
            if self.level(ticket) == level < TOP
        ]

        assert self.turns.level(first, self.now) == level
        assert self.now < self.turns.next_rise(self.now) <= min(rises, default=math.inf)

    @invariant()
    def nothing_is_left_of_who_does_not_wait(self) -> None:
        lines = {
            (ticket.request.priority, ticket.request.caller)
            for ticket in self.waiting
            if ticket is not self.turns._alone
        }
        kept = {
            (line.priority, line.caller) for some in self.turns._lines for line in some.values()
        }
        assert kept == lines
        ringed = {caller for ring in self.turns._rings for caller in ring}
        assert ringed == {caller for _, caller in lines}
        assert (self.turns.first(self.now) is None) == (not self.waiting)


TestTurnsAgainstEverybody = TurnsMachine.TestCase
TestTurnsAgainstEverybody.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)


def test_callers_take_turns_however_much_one_of_them_has_waiting() -> None:
    turns = Turns()
    for sequence in range(10_000):
        waits(turns, make_ticket(sequence, caller="ann"))
    for sequence in range(10_000, 10_003):
        waits(turns, make_ticket(sequence, caller="bob"))

    order = [serve(turns).request.caller for _ in range(8)]

    assert order == ["ann", "bob", "ann", "bob", "ann", "bob", "ann", "ann"]


def test_one_callers_own_requests_go_in_the_order_in_which_they_came() -> None:
    turns = Turns()
    tickets = [waits(turns, make_ticket(sequence, caller="ann")) for sequence in range(5)]

    assert [serve(turns) for _ in tickets] == tickets


def test_a_higher_class_goes_first_until_the_lower_one_has_waited_long_enough() -> None:
    turns = Turns(AGING)
    old = waits(turns, make_ticket(0, Priority.BACKGROUND))
    high = waits(turns, make_ticket(1, Priority.HIGH, at=2 * AGING - 0.1))

    assert turns.first(2 * AGING - 0.01) is high
    assert turns.first(2 * AGING) is old


@pytest.mark.parametrize("arrived_at", [0.1, 0.7, 3.3, 1e6 + 0.1])
def test_who_waits_alone_is_at_its_next_level_when_it_was_said_to_be(arrived_at: float) -> None:
    turns, aging, now = Turns(0.1), 0.1, arrived_at
    ticket = waits(turns, make_ticket(0, Priority.BACKGROUND, at=arrived_at))

    levels = [turns.level(ticket, now)]
    while (now := turns.next_rise(now)) < math.inf:
        levels.append(turns.level(ticket, now))

    assert levels == [0, 1, 2, 3]
    assert Turns(aging).next_rise(0.0) == Turns(None).next_rise(0.0) == math.inf


def test_without_aging_the_lowest_class_waits_as_long_as_a_higher_one_comes() -> None:
    turns = Turns(None)
    waits(turns, make_ticket(0, Priority.BACKGROUND))
    high = waits(turns, make_ticket(1, Priority.HIGH, at=1e6))

    assert turns.first(1e9) is high


@pytest.mark.parametrize("priority", Priority)
def test_endless_arrivals_of_a_higher_class_hold_nobody_up_beyond_the_aging_bound(
    priority: Priority,
) -> None:
    turns = Turns(AGING)
    low = waits(turns, make_ticket(0, priority, at=0.0))
    for second in range(100):  # one slot, a second each, two more come meanwhile
        for number in range(2):
            sequence = 1 + 2 * second + number
            waits(turns, make_ticket(sequence, Priority.CRITICAL, at=float(second)))
        if serve(turns, float(second)) is low:
            assert second <= (TOP - priority) * AGING + 1
            return
    pytest.fail("it was never served")


def test_the_lowest_class_makes_room_and_of_it_the_youngest_of_whoever_has_most() -> None:
    turns = Turns(AGING)
    waits(turns, make_ticket(0, Priority.BACKGROUND, "ann"))
    waits(turns, make_ticket(1, Priority.BACKGROUND, "bob"))
    youngest = waits(turns, make_ticket(2, Priority.BACKGROUND, "ann"))
    waits(turns, make_ticket(3, Priority.BACKGROUND, "bob", at=1.0))
    leave(turns, waits(turns, make_ticket(4, Priority.BACKGROUND, "bob")))
    waits(turns, make_ticket(5, Priority.NORMAL, "carl"))
    waits(turns, make_ticket(6, Priority.BACKGROUND, "ann"))

    found = turns.to_shed(make_request(priority=Priority.HIGH), 0.0)

    assert found is not youngest
    assert found is not None
    assert found.sequence == 6


@pytest.mark.parametrize("tried", ["here", "elsewhere"])
def test_who_was_tried_already_keeps_its_place_whatever_comes(tried: str) -> None:
    turns = Turns()
    ticket = waits(turns, make_ticket(0, Priority.BACKGROUND))
    if tried == "here":
        serve(turns)
        come_back(turns, ticket)
    else:
        ticket.request.attempts.append(record())

    assert turns.to_shed(make_request(priority=Priority.CRITICAL), 0.0) is None


def test_whoever_a_hedge_was_begun_for_keeps_its_place_and_the_one_before_it_makes_room() -> None:
    turns = Turns()
    older = waits(turns, make_ticket(0, Priority.BACKGROUND))
    hedged = waits(turns, make_ticket(1, Priority.BACKGROUND))
    hedged.request.attempts.append(record())  # at another deployment, while it waits here
    high = make_request(priority=Priority.HIGH)

    assert turns.to_shed(high, 0.0) is older
    leave(turns, older)
    assert turns.to_shed(high, 0.0) is None


def test_who_has_risen_to_a_class_makes_no_room_for_it() -> None:
    turns = Turns(AGING)
    ticket = waits(turns, make_ticket(0, Priority.BACKGROUND))
    high = make_request(priority=Priority.HIGH)

    assert turns.to_shed(high, 2 * AGING - 0.1) is ticket
    assert turns.to_shed(high, 2 * AGING) is None


def test_a_caller_with_little_waiting_gets_a_place_of_one_who_has_more() -> None:
    turns = Turns()
    tickets = [waits(turns, make_ticket(sequence, caller="ann")) for sequence in range(3)]

    assert turns.to_shed(make_request(caller="bob"), 0.0) is tickets[-1]
    assert turns.to_shed(make_request(caller="ann"), 0.0) is None


class Steps:
    """Counts the calls of functions, of ours and of C's, while work is done."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, _frame: FrameType, event: str, _argument: object) -> None:
        self.count += event in {"call", "c_call"}


def calls_per_request(length: int, callers: int) -> float:
    turns = Turns(AGING)
    for sequence in range(length):
        ticket = make_ticket(sequence, Priority(sequence % 4), f"caller {sequence % callers}")
        waits(turns, ticket)
    later = [
        make_ticket(length + number, Priority(number % 4), f"caller {number % callers}")
        for number in range(100)
    ]
    with Steps() as steps:
        for ticket in later:
            turns.add(ticket)
            serve(turns)
    return steps.count / len(later)


@pytest.mark.parametrize("callers", [1, 7])
def test_a_turn_costs_the_same_with_ten_waiting_and_with_ten_thousand(callers: int) -> None:
    few, many = calls_per_request(10, callers), calls_per_request(10_000, callers)

    assert many <= 1.1 * few


class Counted(int):
    """A number that counts how often it is compared."""

    comparisons = 0

    def __lt__(self, other: object) -> bool:
        Counted.comparisons += 1
        return isinstance(other, int) and int(self) < int(other)


def comparisons_per_return(length: int) -> float:
    turns = Turns()
    tickets = [waits(turns, make_ticket(Counted(sequence))) for sequence in range(length)]
    for ticket in tickets:
        assert serve(turns) is ticket
    for ticket in tickets:
        come_back(turns, ticket)
    Counted.comparisons = 0
    for _ in range(100):
        serve(turns)
    return Counted.comparisons / 100


def test_coming_back_costs_the_logarithm_of_how_many_came_back() -> None:
    assert comparisons_per_return(8_000) < 3 * comparisons_per_return(500)  # linear: 16 times


def test_once_nobody_waits_nothing_is_held_of_those_who_did() -> None:
    turns = Turns(AGING)
    some = [waits(turns, make_ticket(number, caller=f"c{number % 3}")) for number in range(30)]
    for ticket in some[:20]:
        leave(turns, ticket)
    while turns.first(0.0) is not None:
        serve(turns)

    assert repr(turns) == "<Turns, 0 in 0 lines>"
    assert turns._due == []


def calls_to_find_whom_to_shed(length: int) -> int:
    turns = Turns(AGING)
    for sequence in range(length):
        waits(turns, make_ticket(sequence, Priority(sequence % 3), f"caller {sequence % 7}"))
    request = make_request(priority=Priority.CRITICAL)
    with Steps() as steps:
        assert turns.to_shed(request, 0.0) is not None
    return steps.count


def test_finding_whom_to_shed_costs_the_same_with_ten_and_with_ten_thousand() -> None:
    assert calls_to_find_whom_to_shed(10_000) <= calls_to_find_whom_to_shed(10)


def test_who_left_and_who_rose_are_swept_out_and_do_not_pile_up() -> None:
    turns = Turns(AGING)
    for sequence in range(5_000):
        waits(turns, make_ticket(sequence))
        serve(turns)
    again = [make_ticket(sequence) for sequence in range(1_000)]
    for ticket in again:
        come_back(turns, ticket)
    for ticket in again[1:]:
        leave(turns, ticket)

    line = turns._lines[Priority.NORMAL][""]
    assert len(turns._due) <= SWEEP_FROM
    assert len(line.returned) <= SWEEP_FROM + 1
    assert turns.first(0.0) is again[0]
