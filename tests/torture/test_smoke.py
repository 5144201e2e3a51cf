"""A little of each run, so that the programs themselves can't rot."""

import asyncio
from pathlib import Path
from statistics import median

import pytest
import uvloop
from rich.console import Console

from tests.torture.chaos_kill import kill_again_and_again as kill_the_command
from tests.torture.counts import growth
from tests.torture.judge import DEATH_SECONDS
from tests.torture.leaks import measure
from tests.torture.ledger import kill_again_and_again
from tests.torture.outcome import Outcome
from tests.torture.races import RACES, run
from tests.torture.report import table, write
from tests.torture.target import NUMBERS
from tests.torture.torture import torture

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SILENT = Console(quiet=True)
STREAMS = 150
TRIALS = 20
KILLS = 5
DEATHS = 10
LONGEST_LIFE = 6.0


@pytest.mark.parametrize(("breed", "faults"), [("metronome", list(NUMBERS)), ("real", ["kill"])])
def test_a_broken_host_breaks_no_promise(tmp_path: Path, breed: str, faults: list[str]) -> None:

    outcomes = uvloop.run(
        torture(breed, faults, rounds=1, seed=7, folder=tmp_path, minutes=3.0, console=SILENT)
    )

    assert [outcome.fault for outcome in outcomes] == faults
    assert [outcome.violations for outcome in outcomes] == [[]] * len(outcomes)


def test_half_of_all_deaths_are_noticed_in_less_than_fifty_milliseconds(tmp_path: Path) -> None:
    outcomes = uvloop.run(
        torture(
            *("metronome", ["kill"]),
            rounds=DEATHS,
            seed=5,
            folder=tmp_path,
            minutes=3.0,
            console=SILENT,
            spare=True,
        )
    )

    assert [outcome.violations for outcome in outcomes] == [[]] * DEATHS
    assert median(outcome.noticed_after for outcome in outcomes) < DEATH_SECONDS


def test_a_few_streams_of_every_kind_leave_nothing_behind() -> None:
    counts, went = uvloop.run(measure(STREAMS, SILENT))

    assert growth(counts) == []
    assert sum(went.values()) == counts[-1].streams


@pytest.mark.parametrize("name", RACES)
def test_in_a_race_of_threads_nobody_waits_for_ever(name: str) -> None:
    came_back = run(name, TRIALS)

    assert sum(came_back.values()) >= 4 * TRIALS


def test_a_killed_gateway_loses_and_doubles_no_row(tmp_path: Path) -> None:
    tally = asyncio.run(kill_again_and_again(KILLS, seed=3, folder=tmp_path, console=SILENT))

    assert tally.finished
    assert (tally.missing, tally.doubled) == ([], [])


def test_a_chaos_command_that_is_killed_leaves_nothing_behind(tmp_path: Path) -> None:
    tally = asyncio.run(
        kill_the_command(2, seed=5, folder=tmp_path, console=SILENT, longest=LONGEST_LIFE)
    )

    assert tally.rounds == 2
    assert tally.left == []


def test_the_figures_of_a_run_become_table_and_file(tmp_path: Path) -> None:
    outcomes = [
        Outcome(number=0, fault="kill", noticed_after=0.02, died_after=0.01, back_after=3.0),
        Outcome(number=1, fault="stop", noticed_after=0.01, violations=["something"]),
    ]

    write(tmp_path / "figures.json", outcomes)

    assert table(outcomes).row_count == 2
    assert '"noticed_after": 0.02' in (tmp_path / "figures.json").read_text(encoding="utf-8")
