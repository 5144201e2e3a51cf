"""Budgets in USD of callers' keys: none is accepted over a model whose price nobody knows."""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from orchestrator.callers.door import Door, Rules
from orchestrator.callers.keyring import Keyring
from orchestrator.callers.making import NewKey, create_key, revoke_key
from orchestrator.callers.record import KeyBudget
from orchestrator.config import Config, parse
from orchestrator.errors import ConfigError, ReloadRefusedError
from orchestrator.gateway.entrance import make_door
from orchestrator.gateway.keys import fault_of_budgets
from orchestrator.gateway.reload import Reloader
from orchestrator.plan import plan_deployments
from orchestrator.reading.references import Secret
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, always
from tests.gateway.serving import serving

NOW = 1_700_000_000.0
PLACE = "base_url: 'http://127.0.0.1:1/v1'"
DEPLOYMENTS = f"""
deployments:
  dear: {{runner: {{kind: openai, {PLACE}, model: big}}}}
  free: {{runner: {{kind: openai, {PLACE}, model: small}}}}
routes: {{both: {{deployments: [dear, free]}}}}
callers: {{keys: ./keys.json}}
"""
PRICED = "prices: {big: {input: 1, output: 2}}\n"
USD = KeyBudget(per="day", nano_usd=5)


def config_of(folder: Path, more: str = PRICED) -> Config:
    return parse(DEPLOYMENTS + more, folder=folder)


@pytest.mark.parametrize(
    ("routes", "budget", "whose"),
    [
        (None, USD, "free"),
        (("both",), USD, "free"),
        (("dear", "free"), USD, "free"),
        (("dear",), USD, None),
        (("gone",), USD, None),
        (None, KeyBudget(per="day", tokens=5), None),
        (None, KeyBudget(per="day", nano_usd=5, unknown_price="allow"), None),
    ],
)
def test_a_budget_in_usd_needs_a_price_of_all_that_its_key_may_ask_for(
    tmp_path: Path, routes: Sequence[str] | None, budget: KeyBudget, whose: str | None
) -> None:
    fault = fault_of_budgets(config_of(tmp_path), routes, [budget])

    assert (fault is None) == (whose is None)
    assert (
        f'prices has none for "small", which deployment {whose} runs' in (fault or "") or not whose
    )


def test_a_file_of_keys_whose_budgets_can_not_be_held_is_told_at_the_start(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    record, _ = create_key(tmp_path / "keys.json", NewKey(caller="ann", budgets=(USD,)), now=NOW)

    with pytest.raises(ConfigError, match=rf"key sk-orc-{record.id}\S* of ann in .*keys\.json has"):
        make_door(config)
    assert make_door(config_of(tmp_path, PRICED.replace("}\n", ", s: {input: 0, output: 0}}\n")))
    revoke_key(tmp_path / "keys.json", record.id, now=NOW)
    assert make_door(config)


async def test_an_administrator_makes_no_key_whose_budget_can_not_be_held(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys.json", lambda: NOW)
    keyring.fault_of = partial(fault_of_budgets, config_of(tmp_path))
    door = Door(Rules(keyring=keyring, admin_key=Secret("root")))
    root = {"authorization": "Bearer root"}
    wanted: dict[str, object] = {"caller": "eve", "budgets": [{"per": "day", "nano_usd": 5}]}

    async with asyncio.timeout(5), serving({"m": always("a", DONE)}, door=door) as served:
        refused = await served.client.post("/admin/keys", json=wanted, headers=root)
        wanted["routes"] = ["dear"]
        made = await served.client.post("/admin/keys", json=wanted, headers=root)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "budgets")
    assert made.status_code == 201


async def test_a_reload_takes_no_price_away_that_the_budget_of_a_key_needs(tmp_path: Path) -> None:
    texts, before = [""], config_of(tmp_path)
    create_key(
        tmp_path / "keys.json", NewKey(caller="ann", routes=("dear",), budgets=(USD,)), now=NOW
    )
    door = make_door(before)
    assert door is not None
    system = System(*plan_deployments(before), monitored=False)
    system.start()
    reloader = Reloader(
        before,
        lambda: config_of(tmp_path, texts[0]),
        system,
        None,
        lambda _name, _doing: None,
        door,
    )

    async with asyncio.timeout(5):
        with pytest.raises(
            ReloadRefusedError, match='has a budget in USD, but prices has none for "big"'
        ):
            await reloader.reload()
        await reloader.aclose()
        await system.aclose()


def test_a_key_that_comes_while_all_runs_with_such_a_budget_is_told_of_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    door = make_door(config_of(tmp_path))
    assert door is not None
    assert door.keyring is not None

    _, key = create_key(path, NewKey(caller="ann", budgets=(USD,)), now=NOW)
    door.keyring.look()

    assert door.keyring.find(key).name == "ann"
    assert caplog.text.count("has a budget in USD, but prices has none") == 1
