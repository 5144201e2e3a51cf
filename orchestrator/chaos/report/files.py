"""Writes a verdict beside its journal."""

from collections.abc import Sequence
from pathlib import Path

from orchestrator.chaos.journal import Event
from orchestrator.chaos.report.document import as_json, as_junit
from orchestrator.chaos.report.page import as_html
from orchestrator.chaos.verdict.judgement import Verdict


def replay_line(verdict: Verdict) -> str:
    """The command that runs it again."""
    if verdict.world == "live":
        return verdict.again or f"orchestrator chaos live {verdict.scenario}"
    if verdict.scenario.startswith("seed "):
        return f"orchestrator chaos replay {verdict.seed} --mode {verdict.mode}"
    return f"orchestrator chaos sim {verdict.scenario} --seeds {verdict.seed}:{verdict.seed + 1}"


def write_all(verdict: Verdict, events: Sequence[Event], folder: Path) -> list[Path]:
    """Writes `report.json`, `junit.xml` and `report.html`, and returns where they are."""
    written = {
        "report.json": as_json(verdict),
        "junit.xml": as_junit(verdict),
        "report.html": as_html(verdict, events, replay_line(verdict)).encode(),
    }
    for name, content in written.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in written]
