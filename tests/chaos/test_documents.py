"""What the pages about chaos say is so."""

import re
from pathlib import Path

from typer.testing import CliRunner

from orchestrator.chaos.attendant.bugs import LIVE_BUGS
from orchestrator.chaos.command.commands import app
from orchestrator.chaos.journal import Event, Kind
from orchestrator.chaos.report.document import as_plain
from orchestrator.chaos.scenario.reading import parse_scenario, shelf
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.verdict.judgement import Outcome, judge_journal
from orchestrator.reading.text import section_of

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = [DOCS / "chaos.md", DOCS / "scenarios.md"]


def text() -> str:
    return "".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_the_example_scenario_of_the_page_is_one() -> None:
    yaml = re.findall(r"```yaml\n(version.*?)```", text(), re.DOTALL)

    assert parse_scenario(yaml[0]).faults[1].after_requests == 60


def test_every_key_of_a_scenario_stands_on_the_page() -> None:
    page = PAGES[1].read_text(encoding="utf-8")

    assert [key for key in Scenario.model_fields if not re.search(rf"\b{key}\b", page)] == []


def test_every_command_on_the_pages_has_help_with_examples() -> None:
    named = set(re.findall(r"^orchestrator chaos ([a-z]+)", text(), re.MULTILINE))

    assert named == {"live", "attack", "sim", "replay", "shrink", "selftest", "stub", "proxy"} | {
        *("list", "check", "report")
    }
    for command in sorted(named):
        shown = CliRunner().invoke(app, [command, "--help"])
        assert shown.exit_code == 0
        assert f"orchestrator chaos {command}" in shown.output


def test_every_scenario_and_bug_on_the_pages_exists() -> None:
    named = set(re.findall(r"chaos (?:live|sim) ([a-z][a-z0-9-]+)", text())) - {"mine"}
    known = {path.stem for path in shelf().glob("*.yaml")}

    assert named - known == set()
    assert [bug for bug in LIVE_BUGS if bug not in text()] == []


def test_every_key_of_a_report_stands_on_the_page() -> None:
    page = PAGES[0].read_text(encoding="utf-8")
    run = Event(0.0, Kind.RUN, value={"seed": 1, "world": "sim", "mode": "safety"})
    asked = Event(1.0, Kind.SUBMIT, request="r", value={})

    report = as_plain(judge_journal([run, asked]))

    phases = section_of(report["phases"])
    keys = [*report, *section_of(next(iter(phases.values())))]
    assert [key for key in keys if f"`{key}`" not in page] == []


def test_every_exit_code_stands_on_the_page() -> None:
    page = PAGES[0].read_text(encoding="utf-8")

    assert [int(code) for code in Outcome if not re.search(rf"\b{int(code)}\b", page)] == []
