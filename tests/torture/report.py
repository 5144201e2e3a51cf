"""The figures of a run of rounds, as a table and as JSON."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from rich.table import Table

from tests.torture.outcome import Outcome

COLUMNS = (
    "fault",
    "rounds",
    "requests",
    "finished / interrupted / retried / resumed",
    "mismatches",
    "noticed ms median / p99 / max",
    "process ended ms median / max",
    "timer late ms median / max",
    "back after s median / max",
    "violations",
)


def table(outcomes: Sequence[Outcome]) -> Table:
    """A row for each fault."""
    made = Table(*COLUMNS, title="model host broken under eight streams")
    for fault in dict.fromkeys(outcome.fault for outcome in outcomes):
        made.add_row(*_row(fault, [o for o in outcomes if o.fault == fault]))
    return made


def _row(fault: str, outcomes: Sequence[Outcome]) -> list[str]:
    noticed = [1000 * o.noticed_after for o in outcomes]
    died = [1000 * o.died_after for o in outcomes]
    late = [1000 * o.lateness for o in outcomes]
    back = [o.back_after for o in outcomes]
    streams = [
        sum(values)
        for values in zip(
            *((o.finished, o.interrupted, o.retried, o.resumed) for o in outcomes), strict=True
        )
    ]
    hang = fault in {"stop", "wedge"}
    return [
        fault,
        str(len(outcomes)),
        str(sum(o.finished + o.interrupted for o in outcomes)),
        " / ".join(map(str, streams)),
        str(sum(o.mismatches for o in outcomes)),
        f"{median(noticed):.1f} / {percentile(noticed, 0.99):.1f} / {max(noticed):.1f}"
        + (" past the lease" if hang else ""),
        "-" if hang else f"{median(died):.1f} / {max(died):.1f}",
        f"{median(late):.1f} / {max(late):.1f}",
        f"{median(back):.1f} / {max(back):.1f}",
        str(sum(len(o.violations) for o in outcomes)),
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values doesn't exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def write(path: Path, outcomes: Sequence[Outcome]) -> None:
    """All outcomes as JSON, an object a round; times in seconds."""
    path.write_text(
        json.dumps([asdict(outcome) for outcome in outcomes], indent=1), encoding="utf-8"
    )
