"""`orchestrator chaos sim`, `replay` and `selftest`: the simulation from the shell.

Exit codes: 0 all held, 1 an invariant was violated or a planted bug survived, 2 the command line is
wrong, 4 no fault took effect, so nothing was proven, 6 a seed left two traces, 7 an expectation
of the scenario was missed, 130 interrupted.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import msgspec

from orchestrator.chaos.journal import write_journal
from orchestrator.chaos.scenario.reading import find_scenario
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.simulation.campaign import (
    Settings,
    Tally,
    findings_of,
    hunt_all,
    run_seeds,
)
from orchestrator.chaos.simulation.mutants.catalogue import MUTANTS
from orchestrator.chaos.simulation.plan import Plan, plan_from_json
from orchestrator.chaos.simulation.summary import (
    PASSED,
    VIOLATED,
    as_json,
    exit_code,
    lines_of,
)
from orchestrator.chaos.simulation.trial import run_plan
from orchestrator.errors import ConfigError

INTERRUPTED = 130
PROGRESS_SECONDS = 2.0
COMMAND = "python -m orchestrator.chaos.simulation"


def main(arguments: list[str] | None = None) -> int:
    """Does what the command line says and returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.selftest:
            return _selftest(options)
        if options.replay is not None or options.plan is not None:
            return _replay(options)
        return _campaign(options)
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=COMMAND, description="Run the real system in virtual time, with faults from a seed."
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--seeds", type=_seeds, default=range(200), metavar="A:B", help="seeds A to B - 1"
    )
    what.add_argument("--replay", type=int, metavar="SEED", help="run one seed and tell all of it")
    what.add_argument("--plan", type=_plan, metavar="FILE", help="run a plan, a JSON file")
    what.add_argument("--selftest", action="store_true", help="run until each planted bug is found")
    parser.add_argument("--scenario", type=_scenario, metavar="NAME", help="what each seed plays")
    parser.add_argument("--mode", choices=("safety", "liveness"), default="safety")
    parser.add_argument(
        "--grid", type=_grid, metavar="MS", help="timers meet on its multiples; else the seed says"
    )
    parser.add_argument(
        "--time-limit", type=_seconds, default=math.inf, metavar="S", help="no further seed then"
    )
    parser.add_argument("--jobs", type=_jobs, default=1, help="processes")
    parser.add_argument("--limit", type=_jobs, default=200, help="seeds per planted bug")
    parser.add_argument("--only", default="", metavar="TEXT", help="planted bugs with that text")
    parser.add_argument(
        "--check-determinism", action="store_true", help="run every seed twice, compare the traces"
    )
    parser.add_argument("--json", action="store_true", help="a campaign as one line of JSON")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="where a replay's journal goes")
    parser.add_argument("--show-plan", action="store_true", help="print a replay's plan as JSON")
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    seeds = range(int(first), int(last)) if last else range(int(first))
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} holds no seed")
    return seeds


def _grid(text: str) -> float:
    """Milliseconds as seconds."""
    return _seconds(text) / 1000


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError("a number from 0 on")
    return number


def _jobs(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return int(text)


def _scenario(text: str) -> Scenario:
    try:
        return find_scenario(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(error.message) from error


def _plan(text: str) -> Plan:
    try:
        return plan_from_json(Path(text).read_text(encoding="utf-8"))
    except (OSError, msgspec.DecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from error


def _campaign(options: argparse.Namespace) -> int:
    settings = Settings(
        mode=options.mode,
        check_determinism=options.check_determinism,
        scenario=options.scenario,
        grid=options.grid,
    )
    seeds: range = options.seeds
    tally = run_seeds(
        seeds,
        settings,
        jobs=options.jobs,
        time_limit=options.time_limit,
        on_progress=_Progress(len(seeds)),
    )
    if tally.seeds < len(seeds):
        sys.stderr.write(f"time is up: {tally.seeds} of {len(seeds)} seeds were run\n")
    if options.json:
        _say(as_json(tally, settings))
    else:
        for line in lines_of(tally, settings):
            _say(line)
    return exit_code(tally, settings)


def _replay(options: argparse.Namespace) -> int:
    settings = Settings(mode=options.mode, scenario=options.scenario, grid=options.grid)
    plan: Plan = options.plan if options.plan is not None else settings.plan(options.replay)
    if options.show_plan:
        _say(plan.as_json())
    report = run_plan(plan)
    if options.trace is not None:
        options.trace.unlink(missing_ok=True)
        write_journal(options.trace, report.events)
    _say(
        f"seed {plan.seed}: {report.requests} requests, {len(report.events)} events,"
        f" {report.seconds:.2f} s simulated, trace {report.trace}"
    )
    for line in findings_of(report):
        _say(line)
    concerned = {violation.request for violation in report.violations[:1]}
    for event in report.events:
        if event.request is not None and event.request in concerned:
            _say(f"  {event.t:10.6f} {event.kind:15} {event.worker or '':8} {event.value}")
    return PASSED if report.passed else VIOLATED


def _selftest(options: argparse.Namespace) -> int:
    survivors = 0
    began = time.perf_counter()
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name]
    _say(f"{'planted bug':42} {'runs':>4} {'s':>6}  found by")
    for found in hunt_all(mutants, range(options.limit), jobs=options.jobs):
        told = ", ".join(found.found_by) if found.found_by else "SURVIVED"
        survivors += not found.found_by
        _say(f"{found.name:42} {found.runs:4} {found.seconds:6.1f}  {told}")
    seconds = time.perf_counter() - began
    _say(f"{len(mutants) - survivors} of {len(mutants)} found in {seconds:.1f} s")
    return VIOLATED if survivors or not mutants else PASSED


class _Progress:
    def __init__(self, seeds: int) -> None:
        self._seeds = seeds
        self._told_at = 0.0
        self._failed = 0

    def __call__(self, tally: Tally) -> None:
        for outcome in tally.failed[self._failed :]:  # at once: the rest may take an hour
            sys.stderr.write(f"seed {outcome.seed} failed: {outcome.findings[0]}\n")
        self._failed = len(tally.failed)
        if tally.real_seconds < self._told_at + PROGRESS_SECONDS:
            return
        self._told_at = tally.real_seconds
        sys.stderr.write(
            f"{tally.seeds} of {self._seeds} seeds, {tally.rate:.0f} requests/s per core,"
            f" {self._failed} failed\n"
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
