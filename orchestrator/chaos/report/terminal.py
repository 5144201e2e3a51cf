"""The verdict in a terminal: phases, faults, invariants, then one line."""

from rich.console import Console
from rich.table import Table

from orchestrator.chaos.verdict.faults import FaultRecord
from orchestrator.chaos.verdict.figures import Figures
from orchestrator.chaos.verdict.judgement import Outcome, Verdict

SHOWN = 5
FILE_WIDTH = 140


def console() -> Console:
    """Standard output, as wide as a terminal or wide enough for a file."""
    found = Console(highlight=False, emoji=False)
    if not found.is_terminal:
        found.width = FILE_WIDTH
    return found


def show(verdict: Verdict, out: Console) -> None:
    """Prints all of a verdict."""
    out.print(_phases(verdict))
    if verdict.faults:
        out.print(_faults(verdict))
    out.print(_invariants(verdict))
    for violation in verdict.violations[:SHOWN]:
        out.print(f"  {violation.id} {violation.request or '-'}: {violation.text}", markup=False)
    more = len(verdict.violations) - SHOWN
    if more > 0:
        out.print(f"  ... and {more} more")
    for line in (*verdict.left, *verdict.doubts, *verdict.missed):
        out.print(f"  {line}", markup=False)
    if verdict.slack:
        out.print(f"  {granted(verdict)}", markup=False)
    out.print(headline(verdict), markup=False, style=_style(verdict))


def headline(verdict: Verdict) -> str:
    """The verdict in one line."""
    requests = sum(figures.requests for figures in verdict.phases.values())
    landed = sum(fault.landed > 0 for fault in verdict.faults)
    return (
        f"{verdict.in_words.upper()}: {verdict.scenario} ({verdict.world}, {verdict.mode}),"
        f" {requests} requests in {verdict.seconds:.1f} s, {landed} of {len(verdict.faults)} faults"
        f" landed, {len(verdict.violations)} violations"
    )


def granted(verdict: Verdict) -> str:
    """How much looser the limits of time were than the invariants say, and why."""
    return (
        f"limits of time (I3, I8, I14) were looser by {milliseconds(verdict.slack)} ms, by which"
        " the health page was late at the worst: the machine was that busy"
    )


def _style(verdict: Verdict) -> str:
    return "bold green" if verdict.outcome is Outcome.PASSED else "bold red"


def milliseconds(seconds: float | None) -> str:
    """A time for a table; a dash if there is none."""
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def _phases(verdict: Verdict) -> Table:
    table = Table(
        *("phase", "requests", "done", "errors", "cancelled", "rejected", "attempts/request"),
        *("ttft p50 ms", "p95", "p99", "latest after deadline"),
        title="requests",
    )
    for name, figures in verdict.phases.items():
        table.add_row(*_phase_cells(name, figures))
    return table


def _phase_cells(name: str, figures: Figures) -> list[str]:
    errors = ", ".join(f"{code} {count}" for code, count in figures.errors.most_common())
    return [
        name,
        str(figures.requests),
        str(figures.done),
        errors or "-",
        str(figures.canceled),
        str(figures.rejected),
        f"{figures.attempts / figures.requests:.2f}" if figures.requests else "-",
        *(milliseconds(figures.ttft(share)) for share in (0.5, 0.95, 0.99)),
        milliseconds(figures.lateness) if figures.lateness else "-",
    ]


def _faults(verdict: Verdict) -> Table:
    table = Table(
        *("fault", "planned s", "landed", "at s", "met", "detected ms", "recovered ms", "evidence"),
        title="faults",
    )
    for fault in verdict.faults:
        table.add_row(*_fault_cells(fault))
    return table


def _fault_cells(fault: FaultRecord) -> list[str]:
    return [
        f"{fault.number} {fault.what}",
        f"{fault.planned_at:g}",
        str(fault.landed) if fault.landed else "NO",
        "-" if fault.landed_at is None else f"{fault.landed_at:.2f}",
        str(fault.exposed),
        milliseconds(fault.detected_after),
        milliseconds(fault.recovered_after),
        fault.evidence or "-",
    ]


def _invariants(verdict: Verdict) -> Table:
    table = Table("invariant", "checked", "violations", "first", title="invariants")
    for name, checked in verdict.checked.items():
        mine = [violation for violation in verdict.violations if violation.id == name]
        first = f"{mine[0].request or '-'}: {mine[0].text}" if mine else ""
        table.add_row(name, str(checked), str(len(mine)) if mine else "-", first)
    return table
