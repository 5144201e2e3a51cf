"""The outcome of a journal, and which of several outcomes counts."""

import hashlib
import platform
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from orchestrator.chaos.journal import (
    Event,
    Journal,
    JournalError,
    Kind,
    Scalar,
    line_of,
    read_journal,
)
from orchestrator.chaos.provenance import commit_of, hash_of, provenance
from orchestrator.chaos.report.document import SCHEMA, as_json, as_junit
from orchestrator.chaos.report.files import write_all
from orchestrator.chaos.report.page import as_html
from orchestrator.chaos.report.terminal import console, show
from orchestrator.chaos.verdict.judgement import Outcome, judge_journal
from orchestrator.errors import ConfigError

GIT = shutil.which("git") or ""
NOBODY = ("-c", "user.name=nobody", "-c", "user.email=nobody@localhost")
STEADY: dict[str, Scalar] = {"steady_success": ">= 0.99"}
RUN: dict[str, Scalar] = {
    "seed": 1,
    "scenario": "x",
    "mode": "liveness",
    "world": "live",
    "exposed": 1,
}


class Run:
    """A live run's journal, written step by step; a tenth of a second passes with each event."""

    def __init__(self, **run: str | int) -> None:
        self._now = 0.0
        self.journal = Journal(lambda: self._now)
        self.journal.record(Kind.RUN, more=RUN | STEADY | run)
        self.record(Kind.DEPLOYMENT, deployment="a", slots=1, queue_capacity=4)
        self.record(Kind.ENGINE_START, deployment="a", generation=1)

    def record(self, kind: Kind, request: str | None = None, **value: str | float | bool) -> None:
        self._now += 0.1
        self.journal.record(kind, request=request, more=value)

    def ask(self, name: str, *, reads: int = 2, outcome: str = "done", must: bool = False) -> None:
        self.record(Kind.SUBMIT, name, tokens=2, must_succeed=must)
        self.record(Kind.ACCEPT, name, deployment="a", priority=1, deadline=99.0, depth=1)
        self.record(Kind.DEQUEUE, name, deployment="a")
        for index in range(reads):
            self.record(Kind.READ, name, index=index)
        told = {} if outcome == "done" else {"code": "worker_crashed", "cause": "signal 9"}
        self.record(Kind.TERMINAL, name, outcome=outcome, **told)
        self.record(Kind.END_READ, name, outcome=outcome, **told)

    def phase(self, name: str) -> None:
        self.record(Kind.PHASE, name=name)

    def fault(self, *, lands: bool = True) -> None:
        self.phase("fault")
        self.record(Kind.FAULT_PLANNED, fault=0, what="worker crash", target="any", at=0.0)
        if lands:
            self.record(Kind.FAULT_LANDED, fault=0, evidence="state T in /proc", deployment="a")
        self.ask("f1")
        self.record(Kind.FAULT_HEALED, fault=0)

    def end(self) -> None:
        for name in ("heal", "recovery"):
            self.phase(name)
        self.ask("r1", must=True)
        self.phase("drain")
        self.record(Kind.GAUGE, name="queue of a", value=0, expected=0)
        self.phase("check")

    @property
    def outcome(self) -> Outcome:
        return judge_journal(self.journal.events).outcome


def a_run(*, lands: bool = True, **run: str | int) -> Run:
    found = Run(**run)
    found.phase("baseline")
    found.ask("b1")
    found.fault(lands=lands)
    return found


def ended(run: Run) -> Run:
    run.end()
    return run


def test_a_run_in_which_all_held_and_every_fault_landed_has_passed() -> None:
    assert ended(a_run()).outcome is Outcome.PASSED


def test_a_fault_that_did_not_land_proves_nothing() -> None:
    assert ended(a_run(lands=False)).outcome is Outcome.INCONCLUSIVE


def test_too_few_requests_that_met_a_fault_prove_nothing() -> None:
    assert ended(a_run(exposed=10)).outcome is Outcome.INCONCLUSIVE


def test_a_journal_that_ends_before_its_run_proves_nothing() -> None:
    assert a_run().outcome is Outcome.INCONCLUSIVE


def test_a_run_that_was_broken_off_proves_nothing() -> None:
    run = a_run()
    run.record(Kind.ABORTED, reason="no route was ready")

    assert ended(run).outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize(("share", "outcome"), [(0.2, Outcome.MISSED), (0.7, Outcome.INCONCLUSIVE)])
def test_an_expectation_missed_on_a_machine_without_room_proves_nothing(
    share: float, outcome: Outcome
) -> None:
    run = a_run(expect_recovery="<= 1ms")
    run.record(Kind.STRAIN, share=share)

    assert ended(run).outcome is outcome


@pytest.mark.parametrize(
    ("share", "outcome"), [(0.2, Outcome.VIOLATED), (0.7, Outcome.INCONCLUSIVE)]
)
def test_what_came_too_late_on_a_machine_without_room_is_a_doubt_and_no_violation(
    share: float, outcome: Outcome
) -> None:
    run = a_run()
    run.record(Kind.WORKER_DEAD, deployment="a", worker="a/0", cause="WorkerHungError: silent")
    run.record(Kind.SUBMIT, "late", tokens=2)
    run.record(Kind.ACCEPT, "late", deployment="a", priority=1, deadline=0.1, depth=1)
    run.record(Kind.DEQUEUE, "late", deployment="a")
    run.record(Kind.TERMINAL, "late", outcome="canceled")
    run.record(Kind.END_READ, "late", outcome="indeterminate")
    run.record(Kind.STRAIN, share=share)

    found = judge_journal(ended(run).journal.events)

    assert found.outcome is outcome
    assert any("I3: ended" in line for line in found.doubts) is (outcome is Outcome.INCONCLUSIVE)


def test_a_token_twice_on_a_machine_without_room_is_a_violation_all_the_same() -> None:
    run = a_run()
    run.ask("f2", reads=1)
    run.record(Kind.STRAIN, share=0.9)

    assert ended(run).outcome is Outcome.VIOLATED


def test_a_baseline_that_was_not_met_is_told_before_all_doubts() -> None:
    run = Run()
    run.phase("baseline")
    run.ask("b1", outcome="error", reads=0)

    assert run.outcome is Outcome.BASELINE_NOT_MET


def test_a_doubled_token_is_a_violation_whatever_else_is_in_doubt() -> None:
    run = a_run(lands=False)
    run.ask("f2", reads=1)

    found = judge_journal(ended(run).journal.events)

    assert found.outcome is Outcome.VIOLATED
    assert [violation.id for violation in found.violations] == ["I2"]


def test_what_is_left_on_the_machine_outranks_a_violation() -> None:
    run = a_run()
    run.ask("f2", reads=1)
    run.record(Kind.GAUGE, name="residue: stopped processes", value=1, expected=0)

    assert ended(run).outcome is Outcome.RESIDUE


def test_an_expectation_is_missed_only_if_it_is_wanted() -> None:
    wanted = "<= 10ms"

    assert ended(a_run(expect_recovery=wanted)).outcome is Outcome.MISSED
    assert ended(a_run(expect_recovery=wanted, mode="safety")).outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("wanted", "outcome"), [("<= 1", Outcome.MISSED), ("<= 2", Outcome.PASSED)]
)
def test_more_requests_that_met_a_fault_than_may_is_a_miss(wanted: str, outcome: Outcome) -> None:
    run = a_run(expect_met=wanted)
    for name in ("f2", "f3"):
        run.record(Kind.FAULT_LANDED, name, fault=0, evidence="counted at the provider's place")
        run.ask(name)

    assert ended(run).outcome is outcome


def test_a_slot_that_is_lost_at_rest_is_a_violation() -> None:
    run = a_run()
    run.record(Kind.GAUGE, name="live slots of a", value=3, expected=4)

    found = judge_journal(ended(run).journal.events)

    assert [violation.id for violation in found.violations] == ["I4"]


def test_a_page_that_says_ready_while_no_slot_is_live_is_a_violation() -> None:
    run = a_run()
    run.record(Kind.READY, deployment="a", ready=True, live=4, within=False)

    assert [v.id for v in judge_journal(ended(run).journal.events).violations] == ["I14"]


def test_a_deployment_that_is_unready_of_load_alone_is_a_violation() -> None:
    run = Run()
    run.phase("baseline")
    run.record(Kind.READY, deployment="a", ready=False, live=0)
    run.ask("b1")
    run.end()

    assert "I14" in {v.id for v in judge_journal(run.journal.events).violations}


def test_an_error_without_a_cause_is_a_violation() -> None:
    run = a_run()
    run.record(Kind.SUBMIT, "f3", tokens=2)
    run.record(Kind.END_READ, "f3", outcome="error", code="", cause="", status=500)

    assert [v.id for v in judge_journal(ended(run).journal.events).violations] == ["I12"]


def test_a_request_that_fails_after_the_heal_is_a_violation() -> None:
    run = ended(a_run())
    run.ask("r9", reads=0, outcome="error", must=True)

    assert "I22" in {v.id for v in judge_journal(run.journal.events).violations}


def test_a_journal_without_a_run_is_none() -> None:
    with pytest.raises(JournalError, match="which run"):
        judge_journal([Event(0.0, Kind.PHASE, value={"name": "check"})])


def test_the_order_of_two_writers_lines_does_not_matter() -> None:
    events = list(ended(a_run()).journal.events)

    assert judge_journal(events[::-1]).outcome is judge_journal(events).outcome


def test_the_verdict_from_the_file_is_that_of_the_events(tmp_path: Path) -> None:
    events = ended(a_run()).journal.events
    place = tmp_path / "journal.ndjson"
    place.write_bytes(b"".join(map(line_of, events)))

    assert as_json(judge_journal(read_journal(place))) == as_json(judge_journal(events))


def test_the_report_as_json_has_a_version_and_every_invariant() -> None:
    verdict = judge_journal(ended(a_run()).journal.events)

    report = msgspec.json.decode(as_json(verdict))

    assert report["schema"] == SCHEMA
    assert report["exit_code"] == 0
    assert report["conclusive"] is True
    assert set(report["invariants"]) == set(verdict.checked)
    assert report["faults"][0]["evidence"] == "state T in /proc"


def test_the_report_says_what_was_run_and_nothing_of_what_is_configured(tmp_path: Path) -> None:
    config = tmp_path / "gateway.yaml"
    config.write_text("deployments: {m: {runner: {kind: openai, api_key: sk-secret}}}")
    run = a_run(from_commit="0123abc", from_pykka=version("pykka"), from_config=hash_of(config))
    verdict = judge_journal(ended(run).journal.events)

    report = msgspec.json.decode(as_json(verdict))
    page = as_html(verdict, run.journal.events, "")

    assert report["provenance"] == {
        "commit": "0123abc",
        "pykka": version("pykka"),
        "config": hashlib.sha256(config.read_bytes()).hexdigest()[:16],
    }
    assert f"pykka {version('pykka')}" in page
    assert "sk-secret" not in page


def test_what_runs_here_is_told_with_its_versions() -> None:
    found = provenance()

    assert found["python"] == platform.python_version()
    assert {name: found[name] for name in ("pykka", "httpx", "torch")} == {
        name: version(name) for name in ("pykka", "httpx", "torch")
    }


@pytest.mark.skipif(not GIT, reason="without git nothing has a commit")
def test_a_checkout_that_a_program_is_merely_installed_in_is_not_its_own(tmp_path: Path) -> None:
    # as if git were asked within somebody's project: the file lies in it and isn't part of it
    subprocess.run([GIT, "init", "--quiet", tmp_path], check=True)
    installed = tmp_path / "provenance.py"
    installed.touch()

    before = commit_of(installed)
    subprocess.run([GIT, "-C", tmp_path, "add", installed], check=True)
    subprocess.run([GIT, "-C", tmp_path, *NOBODY, "commit", "--quiet", "-m", "x"], check=True)

    assert before == ""
    assert re.fullmatch("[0-9a-f]{12}", commit_of(installed))


def test_a_configuration_that_cannot_be_read_ends_a_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: the file can't be read: No such file"):
        hash_of(tmp_path / "none.yaml")


def test_the_report_for_ci_fails_where_the_verdict_does() -> None:
    suite = ET.fromstring(  # noqa: S314 - written right here
        as_junit(judge_journal(ended(a_run(lands=False)).journal.events))
    )

    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["0 worker crash"]
    assert suite.get("failures") == "1"


def test_the_page_needs_nothing_else_and_shows_what_violated(tmp_path: Path) -> None:
    run = a_run()
    run.ask("f2", reads=1)
    run.record(Kind.READY, deployment="<b>a</b>", ready=True, live=1)
    events = ended(run).journal.events

    page = as_html(judge_journal(events), events, "orchestrator chaos live x")

    drawing = page[page.index("<svg") : page.index("</svg>") + 6]
    assert ET.fromstring(drawing).tag == "svg"  # noqa: S314 - written right here
    assert "http" not in page
    assert "<b>a</b>" not in page
    assert "was done after 1 of 2 tokens" in page
    assert "orchestrator chaos live x" in page


def test_all_reports_are_written_beside_the_journal(tmp_path: Path) -> None:
    events = ended(a_run()).journal.events

    written = write_all(judge_journal(events), events, tmp_path)

    assert [path.name for path in written] == ["report.json", "junit.xml", "report.html"]


def test_the_tables_end_in_the_verdict_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    show(judge_journal(ended(a_run()).journal.events), console())

    assert "PASSED: x (live, liveness), 3 requests" in capsys.readouterr().out.splitlines()[-1]


def test_what_the_limits_of_time_were_looser_by_stands_in_every_report(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = a_run()
    run.record(Kind.PROBE, ready=True, status=200, late=0.1, took=0.023)
    verdict = judge_journal(ended(run).journal.events)

    show(verdict, console())

    assert "looser by 123 ms" in capsys.readouterr().out
    assert msgspec.json.decode(as_json(verdict))["slack_seconds"] == pytest.approx(0.123)
    assert "looser by 123 ms" in as_html(verdict, run.journal.events, "again")


def test_each_strike_of_a_provider_is_a_request_whoever_asked() -> None:
    run = Run(expect_met="<= 2")
    run.record(Kind.FAULT_PLANNED, fault=0, what="provider status", target="any", at=0.0)
    for number in range(5):
        run.ask(f"f{number}")
        if number < 2:  # the proxy before a real model can't tell the requests apart
            run.record(Kind.FAULT_LANDED, fault=0, evidence="counted at the provider's place")
    run.record(Kind.FAULT_HEALED, fault=0)

    (fault,) = judge_journal(run.journal.events).faults

    assert (fault.landed, fault.exposed) == (2, 2)
