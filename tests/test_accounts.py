"""Each ended request is entered once, with who pays for what."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator import metrics
from orchestrator.accounts import Accounts, Tariff
from orchestrator.errors import RequestCanceledError, UpstreamServerError
from orchestrator.events import Failed, Finished, FinishReason, Usage
from orchestrator.ledger.ledger import Ledger, LedgerSettings
from orchestrator.plan import RoutePlan
from orchestrator.policies.budget import Budget, Budgets
from orchestrator.policies.pricing import Price
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import Priority
from orchestrator.routing.hedging import HedgeSettings
from orchestrator.routing.route import RoutePolicy
from orchestrator.wiring import System
from tests.fakes.scripted import Line, Stage, always
from tests.fakes.systems import ask, error_of, make_request, running

PRICE = Price(input=1_000_000, cached_input=500_000, output=2_000_000, reasoning=3_000_000)
ENDING = Finished(
    FinishReason.STOP,
    Usage(prompt_tokens=10, completion_tokens=4, cached_tokens=2, reasoning_tokens=1),
)
COST = 8_000 + 1_000 + 6_000 + 3_000
NOW = 1_700_000_000.0
BROKEN = UpstreamServerError("broken")


@contextlib.asynccontextmanager
async def booked(
    path: Path | None,
    stages: Mapping[str, Stage],
    routes: Mapping[str, RoutePlan | Sequence[str]] | None = None,
    *,
    budgets: Sequence[Budget] = (),
    price: Price | None = PRICE,
    on_failure: Any = "serve",
    look_seconds: float = 1.0,
) -> AsyncGenerator[System]:
    accounts = Accounts(
        {name: Tariff(model=f"model-{name}", price=price) for name in stages},
        budgets=Budgets(budgets, lambda: NOW) if budgets else None,
        ledger=(
            Ledger(LedgerSettings(path=path, on_failure=on_failure, look_seconds=look_seconds))
            if path
            else None
        ),
        clock=lambda: NOW,
    )
    retry = RetrySettings(max_attempts=2, initial_backoff=0.001, max_backoff=0.001)
    async with running(stages, routes, accounts=accounts, retry=retry) as system:
        yield system


def rows(path: Path) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    found = [dict(row) for row in connection.execute("SELECT * FROM usage ORDER BY rowid")]
    connection.close()
    return found


def unpriced() -> float:
    labels = {"deployment": "m"}
    return metrics.REGISTRY.get_sample_value("orchestrator_unpriced_requests_total", labels) or 0


async def test_an_answer_is_a_row_with_its_cost(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", {"d": always("a", "b", ENDING)}, {"m": ["d"]}) as system,
    ):
        request = make_request(request_id="mine")
        request.caller = "ann"
        await ask(system, request)

    (row,) = rows(tmp_path / "u")
    assert row["request_id"] == "mine"
    assert (row["caller"], row["route"], row["deployment"]) == ("ann", "m", "d")
    assert (row["model"], row["attempts"], row["failed_attempts"]) == ("model-d", 1, 0)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (10, 4)
    assert (row["cached_tokens"], row["reasoning_tokens"]) == (2, 1)
    assert (row["cost_nano_usd"], row["estimated"]) == (COST, 0)
    assert (row["outcome"], row["finish_reason"]) == ("finished", "stop")
    assert row["ended_at_ms"] == NOW * 1000
    assert row["first_token_ms"] is not None


async def test_the_row_is_in_the_spool_before_the_reader_hears_of_the_ending(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(5), booked(tmp_path / "u", {"m": always("a", ENDING)}) as system:
        request = make_request(request_id="seen-by-nobody-yet")
        found: list[bool] = []
        request.channel.watch(
            # asked within the step that ends it, before any reader wakes
            lambda: found.append(
                any(b"seen-by-nobody-yet" in p.read_bytes() for p in tmp_path.glob("u.spool-*"))
            )
        )
        system.router.submit(request)
        request.channel.watch(
            lambda: found.append(
                any(b"seen-by-nobody-yet" in p.read_bytes() for p in tmp_path.glob("u.spool-*"))
            )
        )
        await request.channel.receive()
        while request.channel.ending is None:
            await request.channel.receive()

    assert found == [False, True]


@pytest.mark.parametrize("seen", [True, False])
async def test_a_failed_attempt_is_counted_apart_and_not_billed(
    tmp_path: Path,
    seen: bool,
) -> None:
    def script(_request: object, call: int) -> Sequence[Line]:
        return ["a", "b", ENDING] if call else [*(["x", "y"] if seen else []), BROKEN]

    async with asyncio.timeout(5), booked(tmp_path / "u", {"m": Stage(script)}) as system:
        request = make_request(held=True)
        await ask(system, request)

    (row,) = rows(tmp_path / "u")
    assert (row["attempts"], row["failed_attempts"]) == (2, 1)
    assert row["cost_nano_usd"] == COST
    # one estimated token of prompt, and the two that came
    assert row["failed_tokens"] == (3 if seen else 0)
    assert row["failed_cost_nano_usd"] == (1_000 + 2 * 2_000 if seen else 0)


async def test_a_hedged_request_is_billed_once_at_the_deployment_that_answered(
    tmp_path: Path,
) -> None:
    never = asyncio.Event()
    stages = {"a": always(never), "b": always("a", "b", ENDING)}
    hedge = RoutePolicy(hedge=HedgeSettings(seconds=0.01, share=1.0))
    routes = {"m": RoutePlan(deployments=("a", "b"), policy=hedge)}
    once = Budget(scope="route", name="m", per="day", nano_usd=COST + 1)
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", stages, routes, budgets=[once]) as system,
    ):
        answer, again, refused = [await ask(system, make_request()) for _ in range(3)]

    row, _ = rows(tmp_path / "u")[:2]
    assert (answer.ending, again.ending) == (ENDING, ENDING)  # spent once, not twice
    assert isinstance(refused.ending, Failed)
    assert refused.ending.error.code == "budget_exceeded"
    assert (row["deployment"], row["outcome"], row["attempts"]) == ("b", "finished", 2)
    assert row["cost_nano_usd"] == COST


async def test_a_failure_costs_the_caller_nothing(tmp_path: Path) -> None:
    async with asyncio.timeout(5), booked(tmp_path / "u", {"m": always(BROKEN)}) as system:
        await error_of(system, make_request())

    (row,) = rows(tmp_path / "u")
    assert (row["outcome"], row["cost_nano_usd"]) == ("upstream_server_error", 0)
    assert (row["attempts"], row["failed_attempts"], row["prompt_tokens"]) == (2, 2, None)


async def test_an_answer_that_the_caller_breaks_off_is_billed_by_what_was_given(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", {"m": always("a", "b", asyncio.Event())}) as system,
    ):
        request = make_request()
        system.router.submit(request)
        while request.channel.delivered < 2:
            await request.channel.receive()
        request.channel.end(Failed(RequestCanceledError("gone")))

    (row,) = rows(tmp_path / "u")
    assert (row["outcome"], row["estimated"]) == ("canceled", 1)
    assert (row["prompt_tokens"], row["completion_tokens"]) == (1, 2)
    assert row["cost_nano_usd"] == 1_000 + 4_000


@pytest.mark.parametrize(
    ("price", "ending"), [(None, ENDING), (PRICE, Finished(FinishReason.STOP))]
)
async def test_an_unknown_price_or_usage_is_unknown_and_never_0(
    tmp_path: Path, price: Price | None, ending: Finished
) -> None:
    before = unpriced()
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", {"m": always("a", ending)}, price=price) as system,
    ):
        await ask(system, make_request())

    (row,) = rows(tmp_path / "u")
    assert row["cost_nano_usd"] is None
    assert unpriced() == before + 1


async def test_an_exhausted_budget_is_429_with_the_time_of_its_reset(tmp_path: Path) -> None:
    budget = Budget(scope="caller", per="day", nano_usd=COST)
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", {"m": always("a", ENDING)}, budgets=[budget]) as system,
    ):
        request, again, other = make_request(), make_request(), make_request()
        request.caller = again.caller = "ann"
        await ask(system, request)
        error = await error_of(system, again)
        answer = await ask(system, other)

    assert (error.status_code, error.code) == (429, "budget_exceeded")
    assert error.retry_after == 86_400 - NOW % 86_400
    assert isinstance(answer.ending, Finished)
    assert [row["outcome"] for row in rows(tmp_path / "u")] == [
        "finished",
        "budget_exceeded",
        "finished",
    ]


async def test_a_budget_survives_a_restart_through_the_ledger(tmp_path: Path) -> None:
    budget = Budget(scope="route", name="m", per="month", tokens=14)
    stages = {"m": always("a", ENDING)}
    async with asyncio.timeout(5):
        async with booked(tmp_path / "u", stages, budgets=[budget]) as system:
            await ask(system, make_request())
        async with booked(tmp_path / "u", stages, budgets=[budget]) as system:
            error = await error_of(system, make_request())

    assert error.code == "budget_exceeded"


async def test_what_another_gateway_spends_counts_where_the_ledger_is_the_same(
    tmp_path: Path,
) -> None:
    budget = Budget(scope="route", name="m", per="month", tokens=20)
    stages = {"m": always("a", ENDING)}
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", stages, budgets=[budget], look_seconds=0.01) as one,
        booked(tmp_path / "u", stages, budgets=[budget]) as other,
    ):
        await ask(other, make_request())
        await ask(other, make_request())
        accounts = one._accounts
        assert accounts is not None
        assert accounts._budgets is not None
        spent = accounts._budgets._meters["route"]["month"].of("m", NOW)
        while spent.tokens < 28:  # noqa: ASYNC110 - a thread tells of it, through the loop
            await asyncio.sleep(0)
        error = await error_of(one, make_request())

    assert error.code == "budget_exceeded"


async def test_a_deployment_without_budget_is_passed_over_for_the_next() -> None:
    first, second = always("a", ENDING), always("b", ENDING)
    budget = Budget(scope="deployment", name="first", per="hour", tokens=1)
    stages = {"first": first, "second": second}
    async with (
        asyncio.timeout(5),
        booked(None, stages, {"m": ["first", "second"]}, budgets=[budget]) as system,
    ):
        texts = [(await ask(system, make_request())).text for _ in range(3)]
        error = await error_of(system, make_request("first"))

    assert texts == ["a", "b", "b"]
    assert error.code == "budget_exceeded"


async def test_beyond_a_throttling_budget_one_request_runs_after_all_others() -> None:
    gate = asyncio.Event()
    budget = Budget(scope="route", per="hour", tokens=1, on_exceeded="throttle")

    def script(_request: object, call: int) -> Sequence[Line]:
        return ["a", gate, ENDING] if call == 1 else ["a", ENDING]

    async with asyncio.timeout(5), booked(None, {"m": Stage(script)}, budgets=[budget]) as system:
        await ask(system, make_request())
        slow = make_request()
        system.router.submit(slow)
        error = await error_of(system, make_request())
        gate.set()
        while slow.channel.ending is None:
            await slow.channel.receive()
        answer = await ask(system, make_request())

    assert slow.priority is Priority.BACKGROUND
    assert error.code == "budget_exceeded"
    assert isinstance(answer.ending, Finished)


@pytest.mark.parametrize("on_failure", ["serve", "refuse"])
async def test_a_ledger_that_can_not_be_written_serves_or_refuses_as_it_is_told(
    tmp_path: Path, on_failure: str
) -> None:
    path = tmp_path / "none" / "u"
    async with (
        asyncio.timeout(5),
        booked(path, {"m": always("a", ENDING)}, on_failure=on_failure) as system,
    ):
        answer = await ask(system, make_request())

    if on_failure == "serve":
        assert isinstance(answer.ending, Finished)
    else:
        assert isinstance(answer.ending, Failed)
        assert (answer.ending.error.status_code, answer.ending.error.code) == (
            503,
            "ledger_unavailable",
        )


async def test_a_request_whose_model_is_unknown_is_nobodys_row(tmp_path: Path) -> None:
    async with asyncio.timeout(5), booked(tmp_path / "u", {"m": always("a", ENDING)}) as system:
        await error_of(system, make_request("none"))

    assert rows(tmp_path / "u") == []


async def test_a_request_that_gets_another_ones_answer_is_a_row_that_costs_nothing(
    tmp_path: Path,
) -> None:
    async with (
        asyncio.timeout(5),
        booked(tmp_path / "u", {"d": always("a", ENDING)}, {"m": ["d"]}) as system,
    ):
        kept, left = make_request(request_id="kept"), make_request(request_id="left")
        for request in (kept, left):
            system.router.enter_repeat(request)
        kept.channel.end(ENDING)
        left.channel.end(Failed(RequestCanceledError("the client went away")))

    found = [
        (row["request_id"], row["outcome"], row["cost_nano_usd"], row["attempts"])
        for row in rows(tmp_path / "u")
    ]
    assert found == [("kept", "cached", 0, 0), ("left", "canceled", 0, 0)]
