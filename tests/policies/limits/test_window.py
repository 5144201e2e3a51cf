"""The sliding window: no minute ever holds more than the limit, wherever it begins."""

import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.policies.limits.window import Window

STEP = st.sampled_from([0.0, 0.001, 0.3, 0.5, 2.0, 25.0, 59.9, 61.0])


@settings(max_examples=50, deadline=None)
@given(
    limit=st.sampled_from([1.0, 7.0, 60.0, 333.0]),
    steps=st.lists(st.tuples(STEP, st.integers(1, 400)), min_size=1, max_size=80),
    start=st.sampled_from([0.0, 1234.567]),
)
def test_no_minute_holds_more_than_the_limit_wherever_it_begins(
    limit: float, steps: list[tuple[float, int]], start: float
) -> None:
    window, now = Window(limit), start
    used: list[tuple[float, float]] = []
    for pause, amount in steps:
        now += pause
        if window.has_room(amount, now):
            window.add(amount, now)
            used.append((now, amount))

    for at, _ in used:
        assert sum(amount for then, amount in used if at <= then < at + 60.0) <= limit


@settings(max_examples=50, deadline=None)
@given(steps=st.lists(st.tuples(STEP, st.integers(1, 100)), min_size=1, max_size=60))
def test_there_is_room_at_the_time_that_was_told_and_not_before(
    steps: list[tuple[float, int]],
) -> None:
    window, now = Window(100.0), 0.0
    for pause, amount in steps:
        now += pause
        ready_at = window.ready_at(amount, now)
        if ready_at > now:
            assert not window.has_room(amount, (now + ready_at) / 2)
            now = ready_at
        assert window.has_room(amount, now)
        window.add(amount, now)


def test_all_of_the_limit_is_served_minute_by_minute() -> None:
    window, now, served = Window(60.0), 0.0, 0
    while now < 6000.0:
        now = window.ready_at(1.0, now)
        window.add(1.0, now)
        served += 1

    assert served >= 0.98 * 6000


def test_a_correction_counts_at_the_time_of_what_it_corrects() -> None:
    window = Window(100.0)
    window.add(100.0, 0.0)

    window.add(-90.0, 0.0)
    window.add(60.0, 30.0)

    assert window.used == 70.0
    assert window.has_room(40.0, 62.0)
    assert not window.has_room(41.0, 62.0)


def test_a_correction_of_what_was_forgotten_changes_nothing() -> None:
    window = Window(100.0)
    window.add(100.0, 0.0)
    window.add(1.0, 100.0)

    window.add(-100.0, 0.0)

    assert window.used == 1.0


@pytest.mark.parametrize("limit", [0.5, 0.1])
def test_a_limit_below_one_per_minute_is_a_longer_window(limit: float) -> None:
    window = Window(limit)
    window.add(1.0, 0.0)

    ready_at = window.ready_at(1.0, 0.0)

    assert 60.0 / limit < ready_at <= 61.0 / limit


class WindowMachine(RuleBasedStateMachine):
    """Against a list of everything that was ever used."""

    def __init__(self) -> None:
        super().__init__()
        self.window = Window(100.0)
        self.now = 0.0
        self.used: list[list[float]] = []

    @rule(amount=st.integers(1, 50))
    def add(self, amount: int) -> None:
        self.window.add(amount, self.now)
        self.used.append([self.now, amount])

    @precondition(lambda self: self.used)
    @rule(data=st.data(), share=st.floats(0, 2))
    def correct(self, data: st.DataObject, share: float) -> None:
        one = data.draw(st.sampled_from(self.used))
        change = round(one[1] * share) - one[1]
        self.window.add(change, one[0])
        one[1] += change

    @rule(seconds=st.floats(0, 90))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def counts_the_last_minute(self) -> None:
        self.window.has_room(0.0, self.now)
        certain = sum(amount for at, amount in self.used if at >= self.now - 60.0)
        possible = sum(amount for at, amount in self.used if at >= self.now - 61.0)
        low, high = sorted((certain, possible))
        assert low - 1e-6 <= self.window.used <= high + 1e-6


TestWindow = WindowMachine.TestCase
TestWindow.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_the_cost_of_a_step_does_not_grow_with_what_was_used() -> None:
    window = Window(1e9)

    for number in itertools.repeat(1, 10_000):
        window.add(number, 10.0)

    assert len(window._amounts) == 122
    assert window.used == 10_000.0
