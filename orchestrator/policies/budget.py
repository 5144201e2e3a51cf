"""What may be spent in an hour, a day or a month, and what happens when it has been.

Rules:
    1. Windows are those of the calendar, in UTC: they begin at the hour, at midnight, on the first.
    2. A request is refused when what was spent and what running requests hold has reached the
       limit. What a request will cost isn't known before, so the last one may go beyond it.
    3. What was really spent is counted when a request has ended, in the window in which it ends.
    4. Spending is kept for each name and period, whatever the limits are, so that a limit may
       change while it is counted.
    5. The window before is kept, too: a clock that was wrong for a while finds what was spent in
       the right one. Into one that isn't known it doesn't go back, for that would be empty.

The time comes in from outside: it is the calendar's, which no loop tells.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

from orchestrator.errors import BudgetExceededError, one_line

logger = logging.getLogger(__name__)

Scope = Literal["caller", "route", "deployment"]
Period = Literal["hour", "day", "month"]
Action = Literal["reject", "throttle", "warn"]
EACH = "*"
"""Instead of a name: everybody has this budget for himself."""
PERIODS: tuple[Period, ...] = ("hour", "day", "month")
THROTTLED_RETRY_AFTER = 1.0
"""Seconds: the one request that may run beyond a budget has ended by then, or is asked again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """One limit; of money or of tokens."""

    scope: Scope
    name: str = EACH
    per: Period
    nano_usd: int | None = None
    """10^-9 USD."""
    tokens: int | None = None
    on_exceeded: Action = "reject"


@dataclass(frozen=True, slots=True)
class Amount:
    """What a request has cost, or may cost."""

    nano_usd: int = 0
    tokens: int = 0


NOTHING = Amount()


@dataclass(slots=True, eq=False)
class _Spent:
    """One name's spending in the current window."""

    nano_usd: int = 0
    tokens: int = 0
    held_nano_usd: int = 0
    held_tokens: int = 0
    throttled: int = 0
    """Requests that run beyond the budget."""
    warned: bool = False
    elsewhere: Amount = NOTHING
    """What was spent in the other window that is known."""

    @property
    def in_use(self) -> bool:
        return bool(self.held_nano_usd or self.held_tokens or self.throttled)

    def change_window(self, spent: Amount) -> None:
        self.elsewhere = Amount(self.nano_usd, self.tokens)
        self.nano_usd, self.tokens = spent.nano_usd, spent.tokens
        self.warned = False

    def exceeds(self, budget: Budget) -> bool:
        if budget.nano_usd is not None:
            return self.nano_usd + self.held_nano_usd >= budget.nano_usd
        return budget.tokens is not None and self.tokens + self.held_tokens >= budget.tokens


@dataclass(slots=True, eq=False)
class Hold:
    """What one running request holds; given back by `settle`."""

    amount: Amount
    held: list[_Spent] = field(default_factory=list[_Spent])
    throttled: list[_Spent] = field(default_factory=list[_Spent])


def window_of(period: Period, at: float) -> tuple[float, float]:
    """Returns begin and end of the window, as Unix times.

    Args:
        period: How long it is.
        at: A Unix time within it.
    """
    begin = datetime.fromtimestamp(at, UTC).replace(minute=0, second=0, microsecond=0)
    if period == "hour":
        return begin.timestamp(), (begin + timedelta(hours=1)).timestamp()
    begin = begin.replace(hour=0)
    if period == "day":
        return begin.timestamp(), (begin + timedelta(days=1)).timestamp()
    begin = begin.replace(day=1)
    # a month has 31 days at most, so 32 days after its first is in the next one
    return begin.timestamp(), (begin + timedelta(days=32)).replace(day=1).timestamp()


class _Meter:
    """The spending of all names of one scope in the current window of one period."""

    def __init__(self, period: Period) -> None:
        self.period: Period = period
        self.begins_at, self.ends_at = 0.0, 0.0
        self._other = 0.0, 0.0
        self._spent: dict[str, _Spent] = {}

    def of(self, name: str, now: float) -> _Spent:
        if not self.begins_at <= now < self.ends_at:
            self._turn(now)
        spent = self._spent.get(name)
        if spent is None:
            spent = self._spent[name] = _Spent()
        return spent

    def learn(self, name: str, at: float, amount: Amount, now: float) -> None:
        spent = self.of(name, now)
        if self.begins_at <= at < self.ends_at:
            spent.nano_usd += amount.nano_usd
            spent.tokens += amount.tokens
        elif self._knows(at):
            before = spent.elsewhere
            spent.elsewhere = Amount(
                before.nano_usd + amount.nano_usd, before.tokens + amount.tokens
            )

    def _turn(self, now: float) -> None:
        """Goes over to another window: a later one, or back to the one before."""
        here, known = (self.begins_at, self.ends_at), self._knows(now)
        if known:
            self.begins_at, self.ends_at = self._other
        elif now >= self.ends_at:
            self.begins_at, self.ends_at = window_of(self.period, now)
        else:
            return
        self._other = here
        for spent in self._spent.values():
            spent.change_window(spent.elsewhere if known else NOTHING)
        # running requests keep the very objects that they will give back to
        self._spent = {
            name: spent
            for name, spent in self._spent.items()
            if spent.in_use or spent.elsewhere != NOTHING or spent.nano_usd or spent.tokens
        }

    def _knows(self, at: float) -> bool:
        begin, end = self._other
        return begin <= at < end


class Budgets:
    """All budgets and what was spent of them.

    Args:
        budgets: The limits.
        clock: Tells the Unix time.
        on_exceeded: Told the scope and the action whenever a request meets an exhausted budget.
    """

    def __init__(
        self,
        budgets: Iterable[Budget],
        clock: Callable[[], float],
        *,
        on_exceeded: Callable[[Scope, Action], None] = lambda _scope, _action: None,
    ) -> None:
        self._clock = clock
        self._on_exceeded = on_exceeded
        self._limits: dict[tuple[Scope, str], list[Budget]] = {}
        self._own: Mapping[str, Sequence[Budget]] = {}
        self._meters: dict[Scope, dict[Period, _Meter]] = {}
        self.change(budgets)

    def change(self, budgets: Iterable[Budget]) -> None:
        """Replaces all limits but the callers' own; what was spent stays spent.

        What no budget had counted so far is counted from now on.
        """
        limits: dict[tuple[Scope, str], list[Budget]] = {}
        for budget in budgets:
            limits.setdefault((budget.scope, budget.name), []).append(budget)
            self._meter(budget.scope, budget.per)
        self._limits = limits

    def give_callers_their_own(self, budgets: Mapping[str, Sequence[Budget]]) -> None:
        """Replaces the budgets that belong to single callers' keys.

        Args:
            budgets: By the caller's name.
        """
        self._own = budgets
        for period in PERIODS:  # a key that comes later may have any
            self._meter("caller", period)

    @property
    def meters(self) -> Iterator[tuple[Scope, Period]]:
        """Which spending is counted, for whoever knows what was spent before this start."""
        for scope, meters in self._meters.items():
            for period in meters:
                yield scope, period

    def limits(self, scope: Scope, name: str) -> bool:
        """Whether any budget concerns that name."""
        return bool((scope, name) in self._limits or (scope, EACH) in self._limits)

    def remember(self, scope: Scope, period: Period, name: str, amount: Amount) -> None:
        """Adds what was spent in the current window before this start."""
        spent = self._meters[scope][period].of(name, self._clock())
        spent.nano_usd += amount.nano_usd
        spent.tokens += amount.tokens

    def learn(self, names: Mapping[Scope, str], at: float, amount: Amount) -> None:
        """Adds what somebody else has spent whose books are the same.

        Args:
            names: Whose it is, by scope.
            at: Unix time at which it was spent.
            amount: How much.
        """
        now = self._clock()
        for scope, name in names.items():
            for meter in self._meters.get(scope, {}).values():
                meter.learn(name, at, amount, now)

    def admit(self, scope: Scope, name: str, hold: Hold) -> bool:
        """Lets a request begin, and has it hold what it may cost.

        Returns:
            Whether it is throttled: it may run, alone and after all others.

        Raises:
            BudgetExceededError: A budget is used up; nothing more is held than before.
        """
        meters = self._meters.get(scope)
        if meters is None:
            return False
        now = self._clock()
        throttled: list[_Spent] = []
        for budget in self._concerning(scope, name):
            meter = meters[budget.per]
            spent = meter.of(name, now)
            if spent.exceeds(budget):
                self._exceeded(budget, name, spent, meter.ends_at, now)
                if budget.on_exceeded == "throttle" and spent not in throttled:
                    throttled.append(spent)
        for spent in throttled:
            spent.throttled += 1
        hold.throttled += throttled
        for meter in meters.values():
            spent = meter.of(name, now)
            spent.held_nano_usd += hold.amount.nano_usd
            spent.held_tokens += hold.amount.tokens
            hold.held.append(spent)
        return bool(throttled)

    def settle(self, hold: Hold) -> None:
        """Gives back what a request has held."""
        for spent in hold.held:
            spent.held_nano_usd -= hold.amount.nano_usd
            spent.held_tokens -= hold.amount.tokens
        for spent in hold.throttled:
            spent.throttled -= 1

    def spend(self, scope: Scope, name: str, amount: Amount) -> None:
        """Counts what a request has cost."""
        meters = self._meters.get(scope)
        if meters is None:
            return
        now = self._clock()
        for meter in meters.values():
            spent = meter.of(name, now)
            spent.nano_usd += amount.nano_usd
            spent.tokens += amount.tokens

    def _meter(self, scope: Scope, period: Period) -> None:
        meters = self._meters.setdefault(scope, {})
        if period not in meters:
            meters[period] = _Meter(period)

    def _concerning(self, scope: Scope, name: str) -> Iterator[Budget]:
        yield from self._limits.get((scope, name), ())
        yield from self._limits.get((scope, EACH), ())
        if scope == "caller":
            yield from self._own.get(name, ())

    def _exceeded(
        self, budget: Budget, name: str, spent: _Spent, ends_at: float, now: float
    ) -> None:
        self._on_exceeded(budget.scope, budget.on_exceeded)
        text = _told(budget, name, ends_at)
        if not spent.warned:  # once in a window, not once for each request
            spent.warned = True
            logger.warning("%s; on_exceeded is %s", one_line(text), budget.on_exceeded)
        if budget.on_exceeded == "reject":
            raise BudgetExceededError(text, retry_after=ends_at - now)
        if budget.on_exceeded == "throttle" and spent.throttled:
            raise BudgetExceededError(
                f"{text}; until then one request runs at a time",
                retry_after=min(THROTTLED_RETRY_AFTER, ends_at - now),
            )


def _told(budget: Budget, name: str, ends_at: float) -> str:
    limit = (
        f"{budget.tokens} tokens"
        if budget.nano_usd is None
        else f"{budget.nano_usd / 1_000_000_000:g} USD"
    )
    whose = f"{budget.scope} {name}" if name else f"the {budget.scope}"
    reset = datetime.fromtimestamp(ends_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"the budget of {whose}, {limit} per {budget.per}, is used up; it resets at {reset}"
