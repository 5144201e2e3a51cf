"""`chaos list`: the catalogue."""

from enum import StrEnum
from typing import Annotated

import msgspec
import typer
from rich.table import Table

from orchestrator.chaos.command.app import app, mistakes_told, say
from orchestrator.chaos.invariants.verdict import CHECKS
from orchestrator.chaos.report.terminal import console
from orchestrator.chaos.scenario.catalogue import CATALOGUE, UNITS
from orchestrator.chaos.scenario.reading import shipped
from orchestrator.chaos.scenario.sections import Fault
from orchestrator.chaos.verdict.live import LIVE_CHECKS
from orchestrator.points import Point


class What(StrEnum):
    """What can be listed."""

    FAULTS = "faults"
    SCENARIOS = "scenarios"
    INVARIANTS = "invariants"
    POINTS = "points"


Rows = list[dict[str, str]]


@app.command("list")
def list_(
    what: Annotated[What, typer.Argument(help="What to list.")] = What.SCENARIOS,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Lists the faults, scenarios, invariants or points that there are.

    [bold]Examples[/bold]

      orchestrator chaos list faults

      orchestrator chaos list scenarios --json
    """
    with mistakes_told():
        rows = {
            What.FAULTS: _faults,
            What.SCENARIOS: _scenarios,
            What.INVARIANTS: _invariants,
            What.POINTS: _points,
        }[what]()
    if as_json:
        say(msgspec.json.encode(rows).decode())
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    console().print(table)


def _faults() -> Rows:
    return [
        {
            "target": kind.target,
            "fault": kind.name,
            "what": kind.about,
            "takes": ", ".join(map(_with_default, sorted(kind.takes))) or "-",
            "runs in": ", ".join(sorted(kind.worlds)),
            "landed if": kind.evidence,
            "undo": kind.undo,
            "stresses": ", ".join(kind.stresses),
        }
        for kind in CATALOGUE.values()
    ]


def _with_default(key: str) -> str:
    """A key of a fault, and what it is if it isn't told."""
    default = Fault.model_fields["for_" if key == "for" else key].default
    return key if default is None else f"{key} {default}{UNITS.get(key, '')}"


def _scenarios() -> Rows:
    return [
        {
            "scenario": scenario.name,
            "what": scenario.about,
            "mode": scenario.mode,
            "system": scenario.system.kind,
            "faults": ", ".join(dict.fromkeys(f"{f.target} {f.do}" for f in scenario.faults))
            or "none",
        }
        for scenario in shipped()
    ]


def _invariants() -> Rows:
    return [
        {
            "invariant": name,
            "what": ((CHECKS.get(name) or LIVE_CHECKS[name]).__doc__ or "").split("\n")[0],
            "simulated": "yes" if name in CHECKS else "-",
            "live": "yes" if name in LIVE_CHECKS else "-",
        }
        for name in dict.fromkeys([*CHECKS, *LIVE_CHECKS])
    ]


def _points() -> Rows:
    return [{"point": point.value} for point in Point]
