"""However a request ends, it is one row of the ledger, and its permits are given back."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.accounts import Accounts, Tariff
from orchestrator.errors import UpstreamTruncatedError
from orchestrator.ledger.ledger import Ledger, LedgerSettings
from orchestrator.plan import DeploymentPlan, KeyPlan, RoutePlan
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.request import Priority, PriorityRequest
from orchestrator.routing.hedging import HedgeSettings
from orchestrator.routing.route import RoutePolicy
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import KeyAccess, Lease
from orchestrator.wiring import System
from tests.fakes.scripted import Line, ScriptedRunner, Stage, always
from tests.fakes.systems import ask, ask_all, make_request, read, running
from tests.test_accounts import COST, ENDING, PRICE, rows

LIMITS = RateLimits(requests_per_minute=600, concurrency=4)


def accounts(path: Path, *names: str) -> Accounts:
    return Accounts(
        {name: Tariff(model=f"model-{name}", price=PRICE) for name in names},
        budgets=None,
        ledger=Ledger(LedgerSettings(path=path)),
        clock=lambda: 1_000_000.0,
    )


def only(path: Path, **said: object) -> dict[str, Any]:  # Any: a row of SQLite
    (row,) = [row for row in rows(path) if all(row[key] == value for key, value in said.items())]
    return row


def permits_out(system: System) -> list[int]:
    return [one.gates.limiter.outstanding for one in system.deployments.values()]


async def turns() -> None:
    """Lets the loop do what is due: a few turns are enough for a word to come back."""
    for _ in range(50):
        await asyncio.sleep(0)


@pytest.mark.parametrize("way", ["exact", "prefill"])
async def test_an_answer_that_went_on_after_a_break_is_one_row(tmp_path: Path, way: str) -> None:
    def script(_request: PriorityRequest, call: int) -> Sequence[Line]:
        if call == 0:
            return ["a", UpstreamTruncatedError("cut")]
        return ["a", "b", ENDING] if way == "exact" else ["b", ENDING]

    stage = Stage(script, resumes="m" if way == "exact" else None, prefill=way == "prefill")
    route = RoutePlan(
        deployments=("d",), policy=RoutePolicy(midstream="resume" if way == "exact" else "continue")
    )
    books = accounts(tmp_path / "u", "d")
    async with (
        asyncio.timeout(5),
        running({"d": stage}, {"m": route}, accounts=books, limits=LIMITS, slots=1) as system,
    ):
        answer = await ask(system, make_request())
        out = permits_out(system)

    row = only(tmp_path / "u")
    assert answer.text == "ab"
    assert (row["outcome"], row["attempts"], row["failed_attempts"]) == ("finished", 2, 1)
    assert row["cost_nano_usd"] >= COST
    assert out == [0]


async def test_a_request_that_a_poison_ended_is_a_row_and_holds_no_permit(tmp_path: Path) -> None:
    books = accounts(tmp_path / "u", "m")
    stage, begun = always(asyncio.Event()), asyncio.Event()
    stage.on_running = lambda _: begun.set()
    async with (
        asyncio.timeout(5),
        running({"m": stage}, accounts=books, limits=LIMITS, slots=1) as system,
    ):
        request = make_request(request_id="poisoned")
        system.router.submit(request)
        await begun.wait()
        deployment = system.deployments["m"]
        deployment.poison("drill", RuntimeError("poison"))
        answer = await read(request)
        await turns()
        out = permits_out(system)

    row = only(tmp_path / "u", request_id="poisoned")
    assert answer.text == ""
    assert (row["outcome"], row["attempts"], row["cost_nano_usd"]) == ("engine_unhealthy", 1, 0)
    assert out == [0]


async def test_a_request_that_was_shed_is_a_row_without_an_attempt(tmp_path: Path) -> None:
    gate = asyncio.Event()
    books = accounts(tmp_path / "u", "m")
    async with (
        asyncio.timeout(5),
        running(
            {"m": always("a", gate, ENDING)},
            accounts=books,
            limits=LIMITS,
            slots=1,
            queue_capacity=1,
        ) as system,
    ):
        first, low = make_request(), make_request(request_id="low", priority=Priority.BACKGROUND)
        urgent = make_request(priority=Priority.HIGH)
        system.router.submit(first)
        while first.channel.delivered < 1:
            await first.channel.receive()
        system.router.submit(low)
        system.router.submit(urgent)
        shed = await read(low)
        gate.set()
        await read(urgent)
        out = permits_out(system)

    row = only(tmp_path / "u", request_id="low")
    assert shed.text == ""
    assert (row["outcome"], row["attempts"], row["cost_nano_usd"]) == ("queue_full", 0, 0)
    assert len(rows(tmp_path / "u")) == 3
    assert out == [0]


class KeyedRunner(ScriptedRunner):
    """Notes how many answers run with each key."""

    def __init__(self, stage: Stage, running_by: dict[str, int], most_by: dict[str, int]) -> None:
        super().__init__(stage)
        self._running, self._most = running_by, most_by

    async def generate(self, request: PriorityRequest, lease: Lease):
        key = "" if lease.key is None else lease.key.read()
        self._running[key] = self._running.get(key, 0) + 1
        self._most[key] = max(self._most.get(key, 0), self._running[key])
        try:
            async for event in super().generate(request, lease):
                yield event
        finally:
            self._running[key] -= 1


async def test_several_keys_their_concurrency_and_hedges_together_lose_no_permit(
    tmp_path: Path,
) -> None:
    running_by: dict[str, int] = {}
    most_by: dict[str, int] = {}
    slow, quick = always(asyncio.Event()), always("a", ENDING)
    one = RateLimits(concurrency=1)

    def access(name: str) -> KeyAccess:
        return KeyAccess(lambda: name)

    plans = [
        DeploymentPlan(
            name="slow",
            factory=SlotFactory(
                create=lambda: KeyedRunner(slow, running_by, most_by), model="scripted"
            ),
            slots=4,
            keys=[KeyPlan(access=access(name), limits=one) for name in ("k", "l")],
        ),
        DeploymentPlan(name="quick", factory=quick.factory(), slots=8),
    ]
    policy = RoutePolicy(hedge=HedgeSettings(seconds=0.005, share=1.0))
    routes = {"m": RoutePlan(deployments=("slow", "quick"), policy=policy)}
    system = System(
        plans, routes, monitored=False, accounts=accounts(tmp_path / "u", "slow", "quick")
    )
    async with asyncio.timeout(5):
        system.start()
        await system.settled()
        for _ in range(3):
            answers = await ask_all(system, [make_request() for _ in range(2)])
            assert [answer.text for answer in answers] == ["a", "a"]
            await turns()
            assert permits_out(system) == [0, 0]
        await system.aclose()

    assert most_by == {"k": 1, "l": 1}
    assert set(running_by.values()) == {0}
    assert [row["cost_nano_usd"] for row in rows(tmp_path / "u")] == [COST] * 6
