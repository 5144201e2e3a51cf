"""The table, the CSV and the plot of one run."""

import csv
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from html import escape
from pathlib import Path

from bench.cells import Cell, Sample

Results = Mapping[tuple[str, str], Sequence[Sample]]
"""(cell, target) -> one sample a round."""
COLUMNS = (
    ("requests_per_second", "req/s", 0),
    ("tokens_per_second", "tok/s", 0),
    ("cpu_us_per_request", "CPU us/req", 0),
    ("cpu_us_per_token", "CPU us/tok", 1),
    ("ttft_p50_ms", "TTFT p50 ms", 2),
    ("ttft_p99_ms", "p99 ms", 1),
    ("gateway_cpu", "its core", 2),
    ("harness_cpu", "harness core", 2),
    ("errors", "errors", 0),
    ("short", "short", 0),
)


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    names = [field.name for field in fields(Sample)]
    return {name: statistics.median(getattr(sample, name) for sample in samples) for name in names}


def table(cells: Sequence[Cell], targets: Sequence[str], results: Results) -> str:
    """Markdown: one table a cell, ratios of req/s and of CPU against ours."""
    lines: list[str] = []
    for cell in cells:
        lines += [f"### {cell.name}", ""]
        titles = ["target", *(title for _, title, _ in COLUMNS), "ours/it, req/s", "it/ours, CPU"]
        lines += ["| " + " | ".join(titles) + " |", "|---|" + "--:|" * (len(titles) - 1)]
        ours = medians(results[cell.name, "orchestrator"])
        for target in targets:
            row = medians(results[cell.name, target])
            cells_of_row = [f"{row[name]:.{digits}f}" for name, _, digits in COLUMNS]
            speed = ours["requests_per_second"] / max(row["requests_per_second"], 1e-9)
            cost = row["cpu_us_per_token"] / max(ours["cpu_us_per_token"], 1e-9)
            lines.append(
                "| " + " | ".join([target, *cells_of_row, f"{speed:.2f}", f"{cost:.2f}"]) + " |"
            )
        lines.append("")
    return "\n".join(lines)


def write_csv(path: Path, results: Results) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        names = [field.name for field in fields(Sample)]
        writer = csv.DictWriter(file, ["cell", "target", "round", *names])
        writer.writeheader()
        for (cell, target), samples in results.items():
            for number, sample in enumerate(samples):
                row = {"cell": cell, "target": target, "round": number}
                writer.writerow(row | asdict(sample))


def plot(cells: Sequence[Cell], targets: Sequence[str], results: Results) -> str:
    """SVG: CPU per token on a logarithmic scale, one group of bars a cell."""
    bar, left, width = 18, 150, 560
    parts: list[str] = []
    y = 20
    for cell in cells:
        parts.append(f'<text x="0" y="{y + 12}" font-weight="bold">{escape(cell.name)}</text>')
        y += bar
        for target in targets:
            value = medians(results[cell.name, target])["cpu_us_per_token"]
            length = _log_length(value, width)
            fill = "#c33" if target == "orchestrator" else "#89a"
            parts += [
                f'<text x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(target)}</text>',
                f'<rect x="{left}" y="{y + 2}" width="{length:.0f}" height="13" fill="{fill}"/>',
                f'<text x="{left + length + 6:.0f}" y="{y + 12}">{value:,.1f} us</text>',
            ]
            y += bar
        y += 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + width + 110}" height="{y}" '
        f'font-family="sans-serif" font-size="12"><title>CPU per token (log scale)</title>'
        + "".join(parts)
        + "</svg>\n"
    )


def _log_length(value: float, width: int) -> float:
    """1 us is a bar of no length, 100 ms one of full width."""
    return min(1.0, math.log10(max(1.0, value)) / 5) * width
