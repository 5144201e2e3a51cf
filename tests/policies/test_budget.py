"""What may be spent in a window of the calendar, and what follows when it has been."""

from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orchestrator.errors import BudgetExceededError
from orchestrator.policies.budget import (
    PERIODS,
    Action,
    Amount,
    Budget,
    Budgets,
    Hold,
    Period,
    Scope,
    window_of,
)

NOON = datetime(2026, 1, 31, 12, 30, tzinfo=UTC).timestamp()


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def tokens(most: int, *, per: Period = "hour", action: Action = "reject") -> Budget:
    return Budget(scope="caller", per=per, tokens=most, on_exceeded=action)


def admitted(budgets: Budgets, name: str = "ann", holds: int = 0) -> Hold:
    hold = Hold(Amount(0, holds))
    budgets.admit("caller", name, hold)
    return hold


def spend(budgets: Budgets, amount: int, name: str = "ann") -> None:
    budgets.spend("caller", name, Amount(0, amount))


@pytest.mark.parametrize(
    ("period", "begin", "end"),
    [
        ("hour", "2026-01-31T12:00", "2026-01-31T13:00"),
        ("day", "2026-01-31T00:00", "2026-02-01T00:00"),
        ("month", "2026-01-01T00:00", "2026-02-01T00:00"),
    ],
)
def test_a_window_is_the_calendars_in_utc(period: Period, begin: str, end: str) -> None:
    told = [datetime.fromtimestamp(at, UTC).isoformat()[:16] for at in window_of(period, NOON)]

    assert told == [begin, end]


def test_a_caller_who_has_spent_all_is_refused_until_the_window_ends() -> None:
    clock = Clock()
    budgets = Budgets([tokens(100)], clock)
    spend(budgets, 100)

    with pytest.raises(BudgetExceededError, match=r"resets at 2026-01-31T13:00:00Z") as caught:
        admitted(budgets)
    admitted(budgets, "bob")
    clock.now += 1800
    admitted(budgets)

    assert caught.value.retry_after == 1800


def test_a_clock_that_goes_back_gives_nothing_back() -> None:
    clock = Clock()
    budgets = Budgets([tokens(100), tokens(100, per="day"), tokens(100, per="month")], clock)
    spend(budgets, 100)
    refused = 0

    for hours in (-1, 1, -24, 24, -31 * 24, 31 * 24):
        clock.now += hours * 3600
        with pytest.raises(BudgetExceededError):
            admitted(budgets)
        refused += 1

    assert refused == 6


def test_a_clock_that_is_set_around_the_end_of_a_window_begins_it_once() -> None:
    clock = Clock()
    budgets = Budgets([tokens(100)], clock)
    clock.now += 1800
    spend(budgets, 100)

    for seconds in (-1, 1, -5, 5):
        clock.now += seconds
        with pytest.raises(BudgetExceededError):
            admitted(budgets)


@pytest.mark.parametrize("period", PERIODS)
def test_a_clock_that_jumps_ahead_and_back_finds_what_was_spent_in_its_window(
    period: Period,
) -> None:
    clock = Clock()
    budgets = Budgets([tokens(100, per=period)], clock)
    spend(budgets, 60)
    running = admitted(budgets, holds=10)

    clock.now += 400 * 86_400
    spend(budgets, 70)
    clock.now -= 400 * 86_400
    spend(budgets, 30)  # 60 + 30, and 10 are held
    with pytest.raises(BudgetExceededError, match=r"resets at 2026-"):
        admitted(budgets)
    budgets.settle(running)
    admitted(budgets)
    clock.now += 400 * 86_400
    spend(budgets, 30)

    with pytest.raises(BudgetExceededError, match=r"resets at 2027-"):
        admitted(budgets)


def test_what_was_spent_long_ago_is_held_for_one_more_window_and_no_longer() -> None:
    clock = Clock()
    budgets = Budgets([tokens(100)], clock)
    held: list[int] = []

    for _ in range(3):
        for number in range(50):
            spend(budgets, 1, f"{clock.now} {number}")
        held.append(len(budgets._meters["caller"]["hour"]._spent))
        clock.now += 3600

    assert held == [50, 100, 100]


def test_what_running_requests_hold_counts_until_they_end() -> None:
    budgets = Budgets([tokens(100)], Clock())
    first = admitted(budgets, holds=100)

    with pytest.raises(BudgetExceededError):
        admitted(budgets)
    budgets.settle(first)
    spend(budgets, 10)

    admitted(budgets)


def test_a_hold_over_the_end_of_a_window_is_given_back_in_the_next() -> None:
    clock = Clock()
    budgets = Budgets([tokens(100)], clock)
    hold = admitted(budgets, holds=100)
    clock.now += 3600

    with pytest.raises(BudgetExceededError):
        admitted(budgets)
    budgets.settle(hold)

    admitted(budgets)


def test_a_throttled_caller_runs_one_request_at_a_time() -> None:
    budgets = Budgets([tokens(1, action="throttle")], Clock())
    spend(budgets, 1)

    hold = Hold(Amount())
    assert budgets.admit("caller", "ann", hold)
    with pytest.raises(BudgetExceededError) as caught:
        admitted(budgets)
    budgets.settle(hold)

    assert caught.value.retry_after == 1
    assert budgets.admit("caller", "ann", Hold(Amount()))


def test_a_warning_is_one_line_in_a_window(caplog: pytest.LogCaptureFixture) -> None:
    met: list[tuple[Scope, Action]] = []
    budgets = Budgets(
        [tokens(1, action="warn")],
        Clock(),
        on_exceeded=lambda scope, action: met.append((scope, action)),
    )
    spend(budgets, 1)

    for _ in range(3):
        admitted(budgets)

    assert len(caplog.messages) == 1
    assert met == [("caller", "warn")] * 3


def test_a_key_may_bring_a_budget_of_its_own() -> None:
    budgets = Budgets([], Clock())
    budgets.give_callers_their_own({"ann": [tokens(5, per="day")]})
    spend(budgets, 5)

    with pytest.raises(BudgetExceededError):
        admitted(budgets)
    admitted(budgets, "bob")


def test_what_was_spent_before_a_start_is_remembered() -> None:
    budgets = Budgets([tokens(100)], Clock())

    assert list(budgets.meters) == [("caller", "hour")]
    budgets.remember("caller", "hour", "ann", Amount(0, 100))

    with pytest.raises(BudgetExceededError):
        admitted(budgets)


@settings(deadline=None)
@given(st.floats(0, 4e9))
def test_every_moment_lies_within_its_windows(at: float) -> None:
    for period in ("hour", "day", "month"):
        begin, end = window_of(period, at)
        assert begin <= at < end


class Spending(RuleBasedStateMachine):
    """Requests of one caller beside a model that simply adds."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.budgets = Budgets([tokens(50)], self.clock)
        self.running: list[Hold] = []
        self.spent = 0

    @rule(holds=st.integers(0, 30))
    def begin(self, holds: int) -> None:
        held = sum(hold.amount.tokens for hold in self.running)
        hold = Hold(Amount(0, holds))
        try:
            self.budgets.admit("caller", "ann", hold)
        except BudgetExceededError:
            assert self.spent + held >= 50
        else:
            assert self.spent + held < 50
            self.running.append(hold)

    @rule(place=st.integers(0, 10), cost=st.integers(0, 30))
    def end(self, place: int, cost: int) -> None:
        if self.running:
            self.budgets.settle(self.running.pop(place % len(self.running)))
            spend(self.budgets, cost)
            self.spent += cost

    @rule()
    def wait_for_the_next_window(self) -> None:
        self.clock.now += 3600
        self.spent = 0

    @invariant()
    def nothing_is_held_at_rest(self) -> None:
        if not self.running:
            meter = self.budgets._meters["caller"]["hour"]
            assert not meter.of("ann", self.clock.now).in_use


Spending.TestCase.settings = settings(deadline=None, max_examples=40)
TestSpending = Spending.TestCase
