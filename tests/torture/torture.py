"""Breaks the real model host again and again: `python -m tests.torture.torture --rounds 100`.

Exits with 1 if a promise was broken in any round; `make torture N=100 FAULTS=kill,stop` runs it.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

import uvloop
from rich.console import Console

from orchestrator.gateway.screen import plain_console
from tests.torture.lab import ALIVE_SECONDS, BREEDS, impatient, running_lab
from tests.torture.outcome import Outcome
from tests.torture.report import table, write
from tests.torture.round import play
from tests.torture.target import NUMBERS

SUMMARY_ROUNDS = 10
"""After so many rounds of each fault the figures up to then are shown."""


async def torture(
    breed: str,
    faults: list[str],
    *,
    rounds: int,
    seed: int,
    folder: Path,
    minutes: float,
    console: Console,
    lease: float | None = None,
    spare: bool = False,
) -> list[Outcome]:
    """Plays so many rounds of each fault, in turns, or as many as the time allows."""
    chance = random.Random(seed)
    outcomes: list[Outcome] = []
    console.print(f"starting the {breed} host; seed {seed}")
    bred = BREEDS[breed] if lease is None else impatient(BREEDS[breed], lease)
    end = time.perf_counter() + 60 * minutes
    async with running_lab(folder, bred, seed, spare=spare) as lab:
        for number in range(rounds * len(faults)):
            if time.perf_counter() > end:
                console.print(f"the {minutes:g} minutes are over")
                break
            async with asyncio.timeout(2 * ALIVE_SECONDS):
                outcome = await play(lab, number, faults[number % len(faults)], chance)
            outcomes.append(outcome)
            console.print(line(outcome), style="red" if outcome.violations else None)
            if len(outcomes) % (SUMMARY_ROUNDS * len(faults)) == 0:
                console.print(table(outcomes))
    return outcomes


def line(outcome: Outcome) -> str:
    """A round in one line, and a line for each violation."""
    text = (
        f"{outcome.number:4} {outcome.fault:5} at piece {outcome.chunks_before:3}: "
        f"noticed {1000 * outcome.noticed_after:6.1f} ms, "
        f"process ended {1000 * outcome.died_after:7.1f} ms, "
        f"timers late {1000 * outcome.lateness:5.1f} ms, back {outcome.back_after:5.1f} s, "
        f"{outcome.finished} finished {outcome.interrupted} interrupted {outcome.retried} retried "
        f"{outcome.resumed} resumed"
    )
    return "\n     VIOLATION: ".join([text, *outcome.violations])


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="of each fault")
    parser.add_argument("--faults", default=",".join(NUMBERS), help="names with commas between")
    parser.add_argument("--host", choices=BREEDS, default="real")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=600.0, help="stop after so many")
    parser.add_argument("--lease", type=float, help="seconds between tokens, on a quiet machine 3")
    parser.add_argument("--spare", action="store_true", help="with a spare host beside the other")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    faults: list[str] = options.faults.split(",")
    if not set(faults) <= set(NUMBERS):
        parser.error(f"the faults are {', '.join(NUMBERS)}")
    logging.getLogger("orchestrator").setLevel(logging.CRITICAL)  # each round makes a traceback
    console = plain_console()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        outcomes = runner.run(
            torture(
                options.host,
                faults,
                rounds=options.rounds,
                seed=options.seed,
                folder=Path(folder),
                minutes=options.minutes,
                console=console,
                lease=options.lease,
                spare=options.spare,
            )
        )
    console.print(table(outcomes))
    if options.json is not None:
        write(options.json, outcomes)
    sys.exit(any(outcome.violations for outcome in outcomes))


if __name__ == "__main__":
    main()
