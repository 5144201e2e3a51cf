"""A real gateway is broken through the command line's own code, and planted bugs are found."""

import asyncio
from pathlib import Path

import pytest

from orchestrator.chaos.attendant.bugs import LIVE_BUGS
from orchestrator.chaos.journal import read_journal
from orchestrator.chaos.live.options import Options
from orchestrator.chaos.live.run import run_live
from orchestrator.chaos.scenario.reading import parse_scenario
from orchestrator.chaos.verdict.judgement import Outcome, Verdict, judge_journal

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SCENARIO = """\
version: 1
name: short
about: A model host is killed while it streams.
system: {kind: local, slots: 4}
load: {rate: 12/s, for: 2500ms, tokens: [10, 60]}
steady: {success: ">= 0.9", for: 500ms}
faults: [{at: 1s, worker: any, do: crash, after_tokens: 3}]
heal: 15s
"""
# bugs that are told from each other by what finds them share one start of a gateway
FOUND_BY = {
    "": [],
    "double-a-token,lie-in-readyz": [{"I2"}, {"I14"}],
    "swallow-a-crash,leak-a-slot": [{"I2"}, {"I4", "I22"}],
}


def play(folder: Path, planted: str) -> Verdict:
    options = Options(scenario=parse_scenario(SCENARIO), folder=folder, planted=planted)
    return judge_journal(read_journal(asyncio.run(run_live(options))))


@pytest.mark.parametrize("planted", FOUND_BY)
def test_a_sound_gateway_passes_and_each_planted_bug_is_found(tmp_path: Path, planted: str) -> None:
    verdict = play(tmp_path, planted)

    found = {violation.id for violation in verdict.violations}
    assert all(found & one_of for one_of in FOUND_BY[planted]), verdict.violations
    assert verdict.outcome is (Outcome.VIOLATED if planted else Outcome.PASSED), verdict.violations
    assert verdict.left == []


def test_a_moment_that_does_not_come_ends_with_the_load_and_proves_nothing(tmp_path: Path) -> None:
    yaml = (
        SCENARIO.replace("{at: 1s,", "{after_requests: 1000,")
        .replace("slots: 4}", "deadline: 2s}")
        .replace("for: 2500ms", "for: 500ms")
    )
    options = Options(scenario=parse_scenario(yaml), folder=tmp_path)

    verdict = judge_journal(read_journal(asyncio.run(run_live(options))))

    assert verdict.outcome is Outcome.INCONCLUSIVE, verdict.violations
    assert verdict.doubts[0] == "fault 0 (worker crash) did not land"


def test_every_bug_that_can_be_planted_is_planted_here() -> None:
    assert sorted(",".join(FOUND_BY).strip(",").split(",")) == sorted(LIVE_BUGS)
