"""What `orchestrator usage` prints: the ledger's rows, added up by caller, route or day."""

import sqlite3
from dataclasses import asdict

import msgspec

from orchestrator.config import Config
from orchestrator.errors import ConfigError
from orchestrator.gateway.screen import folding_table, plain_console
from orchestrator.ledger.store import By, Sum, reading
from orchestrator.policies.pricing import usd_text


def print_usage(config: Config, by: By, *, since_ms: int, as_json: bool) -> None:
    """Prints a table, or one JSON array for programs.

    Args:
        config: It names the ledger, which a gateway may be writing.
        by: What rows have in common that are added up.
        since_ms: Unix time in milliseconds from which endings count.
        as_json: As JSON.

    Raises:
        ConfigError: There is no ledger there, or it can't be read.
    """
    if config.ledger is None:
        raise ConfigError("the configuration has no section ledger, so nothing is written down")
    ledger = config.ledger.path
    try:
        with reading(ledger) as store:
            sums = store.sums(by, since_ms)
    except sqlite3.Error as error:
        raise ConfigError(f"the ledger {ledger} can't be read: {error}") from error
    console = plain_console()
    if as_json:
        line = msgspec.json.encode([{"by": by} | asdict(group) for group in sums]).decode()
        console.print(line, soft_wrap=True)
        return
    table = folding_table(
        *(by, "requests", "finished", "prompt", "cached", "answer", "reasoning", "USD"),
        *("unpriced", "failed attempts", "their USD"),
    )
    for group in sums:
        table.add_row(*_cells(group))
    console.print(table)


def _cells(group: Sum) -> tuple[str, ...]:
    counts = (group.requests, group.finished, group.prompt_tokens, group.cached_tokens)
    return (
        group.name or "-",
        *map(str, counts),
        *map(str, (group.completion_tokens, group.reasoning_tokens)),
        usd_text(group.cost_nano_usd),
        str(group.unpriced),
        str(group.failed_attempts),
        usd_text(group.failed_cost_nano_usd),
    )
