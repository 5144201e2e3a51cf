"""What `orchestrator keys` prints; the key itself once, when it is made."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import msgspec

from orchestrator.callers.key import shown
from orchestrator.callers.record import KeyBudget, KeyRecord
from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.gateway.screen import folding_table, plain_console
from orchestrator.policies.pricing import NANO_PER_USD, usd_text


def file_of_keys(config: Config) -> Path:
    """The file that the configuration names.

    Raises:
        ConfigError: It names none.
    """
    if config.callers.keys is None:
        raise ConfigError("callers.keys: missing; it names the file that keys are kept in")
    return config.callers.keys


def fault_of_budgets(
    config: Config, routes: Sequence[str] | None, budgets: Sequence[KeyBudget]
) -> str | None:
    """Why a key's budgets in USD can't be held: a model that they cover has no price."""
    if all(one.nano_usd is None or one.unknown_price == "allow" for one in budgets):
        return None
    served = config.all_routes
    if routes is None:
        return config.without_price(config.deployments)
    return config.without_price(name for route in routes for name in served.get(route, ()))


def key_budgets(
    usd: float | None,
    tokens: int | None,
    per: Literal["hour", "day", "month"],
    unknown_price: Literal["refuse", "allow"] = "refuse",
) -> tuple[KeyBudget, ...]:
    """The budgets that a few options ask for."""
    budgets: list[KeyBudget] = []
    if usd is not None:
        nano_usd = round(usd * NANO_PER_USD)
        budgets.append(KeyBudget(per=per, nano_usd=nano_usd, unknown_price=unknown_price))
    if tokens is not None:
        budgets.append(KeyBudget(per=per, tokens=tokens))
    return tuple(budgets)


def public(record: KeyRecord) -> dict[str, object]:
    """What is told of a key: all but its hash."""
    told: dict[str, object] = msgspec.to_builtins(record)
    del told["digest"]
    return told | {"key": shown(record.id)}


def print_new_key(record: KeyRecord, key: str, *, as_json: bool) -> None:
    """Prints a key that was made; nobody can show it again."""
    if as_json:
        told = public(record) | {"key": key}
        plain_console().print(msgspec.json.encode(told).decode(), soft_wrap=True)
    else:
        plain_console().print(key, soft_wrap=True)


def print_keys(records: Sequence[KeyRecord], now: float, *, as_json: bool) -> None:
    """Prints all keys.

    Args:
        records: What is kept of them.
        now: Unix time.
        as_json: As one JSON array.
    """
    console = plain_console()
    if as_json:
        line = msgspec.json.encode([public(record) for record in records]).decode()
        console.print(line, soft_wrap=True)
        return
    table = folding_table(
        *("key", "caller", "state", "made", "expires", "routes", "priority", "limits", "budgets")
    )
    for record in records:
        table.add_row(
            shown(record.id),
            record.caller + (" (admin)" if record.admin else ""),
            _state(record, now),
            _day(record.created_at),
            _day(record.expires_at),
            "all" if record.routes is None else ", ".join(record.routes),
            record.priority,
            _limits(record),
            ", ".join(map(_budget, record.budgets)) or "none",
        )
    console.print(table)


def _state(record: KeyRecord, now: float) -> str:
    if record.revoked_at is not None:
        return "revoked"
    return "expired" if record.expires_at is not None and now >= record.expires_at else "valid"


def _day(at: int | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _limits(record: KeyRecord) -> str:
    limits = {
        "requests/min": record.requests_per_minute,
        "tokens/min": record.tokens_per_minute,
        "at once": record.max_concurrent,
    }
    return ", ".join(f"{number} {what}" for what, number in limits.items() if number) or "none"


def _budget(budget: KeyBudget) -> str:
    amount = f"{budget.tokens} tokens" if budget.tokens is not None else ""
    if budget.nano_usd is not None:
        amount = f"{usd_text(budget.nano_usd)} USD"
    return f"{amount}/{budget.per}"
