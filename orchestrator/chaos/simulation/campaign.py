"""Many seeds, one after the other or on several cores, and what came of them in a few lines."""

import math
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from orchestrator.chaos.journal import Event, Kind
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.simulation.mutants.catalogue import MUTANTS
from orchestrator.chaos.simulation.mutants.planting import Mutant, planted
from orchestrator.chaos.simulation.plan import Mode, Plan
from orchestrator.chaos.simulation.staging import stage
from orchestrator.chaos.simulation.swarm import draw
from orchestrator.chaos.simulation.trial import Report, run_plan
from orchestrator.chaos.verdict.figures import figures_of, requests_of
from orchestrator.chaos.verdict.steady import bounds_of, missed, together

SHOWN_VIOLATIONS = 5
CHUNK = 8
"""Seeds that a process takes at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a campaign keeps of one seed."""

    seed: int
    requests: int
    faults: int
    """Faults that took effect."""
    seconds: float
    """Virtual."""
    cpu_seconds: float
    """Of one core, for one run; the neighbours' load is not in it."""
    trace: str
    findings: Sequence[str]
    """What didn't hold, a line each; empty if the seed passed."""
    missed: Sequence[str] = ()
    """Expectations of its scenario that it didn't keep, a line each."""
    deterministic: bool = True
    """False if a second run left another trace."""


@dataclass(slots=True)
class Tally:
    """Sums over the seeds of a campaign."""

    seeds: int = 0
    requests: int = 0
    faults: int = 0
    virtual_seconds: float = 0.0
    cpu_seconds: float = 0.0
    real_seconds: float = 0.0
    failed: list[Outcome] = field(default_factory=list[Outcome])
    missed: list[Outcome] = field(default_factory=list[Outcome])
    """Seeds that missed an expectation."""
    diverged: list[int] = field(default_factory=list[int])
    """Seeds whose second run left another trace."""

    def add(self, outcome: Outcome) -> None:
        """Counts a seed."""
        self.seeds += 1
        self.requests += outcome.requests
        self.faults += outcome.faults
        self.virtual_seconds += outcome.seconds
        self.cpu_seconds += outcome.cpu_seconds
        if outcome.findings:
            self.failed.append(outcome)
        if outcome.missed:
            self.missed.append(outcome)
        if not outcome.deterministic:
            self.diverged.append(outcome.seed)

    @property
    def rate(self) -> float:
        """Simulated requests per second of one core."""
        return self.requests / self.cpu_seconds if self.cpu_seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a campaign runs its seeds."""

    mode: Mode = "safety"
    check_determinism: bool = False
    """Whether every seed runs twice and must leave the same trace."""
    scenario: Scenario | None = None
    """What every seed plays; None draws a plan of its own from each."""
    grid: float | None = None
    """Seconds onto whose multiples timers are put off; None leaves it to the seed."""

    def plan(self, seed: int) -> Plan:
        """What that seed runs."""
        scenario = self.scenario
        plan = draw(seed, self.mode) if scenario is None else stage(scenario, seed)
        return plan if self.grid is None else msgspec.structs.replace(plan, grid=self.grid)


def findings_of(report: Report) -> list[str]:
    """What didn't hold in a run, a line each, the most telling first."""
    lines: list[str] = []
    if report.failure is not None:
        lines.append(f"{type(report.failure).__name__}: {report.failure}")
        if report.failure.__cause__ is not None:
            lines.append(f"  because of {report.failure.__cause__!r}")
    lines += [
        f"{violation.id} {violation.request or '-'}: {violation.text}"
        for violation in report.violations[:SHOWN_VIOLATIONS]
    ]
    more = len(report.violations) - SHOWN_VIOLATIONS
    return [*lines, f"... and {more} more"] if more > 0 else lines


def missed_of(report: Report, scenario: Scenario | None) -> list[str]:
    """The expectations of a scenario that a run doesn't keep, a line each.

    How long a recovery takes is judged live: the simulated world has no moment at which a person
    would say that all is as before.
    """
    if scenario is None or scenario.mode != "liveness":
        return []
    whole = together(figures_of(requests_of(report.events)).values())
    run = Event(0.0, Kind.RUN, value={**bounds_of(scenario)})
    return missed(run, whole, "expect")


def run_seed(seed: int, settings: Settings) -> Outcome:
    """Runs a seed, twice if its determinism is to be checked."""
    began = time.process_time()
    plan = settings.plan(seed)
    report = run_plan(plan)
    cpu_seconds = time.process_time() - began
    again = run_plan(plan) if settings.check_determinism else report
    return Outcome(
        seed=seed,
        requests=report.requests,
        faults=sum(event.kind is Kind.FAULT_LANDED for event in report.events),
        seconds=report.seconds,
        cpu_seconds=cpu_seconds,
        trace=report.trace,
        findings=findings_of(report),
        missed=missed_of(report, settings.scenario),
        deterministic=again.trace == report.trace,
    )


def run_seeds(
    seeds: Sequence[int],
    settings: Settings,
    *,
    jobs: int = 1,
    time_limit: float = math.inf,
    on_progress: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """Runs all seeds, or as many as there is time for, and sums up.

    Args:
        seeds: Which.
        settings: How.
        jobs: Processes; each has its own loop and its own world.
        time_limit: Seconds after which no further seed is counted.
        on_progress: Told after every seed.
    """
    tally = Tally()
    began = time.perf_counter()
    for outcome in _outcomes(seeds, settings, jobs):
        tally.add(outcome)
        tally.real_seconds = time.perf_counter() - began
        on_progress(tally)
        if tally.real_seconds >= time_limit:
            break
    return tally


def _outcomes(seeds: Sequence[int], settings: Settings, jobs: int) -> Iterator[Outcome]:
    tasks = [(seed, settings) for seed in seeds]
    if jobs == 1:
        yield from map(_run_task, tasks)
        return
    # spawn: a fork would take the parent's loops and registries with it
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_run_task, tasks, chunksize=CHUNK)


def _run_task(task: tuple[int, Settings]) -> Outcome:
    return run_seed(*task)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """How a planted bug was found, or that it wasn't."""

    name: str
    runs: int
    seconds: float
    """Of one core."""
    found_by: Sequence[str]
    """Ids of the checks, or the class of what stopped the run; empty if it survived."""


def hunt_all(mutants: Sequence[Mutant], seeds: range, *, jobs: int = 1) -> Iterator[Hunt]:
    """Hunts each planted bug, on several cores if wanted, and tells them in their order."""
    tasks = [(number, seeds) for number, known in enumerate(MUTANTS) if known in mutants]
    if jobs == 1:
        yield from map(_hunt_task, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(_hunt_task, tasks)


def _hunt_task(task: tuple[int, range]) -> Hunt:
    number, seeds = task  # a mutant's classes needn't travel: both processes have the catalogue
    return hunt(MUTANTS[number], seeds)


def hunt(mutant: Mutant, seeds: Iterable[int]) -> Hunt:
    """Runs seeds with a planted bug until one shows it."""
    began = time.process_time()
    runs = 0
    with planted(mutant):
        for seed in seeds:
            runs += 1
            report = run_plan(draw(seed))
            if not report.passed:
                found = {violation.id for violation in report.violations}
                if report.failure is not None:
                    found = {type(report.failure).__name__, *found}
                seconds = time.process_time() - began
                return Hunt(name=mutant.name, runs=runs, seconds=seconds, found_by=sorted(found))
    return Hunt(name=mutant.name, runs=runs, seconds=time.process_time() - began, found_by=())
