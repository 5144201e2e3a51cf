"""What each request costs, and who has to pay for it: prices, budgets and the usage ledger.

    open   before a request is sent on its way: the ledger can be written, no budget is used up
    close  within the step that decides its ending, so before anybody hears of it: one row, the
           budgets, the metrics

An answer is billed by its provider's usage. One that the caller broke off is billed by what it was
given, which is an estimate. Any other failure costs the caller nothing; what its attempts cost is
counted apart, and so is a failed attempt before the one that answered.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from orchestrator import metrics
from orchestrator.errors import ConfigError, LedgerUnavailableError
from orchestrator.events import Failed, Finished, Usage
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.row import Row
from orchestrator.ledger.store import By, Spending
from orchestrator.policies.budget import Amount, Budget, Budgets, Hold, Scope, window_of
from orchestrator.policies.pricing import NANO_PER_USD, Price
from orchestrator.request import AttemptRecord, Priority, PriorityRequest

CACHED = "cached"
"""The outcome of a request that got another one's answer."""
CALLERS_DOING = 499
"""Status of endings that the caller has caused: it left, or didn't read."""
LEDGER_RETRY_AFTER = 1.0

Inspect = Callable[[PriorityRequest], Awaitable[None] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """What accounts know of a deployment."""

    model: str
    price: Price | None
    """None if the model's price isn't known."""


@dataclass(frozen=True, slots=True)
class _Bill:
    attempt: AttemptRecord | None
    """The one that the caller pays for; None if there is none."""
    usage: Usage | None = None
    nano_usd: int | None = 0
    estimated: bool = False


class Accounts:
    """The books of all deployments; all calls belong on the engines' loop.

    Args:
        tariffs: By deployment.
        budgets: What may be spent; None if nothing is limited.
        ledger: Where every ended request is a row; None if nowhere.
        clock: Tells the Unix time.
    """

    def __init__(
        self,
        tariffs: Mapping[str, Tariff],
        *,
        budgets: Budgets | None,
        ledger: Ledger | None,
        clock: Callable[[], float],
    ) -> None:
        self._tariffs = tariffs
        self._budgets = budgets
        self._ledger = ledger
        self._clock = clock

    def start(self) -> None:
        """Opens the ledger, and learns what was spent before; blocks as long as it takes."""
        if self._ledger is None:
            return
        budgets = self._budgets
        meters = list(budgets.meters) if budgets else []
        now = self._clock()
        begins: list[tuple[By, int]] = [
            (scope, int(window_of(period, now)[0] * 1000)) for scope, period in meters
        ]
        found = self._ledger.open(begins, self._learn if budgets is not None else None)
        if budgets is not None:
            for (scope, period), groups in zip(meters, found, strict=False):
                for name, nano_usd, tokens in groups:
                    budgets.remember(scope, period, name, Amount(nano_usd, tokens))

    def _learn(self, found: Sequence[Spending]) -> None:
        """Others who write into the same ledger have spent something."""
        if self._budgets is None:
            return
        for one in found:
            names: dict[Scope, str] = {"caller": one.caller, "route": one.route}
            if one.deployment:
                names["deployment"] = one.deployment
            self._budgets.learn(names, one.at, Amount(one.nano_usd, one.tokens))

    def stop(self) -> None:
        """Writes what is left, and ends the ledger's thread."""
        if self._ledger is not None:
            self._ledger.close()

    def give_callers_their_own(self, budgets: Mapping[str, Sequence[Budget]]) -> None:
        """Replaces the budgets that belong to single callers' keys.

        Args:
            budgets: By the caller's name.
        """
        if self._budgets is not None:
            self._budgets.give_callers_their_own(budgets)

    def change(self, tariffs: Mapping[str, Tariff], budgets: Sequence[Budget]) -> None:
        """Takes other prices and budgets; who is on its way is billed as it was when it came.

        Args:
            tariffs: By deployment.
            budgets: All limits but those of single keys; what was spent of any stays spent.

        Raises:
            ConfigError: There were no budgets at the start, so nothing was counted.
        """
        if self._budgets is not None:
            self._budgets.change(budgets)
        elif budgets:
            raise ConfigError("budgets: there were none at the start, so they need a restart")
        self._tariffs = tariffs

    def guard(self, deployment: str, inspect: Inspect) -> Inspect:
        """Puts a deployment's budgets before its own check of a request."""
        budgets = self._budgets
        if budgets is None or not budgets.limits("deployment", deployment):
            return inspect

        def guarded(request: PriorityRequest) -> Awaitable[None] | None:
            # nothing is held: which deployment will serve it is decided later
            hold = Hold(Amount())
            if budgets.admit("deployment", deployment, hold):
                request.priority = Priority.BACKGROUND
                request.channel.watch(partial(budgets.settle, hold))
            return inspect(request)

        return guarded

    def open(self, request: PriorityRequest, deployments: Sequence[str]) -> None:
        """Lets a request begin, and has its ending entered whatever happens to it.

        Args:
            request: It has been accepted by its route, but not sent to a deployment.
            deployments: Who may serve it, the preferred one first.

        Raises:
            BudgetExceededError: What may be spent is spent.
            LedgerUnavailableError: Its ending could not be entered.
        """
        hold = Hold(self._most(request, deployments)) if self._budgets else None
        request.channel.watch(partial(self._close, request, hold, self._tariffs))
        if self._ledger is not None and not self._ledger.available:
            raise LedgerUnavailableError(
                "the usage ledger can't be written, and nothing is served without it",
                retry_after=LEDGER_RETRY_AFTER,
            )
        if self._budgets is None or hold is None or request.channel.ending is not None:
            return
        throttled = self._budgets.admit("caller", request.caller, hold)
        throttled |= self._budgets.admit("route", request.model, hold)
        if throttled:
            request.priority = Priority.BACKGROUND

    def open_repeat(self, request: PriorityRequest) -> None:
        """Has the ending entered of a request that gets another one's answer: it costs nothing."""
        if self._ledger is not None:
            request.channel.watch(partial(self._close_repeat, self._ledger, request))

    def _close_repeat(self, ledger: Ledger, request: PriorityRequest) -> None:
        nothing = _Bill(None, Usage(prompt_tokens=0, completion_tokens=0))
        row = self._row(request, None, nothing, (), self._tariffs)
        finished = isinstance(request.channel.ending, Finished)
        ledger.append(row._replace(outcome=CACHED) if finished else row)

    def _most(self, request: PriorityRequest, deployments: Sequence[str]) -> Amount:
        """What it may cost, by its size and the longest answer it asks for."""
        tokens = request.estimated_tokens
        price = self._tariffs[deployments[0]].price if deployments else None
        if price is None:
            return Amount(0, tokens)
        prompt = request.estimated_prompt_tokens
        usage = Usage(prompt_tokens=prompt, completion_tokens=tokens - prompt)
        return Amount(price.cost(usage), tokens)

    def _close(
        self, request: PriorityRequest, hold: Hold | None, tariffs: Mapping[str, Tariff]
    ) -> None:
        attempts = request.attempts
        served = _serving(attempts)
        tariff = tariffs.get(served.deployment) if served else None
        bill = _bill(request, served, tariff)
        unbilled = [attempt for attempt in attempts if attempt is not bill.attempt]
        deployment = served.deployment if served else ""
        if self._budgets is not None and hold is not None:
            self._budgets.settle(hold)
            amount = Amount(bill.nano_usd or 0, bill.usage.total_tokens if bill.usage else 0)
            self._budgets.spend("caller", request.caller, amount)
            self._budgets.spend("route", request.model, amount)
            if deployment:
                self._budgets.spend("deployment", deployment, amount)
        self._count(request, deployment, bill, unbilled, tariffs)
        if self._ledger is not None:
            self._ledger.append(self._row(request, served, bill, unbilled, tariffs))

    def _count(
        self,
        request: PriorityRequest,
        deployment: str,
        bill: _Bill,
        unbilled: Sequence[AttemptRecord],
        tariffs: Mapping[str, Tariff],
    ) -> None:
        if bill.nano_usd is None:
            metrics.UNPRICED.labels(deployment).inc()
        elif bill.nano_usd:
            metrics.COST.labels(request.model, deployment).inc(bill.nano_usd / NANO_PER_USD)
        for attempt in unbilled:
            cost = _seen_cost(request, attempt, tariffs)
            if cost:
                metrics.UNBILLED_COST.labels(attempt.deployment).inc(cost / NANO_PER_USD)

    def _row(
        self,
        request: PriorityRequest,
        served: AttemptRecord | None,
        bill: _Bill,
        unbilled: Sequence[AttemptRecord],
        tariffs: Mapping[str, Tariff],
    ) -> Row:
        ledger, ending = self._ledger, request.channel.ending
        assert ledger is not None  # noqa: S101 - who calls this has looked
        now = asyncio.get_running_loop().time()
        ended_at_ms = int(self._clock() * 1000)
        first = next((a.first_token_at for a in request.attempts if a.first_token_at), None)
        costs = [_seen_cost(request, attempt, tariffs) for attempt in unbilled]
        seen = [_seen(request, a).total_tokens for a in unbilled if a.first_token_at is not None]
        finished = isinstance(ending, Finished)
        usage = bill.usage
        return Row(
            uid=ledger.next_uid(),
            request_id=_encodable(request.request_id),
            caller=_encodable(request.caller),
            route=request.model,
            deployment=served.deployment if served else "",
            model=tariffs[served.deployment].model if served else "",
            attempts=len(request.attempts),
            prompt_tokens=usage.prompt_tokens if usage else None,
            cached_tokens=usage.cached_tokens if usage else None,
            completion_tokens=usage.completion_tokens if usage else None,
            reasoning_tokens=usage.reasoning_tokens if usage else None,
            cost_nano_usd=bill.nano_usd,
            estimated=bill.estimated,
            failed_attempts=len(unbilled),
            failed_tokens=sum(seen),
            failed_cost_nano_usd=None if None in costs else sum(cost or 0 for cost in costs),
            accepted_at_ms=ended_at_ms - _ms(now - request.accepted_at),
            queued_ms=_ms(sum(attempt.queued_for for attempt in request.attempts)),
            first_token_ms=None if first is None else _ms(first - request.accepted_at),
            ended_at_ms=ended_at_ms,
            outcome="finished" if finished else _code(ending),
            finish_reason=ending.finish_reason.value if finished else None,
        )


def _serving(attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """The attempt that answered; the last one if none did."""
    for attempt in reversed(attempts):
        if attempt.outcome == "done":
            return attempt
    return attempts[-1] if attempts else None


def _bill(request: PriorityRequest, served: AttemptRecord | None, tariff: Tariff | None) -> _Bill:
    ending = request.channel.ending
    price = tariff.price if tariff else None
    if isinstance(ending, Finished):
        usage = ending.usage
        cost = None if usage is None or price is None else price.cost(usage)
        return _Bill(served, usage, cost, estimated=usage is not None and usage.estimated)
    if (
        isinstance(ending, Failed)
        and ending.error.status_code == CALLERS_DOING
        and served is not None
        and served.first_token_at is not None
    ):
        usage = _seen(request, served)
        return _Bill(served, usage, price.cost(usage) if price else None, estimated=True)
    return _Bill(None)


def _seen_cost(
    request: PriorityRequest, attempt: AttemptRecord, tariffs: Mapping[str, Tariff]
) -> int | None:
    """What a provider will ask for an attempt that failed, by the tokens that came of it."""
    if attempt.first_token_at is None:
        return 0  # providers charge for answers, not for errors
    price = tariffs[attempt.deployment].price
    return None if price is None else price.cost(_seen(request, attempt))


def _seen(request: PriorityRequest, attempt: AttemptRecord) -> Usage:
    prompt = request.estimated_prompt_tokens
    # one that hasn't ended yet hasn't said what it counted: then what was read is known
    answer = attempt.tokens - prompt if attempt.tokens else request.channel.delivered
    return Usage(prompt_tokens=prompt, completion_tokens=max(0, answer))


def _code(ending: Finished | Failed | None) -> str:
    return ending.error.code if isinstance(ending, Failed) else ""


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _encodable(text: str) -> str:
    # an id of the SDK's caller may hold half a character, which no encoding takes
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
