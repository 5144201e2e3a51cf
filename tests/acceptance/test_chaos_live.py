"""A real gateway is broken through the command line's own code, and planted bugs are found."""

import asyncio
from pathlib import Path

import pytest

from orchestrator.chaos.attendant.bugs import LIVE_BUGS
from orchestrator.chaos.journal import read_journal
from orchestrator.chaos.live.run import Options, run_live
from orchestrator.chaos.scenario.reading import parse_scenario
from orchestrator.chaos.verdict.judgement import Outcome, Verdict, judge_journal

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SCENARIO = """\
version: 1
name: short
about: A model host is killed while it streams.
system: {kind: local, slots: 4}
load: {rate: 12/s, for: 3s, tokens: [10, 60]}
steady: {success: ">= 0.9", for: 1s}
faults: [{at: 1s, worker: any, do: crash}]
heal: 30s
"""
FOUND_BY = {
    "": set[str](),
    "swallow-a-crash": {"I2"},
    "double-a-token": {"I2"},
    "lie-in-readyz": {"I14"},
    "leak-a-slot": {"I4", "I22"},
}


def play(folder: Path, planted: str) -> Verdict:
    options = Options(scenario=parse_scenario(SCENARIO), folder=folder, planted=planted)
    return judge_journal(read_journal(asyncio.run(run_live(options))))


@pytest.mark.parametrize("planted", ["", *LIVE_BUGS])
def test_a_sound_gateway_passes_and_each_planted_bug_is_found(tmp_path: Path, planted: str) -> None:
    verdict = play(tmp_path, planted)

    found = {violation.id for violation in verdict.violations}
    assert found >= FOUND_BY[planted] if planted != "leak-a-slot" else found & FOUND_BY[planted]
    assert verdict.outcome is (Outcome.VIOLATED if planted else Outcome.PASSED), verdict.violations
    assert verdict.left == []
