"""The configuration read anew: what is taken over, and what is refused with nothing changed."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from orchestrator import metrics
from orchestrator.callers.door import Door
from orchestrator.config import Config, parse
from orchestrator.errors import AuthenticationError, ReloadRefusedError
from orchestrator.gateway.entrance import make_door
from orchestrator.gateway.reload import Reloader
from orchestrator.plan import plan_accounts, plan_deployments
from orchestrator.wiring import System

PLACE = "base_url: 'http://127.0.0.1:1/v1'"
ONE = f"a: {{runner: {{kind: openai, {PLACE}, model: m}}}}"
OTHER = f"b: {{runner: {{kind: openai, {PLACE}, model: n}}, slots: 2}}"
PRICED = "prices: {m: {input: 1, output: 2}}\nbudgets: [{route: a, usd: 1, per: day}]\n"


class File:
    """What stands in the file now."""

    def __init__(self, text: str) -> None:
        self.text = text

    def read(self) -> Config:
        return parse(self.text, source="gateway.yaml")


@contextlib.asynccontextmanager
async def reloading(
    file: File, door: Door | None = None
) -> AsyncGenerator[tuple[Reloader, System]]:
    config = file.read()
    accounts = plan_accounts(config)
    system = System(*plan_deployments(config), monitored=False, accounts=accounts)
    reloader = Reloader(config, file.read, system, accounts, lambda _name, _doing: None, door)
    system.start()
    try:
        yield reloader, system
    finally:
        await reloader.aclose()
        await system.aclose()


def counted(result: str) -> float:
    labels = {"result": result}
    return metrics.REGISTRY.get_sample_value("orchestrator_reloads_total", labels) or 0.0


async def test_deployments_and_routes_are_added_removed_and_replaced():
    file = File(f"deployments:\n  {ONE}\n  gone: {{runner: {{kind: openai, {PLACE}, model: x}}}}\n")

    async with asyncio.timeout(5), reloading(file) as (reloader, system):
        await system.settled()
        file.text = (
            f"deployments:\n  {ONE.replace('model: m}', 'model: m}, slots: 3')}\n  {OTHER}\n"
            "routes: {r: {deployments: [b, a]}}\n"
        )
        before = counted("applied")
        done = await reloader.reload()
        again = await reloader.reload()
        slots = {name: running.plan.slots for name, running in system.deployments.items()}

    assert (done.added, done.removed, done.replaced) == (("b",), ("gone",), ("a",))
    assert done.sections == ("routes",)
    assert again.nothing
    assert slots == {"a": 3, "b": 2}
    assert set(system.router.routes) == {"a", "b", "r"}
    assert counted("applied") - before == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"deployments:\n  {ONE}\n  b: {{slots: 0}}\n", r"gateway\.yaml:3: deployments\.b"),
        (f"deployments:\n  {OTHER}\nserver: {{drain: 1s, port: 1}}\n", r"server\.port, server\.dr"),
        (f"deployments:\n  {OTHER}\nledger: {{path: rows.db}}\n", "only a restart .* ledger"),
        (f"deployments:\n  {ONE}\n{PRICED}", "none at the start"),
        (f"deployments:\n  {ONE}\ncallers: {{admin_key: a}}\n", "callers: only a restart"),
    ],
)
async def test_what_can_not_be_taken_over_is_told_and_nothing_changes(text: str, told: str):
    file = File(f"deployments:\n  {ONE}\n")

    async with asyncio.timeout(5), reloading(file) as (reloader, system):
        running = system.deployments["a"]
        file.text = text
        before = counted("refused")
        with pytest.raises(ReloadRefusedError, match=told):
            await reloader.reload()
        untouched = system.deployments == {"a": running}
        file.text = f"deployments:\n  {ONE}\n"
        after = await reloader.reload()

    assert untouched
    assert after.nothing
    assert counted("refused") - before == 1


async def test_prices_and_budgets_hold_from_the_reload_on():
    file = File(f"deployments:\n  {ONE}\n{PRICED}")

    async with asyncio.timeout(5), reloading(file) as (reloader, system):
        running = system.deployments["a"]
        file.text = f"deployments:\n  {ONE}\n{PRICED.replace('usd: 1', 'usd: 5')}"
        done = await reloader.reload()

    assert done.sections == ("budgets",)
    assert system.deployments["a"] is running


async def test_who_is_let_in_changes_with_a_reload_and_what_keys_have_counted_stays(
    tmp_path: Path,
):
    keys = f"keys: '{tmp_path / 'keys.json'}'"

    def with_callers(more: str) -> str:
        return f"deployments:\n  {ONE}\ncallers: {{{keys}, {more}}}\n"

    file = File(with_callers("admin_key: first"))
    door = make_door(file.read())
    assert door is not None
    first, second = ({b"x-api-key": name} for name in (b"first", b"second"))

    async with asyncio.timeout(5), reloading(file, door) as (reloader, _system):
        keyring = door.keyring
        await door.enter_as_administrator(first)
        file.text = with_callers("admin_key: second, anonymous_concurrent: 3")
        done = await reloader.reload()
        await door.enter_as_administrator(second)
        with pytest.raises(AuthenticationError):
            await door.enter_as_administrator(first)
        file.text = with_callers("allow_anonymous: true, admin_key: second")
        again = await reloader.reload()
        anybody = await door.enter({})

    assert done.sections == again.sections == ("callers",)
    assert door.keyring is keyring
    assert anybody is None


@pytest.mark.parametrize("callers", ["", "callers: {anonymous_concurrent: 3}\n"])
async def test_what_only_a_start_can_do_to_callers_is_refused_by_name(callers: str):
    file = File(f"deployments:\n  {ONE}\ncallers: {{admin_key: first}}\n")
    door = make_door(file.read())

    async with asyncio.timeout(5), reloading(file, door) as (reloader, _system):
        file.text = f"deployments:\n  {ONE}\n{callers}"
        with pytest.raises(ReloadRefusedError, match="callers: only a restart") as refusal:
            await reloader.reload()

    assert refusal.value.param == "callers"


async def test_a_signal_that_comes_twice_reads_the_file_again_after_the_first_one():
    file = File(f"deployments:\n  {ONE}\n")

    async with asyncio.timeout(5), reloading(file) as (reloader, system):
        file.text = f"deployments:\n  {ONE}\n  {OTHER}\n"
        reloader.hear()
        file.text = f"deployments:\n  {OTHER}\n"
        reloader.hear()
        await reloader.reload()
        names = set(system.deployments)

    assert names == {"b"}


async def test_nothing_is_read_any_more_when_the_service_stops():
    file = File(f"deployments:\n  {ONE}\n")

    async with asyncio.timeout(5), reloading(file) as (reloader, system):
        file.text = f"deployments:\n  {OTHER}\n"
        await reloader.aclose()
        with pytest.raises(ReloadRefusedError, match="stopping"):
            await reloader.reload()
        names = set(system.deployments)

    assert names == {"a"}
