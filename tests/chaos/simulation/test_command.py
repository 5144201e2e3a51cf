"""The simulation from the shell: what it prints and which exit code tells what."""

import json
from pathlib import Path

import pytest

from orchestrator.chaos.invariants.verdict import judge
from orchestrator.chaos.journal import read_journal, trace_hash
from orchestrator.chaos.simulation.__main__ import main
from orchestrator.chaos.simulation.mutants.catalogue import MUTANTS
from orchestrator.chaos.simulation.mutants.planting import planted
from orchestrator.chaos.simulation.swarm import draw
from orchestrator.chaos.simulation.trial import run_plan

pytestmark = pytest.mark.sim

UNBOUNDED = next(mutant for mutant in MUTANTS if mutant.name == "unbounded queue")


def test_seeds_that_hold_exit_with_zero_and_tell_the_rate(capsys: pytest.CaptureFixture[str]):
    code = main(["--seeds", "0:3", "--check-determinism"])

    assert code == 0
    told = capsys.readouterr().out
    assert told.startswith("3 seeds, ")
    assert "requests/s" in told


def test_a_violation_exits_with_one_and_names_the_line_that_replays_it(
    capsys: pytest.CaptureFixture[str],
):
    with planted(UNBOUNDED):
        code = main(["--seeds", "0:6"])

    assert code == 1
    told = capsys.readouterr().out
    assert "I7" in told
    assert "orchestrator chaos replay" in told


def test_a_grid_of_ones_own_is_in_the_line_that_replays(capsys: pytest.CaptureFixture[str]):
    with planted(UNBOUNDED):
        main(["--seeds", "0:6", "--grid", "5"])
    line = capsys.readouterr().out.strip().splitlines()[-1]

    assert line.endswith(" --grid 5")
    assert main(["--replay", "1", "--grid", "5"]) == 0
    assert main(["--replay", "1"]) == 0
    with_grid, without = capsys.readouterr().out.strip().splitlines()
    assert with_grid.split("trace ")[1] != without.split("trace ")[1]


def test_no_seed_is_begun_when_the_time_is_up(capsys: pytest.CaptureFixture[str]):
    assert main(["--seeds", "0:50", "--time-limit", "0"]) == 0

    told = capsys.readouterr()
    assert told.out.startswith("1 seeds, ")
    assert told.err.endswith("time is up: 1 of 50 seeds were run\n")


def test_a_replay_writes_the_journal_from_which_the_verdict_follows(tmp_path: Path):
    file = tmp_path / "journal.ndjson"

    assert main(["--replay", "1", "--trace", str(file)]) == 0

    events = read_journal(file)
    assert judge(events) == []
    assert trace_hash(events) == run_plan(draw(1)).trace


def test_a_plan_in_a_file_runs_as_its_seed_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "plan.json"
    file.write_text(draw(3).as_json(), encoding="utf-8")

    assert main(["--plan", str(file)]) == 0

    assert run_plan(draw(3)).trace in capsys.readouterr().out


def test_the_selftest_fails_if_a_planted_bug_survives(capsys: pytest.CaptureFixture[str]):
    found = main(["--selftest", "--only", "unbounded queue", "--limit", "6"])
    survived = main(["--selftest", "--only", "last fault is the state", "--limit", "1"])

    assert (found, survived) == (0, 1)
    assert "SURVIVED" in capsys.readouterr().out


def demanding(tmp_path: Path, expect: str) -> str:
    file = tmp_path / "demanding.yaml"
    file.write_text(
        "version: 1\nname: demanding\nabout: Half of the answers break off.\nsteady: {}\n"
        "load: {rate: 10/s, for: 2s, tokens: [4, 4]}\n"
        "faults: [{provider: any, do: cut, after_tokens: 2, toxicity: 0.5, for: 2s}]\n"
        f"expect: {{{expect}}}\n",
        encoding="utf-8",
    )
    return str(file)


def test_a_scenario_whose_expectation_is_missed_exits_with_seven(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(["--seeds", "1:2", "--scenario", demanding(tmp_path, "done: '>= 1'")])

    assert code == 7
    told = capsys.readouterr().out
    assert "done in the run was 0." in told
    assert "orchestrator chaos replay 1" in told


def test_a_campaign_as_json_says_the_same_to_programs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(["--seeds", "1:3", "--json", "--scenario", demanding(tmp_path, "done: '>= 0.1'")])

    told = json.loads(capsys.readouterr().out)
    assert (code, told["exit_code"]) == (0, 0)
    assert (told["scenario"], told["mode"], told["seeds"]) == ("demanding", "liveness", 2)
    assert told["faults"] > 0
    assert told["failed"] == told["missed"] == told["diverged"] == []


@pytest.mark.parametrize(
    "arguments", [["--seeds", "5:5"], ["--seeds", "x"], ["--jobs", "0"], ["--plan", "nowhere"]]
)
def test_a_wrong_command_line_exits_with_two(arguments: list[str]):
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
