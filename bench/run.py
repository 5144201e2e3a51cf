"""`make bench`: ours, the provider itself and the installed peers, side by side in one run.

Gateways have core 0, provider and client share core 1. In every round each target is measured once
per cell, one after another, so that ratios compare neighbours in time; the table shows medians.
"""

import argparse
import datetime as dt
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.cells import CELLS, Cell, Sample, measure
from bench.in_process import in_process_table
from bench.machine import GATEWAY_CORE, HARNESS_CORE, HERE, alone, build, end, resident_mb, spawn
from bench.report import Results, plot, table, write_csv
from bench.targets import UPSTREAM_PORT, Target, all_targets, not_ready

READY_SECONDS = 90.0


def main() -> None:
    parser = argparse.ArgumentParser(description="Gateways side by side.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of one window")
    parser.add_argument("--only", default="", help="targets, comma-separated; ours is always there")
    parser.add_argument("--cells", default="", help="numbers of cells, from 0, comma-separated")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    given = parser.parse_args()
    cells = [CELLS[int(number)] for number in given.cells.split(",")] if given.cells else CELLS
    wanted = {*given.only.split(","), "orchestrator"} if given.only else None
    targets = [one for one in all_targets() if wanted is None or one.name in wanted]
    with alone():
        results, memory, versions = run(targets, cells, given.rounds, given.seconds)
        inside = in_process_table() if not given.cells else ""
    names = [target.name for target in targets if target.name in memory]
    measured = (
        f"Measured {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M} UTC with "
        f"`python -m bench.run {' '.join(sys.argv[1:])}`: medians of {given.rounds} rounds "
        f"of {given.seconds:g} s; {platform.machine()}, Python {platform.python_version()}."
    )
    text = "\n".join(
        [
            measured,
            "",
            table(cells, names, results),
            "Resident memory, MB: " + ", ".join(f"{n} {memory[n]:.0f}" for n in names),
            "",
            "Versions: " + ", ".join(f"{n} {v}" for n, v in versions.items() if v),
            "",
            inside,
        ]
    )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "table.md").write_text(text, encoding="utf-8")
    (given.out / "cpu_per_token.svg").write_text(plot(cells, names, results), encoding="utf-8")
    write_csv(given.out / "samples.csv", results)
    print(text)


def run(
    targets: Sequence[Target], cells: Sequence[Cell], rounds: int, seconds: float
) -> tuple[Results, dict[str, float], dict[str, str]]:
    """Starts everything, measures, ends everything."""
    loadgen, upstream_program = build("loadgen"), build("upstream")
    upstream = spawn("upstream", f"{upstream_program} {UPSTREAM_PORT}", HARNESS_CORE)
    running = {"direct": upstream}
    results: dict[tuple[str, str], list[Sample]] = {}
    try:
        for target in targets:
            if target.command:
                running[target.name] = spawn(
                    target.name, target.command, GATEWAY_CORE, env=target.env
                )
        ready: list[Target] = []
        for target in targets:
            why = not_ready(target, READY_SECONDS)
            if why is None:
                ready.append(target)
            else:
                print(f"{target.name} is left out: {why}", file=sys.stderr)
        for number in range(rounds):
            for cell in cells:
                for target in ready if number % 2 == 0 else ready[::-1]:
                    sample = measure(
                        target,
                        running[target.name].pid,
                        cell,
                        loadgen=loadgen,
                        upstream_pid=upstream.pid,
                        seconds=seconds,
                    )
                    results.setdefault((cell.name, target.name), []).append(sample)
        memory = {target.name: resident_mb(running[target.name].pid) for target in ready}
        versions = {target.name: target.version for target in ready}
        return results, memory, versions
    finally:
        for process in reversed(running.values()):
            end(process)


if __name__ == "__main__":
    main()
