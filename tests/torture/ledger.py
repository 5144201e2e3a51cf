"""Kills the gateway under load, again and again: `python -m tests.torture.ledger`.

Callers note what they saw finished before they ask for more; the gateway's process is killed at a
random moment, and the next one takes over what it left. At the end each request that was seen
finished is one row of the ledger, and no request is two. `make ledger N=50` runs it; it exits with
1 if a row is missing or doubled.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console

from orchestrator.gateway.screen import plain_console
from orchestrator.ledger.ledger import Ledger, LedgerSettings
from tests.fakes.sse_server import SseServer
from tests.gateway.process import gateway_process
from tests.gateway.serving import CHAT, body, text_of
from tests.torture.traffic import TEXT, WHOLE

CALLERS = 16
SHORTEST_LIFE = 0.05
LONGEST_LIFE = 0.8
"""Seconds under load until the gateway is killed."""
CONFIG = """
server: {{access_log: false}}
deployments:
  m: {{runner: {{kind: openai, base_url: "{url}", model: big}}, slots: 8}}
prices: {{big: {{input: 1, output: 2}}}}
ledger: {{path: ./usage.db}}
"""


@dataclass(slots=True, eq=False)
class Tally:
    """What the callers know, beside what the ledger holds."""

    asked: int = 0
    finished: set[str] = field(default_factory=set[str])
    missing: list[str] = field(default_factory=list[str])
    doubled: list[str] = field(default_factory=list[str])

    @property
    def holds(self) -> bool:
        """Whether no row is missing and none is there twice."""
        return not self.missing and not self.doubled


async def kill_again_and_again(rounds: int, *, seed: int, folder: Path, console: Console) -> Tally:
    """Runs all rounds over one ledger and compares it with what the callers saw."""
    chance, tally = random.Random(seed), Tally()
    config = folder / "gateway.yaml"
    async with SseServer(WHOLE) as provider:
        config.write_text(CONFIG.format(url=provider.url), encoding="utf-8")
        for number in range(rounds):
            life = chance.uniform(SHORTEST_LIFE, LONGEST_LIFE)
            before = len(tally.finished)
            await _one_life(config, life, tally)
            provider.requests.clear()  # its record would grow for ever
            console.print(
                f"{number + 1}/{rounds}: killed after {life:.2f} s,"
                f" {len(tally.finished) - before} finished"
            )
    _compare(folder / "usage.db", tally)
    return tally


async def _one_life(config: Path, life: float, tally: Tally) -> None:
    async with gateway_process(config) as (gateway, client):
        while (await client.get("/readyz")).status_code != 200:  # noqa: ASYNC110 - another process has no event
            await asyncio.sleep(0.01)
        callers = [asyncio.create_task(_call(client, tally)) for _ in range(CALLERS)]
        await asyncio.sleep(life)
        os.kill(gateway.pid, signal.SIGKILL)
        await asyncio.gather(*callers)


async def _call(client: httpx.AsyncClient, tally: Tally) -> None:
    """Asks until the gateway is gone."""
    with contextlib.suppress(httpx.TransportError):
        while True:
            tally.asked += 1
            name = f"r{tally.asked}"
            streamed = tally.asked % 2 == 0
            response = await client.post(
                CHAT, json=body(stream=streamed), headers={"x-request-id": name}
            )
            if response.status_code != 200:
                continue
            text = (
                text_of(response.text)
                if streamed
                else response.json()["choices"][0]["message"]["content"]
            )
            if text != TEXT:
                raise AssertionError(f"{name} was answered with {text!r}")
            tally.finished.add(name)


def _compare(path: Path, tally: Tally) -> None:
    # the last one that was killed has a spool, too, which the next start takes over
    ledger = Ledger(LedgerSettings(path=path))
    ledger.open()
    ledger.close()
    connection = sqlite3.connect(path)
    rows = Counter[str](
        name
        for (name,) in connection.execute(
            "SELECT request_id FROM usage WHERE outcome = ?", ("finished",)
        )
    )
    connection.close()
    tally.missing = sorted(tally.finished - rows.keys())
    tally.doubled = sorted(name for name, count in rows.items() if count > 1)


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = plain_console()
    with tempfile.TemporaryDirectory() as folder:
        # not on uvloop: there anyio asks a connection that has just died for its socket, and breaks
        tally = asyncio.run(
            kill_again_and_again(
                options.rounds, seed=options.seed, folder=Path(folder), console=console
            )
        )
    console.print(
        f"{options.rounds} kills, {tally.asked} requests, {len(tally.finished)} seen finished:"
        f" {len(tally.missing)} rows missing, {len(tally.doubled)} doubled"
    )
    sys.exit(not tally.holds)


if __name__ == "__main__":
    main()
