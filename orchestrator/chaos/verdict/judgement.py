"""The verdict of a journal: one outcome with its exit code, and everything that led to it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from orchestrator.chaos.invariants.history import History, Violation
from orchestrator.chaos.invariants.verdict import CHECKS
from orchestrator.chaos.journal import Event, JournalError, Kind
from orchestrator.chaos.provenance import FROM
from orchestrator.chaos.scenario.values import read_bound
from orchestrator.chaos.verdict.faults import FaultRecord, faults_of
from orchestrator.chaos.verdict.figures import (
    Figures,
    Request,
    figures_of,
    phases_of,
    requests_of,
)
from orchestrator.chaos.verdict.live import LIVE_CHECKS, residue, slack
from orchestrator.chaos.verdict.steady import BASELINE, missed, steady_state, together

TOO_BUSY = 0.5
"""Share of the time in which a run wanted a core and had none, from which on it is no measure."""


class Outcome(IntEnum):
    """What a run has shown; the number is the exit code."""

    PASSED = 0
    VIOLATED = 1
    WRONG_USAGE = 2
    BASELINE_NOT_MET = 3
    INCONCLUSIVE = 4
    RESIDUE = 5
    NOT_DETERMINISTIC = 6
    MISSED = 7
    INTERNAL_ERROR = 70
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a journal proves."""

    outcome: Outcome
    scenario: str
    world: str
    mode: str
    seed: int
    again: str
    """The command that ran it; empty of a simulated one."""
    planted: str
    provenance: Mapping[str, str]
    """What was run: versions, the commit, the configuration's hash; empty of a simulated run."""
    checked: Mapping[str, int]
    """Subjects that each invariant was tried on, by its id."""
    violations: Sequence[Violation]
    faults: Sequence[FaultRecord]
    phases: Mapping[str, Figures]
    requests: Sequence[Request]
    missed: Sequence[str] = ()
    """Expectations that weren't kept, a line each."""
    doubts: Sequence[str] = ()
    """Why nothing is proven, a line each."""
    left: Sequence[str] = ()
    """What the run left on the machine."""
    seconds: float = 0.0
    recovery: float | None = None
    """Seconds from the end of the last fault until all was as before."""
    slack: float = 0.0
    """Seconds that a live run's limits of time were granted beyond what the invariants say."""

    @property
    def in_words(self) -> str:
        """One line for people."""
        return self.outcome.name.lower().replace("_", " ")


@dataclass(slots=True)
class _Case:
    """What the outcome is decided by."""

    violations: list[Violation]
    baseline: list[str] = field(default_factory=list[str])
    doubts: list[str] = field(default_factory=list[str])
    missed: list[str] = field(default_factory=list[str])
    left: list[str] = field(default_factory=list[str])

    def grant(self, strain: float) -> None:
        """Makes doubts of what came too late where there was no core to do it in time.

        Args:
            strain: See `Strain.share`.
        """
        late = [found for found in self.violations if found.by_time]
        if strain <= TOO_BUSY or not (self.missed or late):
            return
        self.violations = [found for found in self.violations if not found.by_time]
        self.doubts.append(
            f"the run waited for a core in {strain:.0%} of the time in which it wanted one: the"
            " machine is too busy to judge what was expected, and what came late"
        )
        self.doubts += [f"{found.id}: {found.text}" for found in late]

    def outcome(self) -> Outcome:
        # residue outranks all: the machine is left dirty; a violation is proof whatever else is
        for lines, outcome in (
            (self.left, Outcome.RESIDUE),
            (self.violations, Outcome.VIOLATED),
            (self.baseline, Outcome.BASELINE_NOT_MET),
            (self.doubts, Outcome.INCONCLUSIVE),
            (self.missed, Outcome.MISSED),
        ):
            if lines:
                return outcome
        return Outcome.PASSED


def judge_journal(events: Sequence[Event]) -> Verdict:
    """Judges a run from its journal.

    Args:
        events: All of it; lines of several writers may be out of order.

    Raises:
        JournalError: It isn't the journal of a run, or an event lacks what its kind needs.
    """
    ordered = sorted(events, key=lambda event: event.t)
    run = next((event for event in ordered if event.kind is Kind.RUN), None)
    if run is None:
        raise JournalError("the journal doesn't say which run it is of")
    world = run.text("world", "sim")
    history = History(ordered)
    checks = LIVE_CHECKS if world == "live" else CHECKS
    faults, requests = faults_of(ordered), requests_of(ordered)
    phases = figures_of(requests)
    case = _Case([violation for check in checks.values() for violation in check(history)])
    recovery = _recovery(ordered)
    if world == "live":
        case.left = residue(history)
        case.baseline = steady_state(ordered)
    if not case.baseline:
        case.doubts = _doubts(ordered, run, faults, world=world)
        case.missed = _missed(run, phases, recovery, faults)
    case.grant(_strain(ordered))
    return Verdict(
        outcome=case.outcome(),
        scenario=run.text("scenario", f"seed {run.number('seed'):g}"),
        world=world,
        mode=run.text("mode", "safety"),
        seed=int(run.number("seed")),
        again=run.text("again", ""),
        planted=run.text("planted", ""),
        provenance={
            name.removeprefix(FROM): str(told)
            for name, told in run.value.items()
            if name.startswith(FROM)
        },
        checked={name: _subjects(name, history) for name in checks},
        violations=case.violations,
        faults=faults,
        phases=phases,
        requests=requests,
        missed=case.missed or case.baseline,
        doubts=case.doubts,
        left=case.left,
        seconds=ordered[-1].t,
        recovery=recovery,
        slack=slack(history) if world == "live" else 0.0,
    )


def _recovery(events: Sequence[Event]) -> float | None:
    begun = {name: at for at, name in phases_of(events)}
    if "heal" not in begun or "recovery" not in begun:
        return None
    return begun["recovery"] - begun["heal"]


def _doubts(
    events: Sequence[Event], run: Event, faults: Sequence[FaultRecord], *, world: str
) -> list[str]:
    doubts = [f"fault {f.number} ({f.what}) did not land" for f in faults if not f.landed]
    exposed, wanted = max((f.exposed for f in faults), default=0), run.number("exposed", 0)
    if faults and exposed < wanted:
        doubts.append(f"{exposed} requests met a fault, {wanted:g} are wanted")
    doubts += [
        f"it was broken off: {event.text('reason')}"
        for event in events
        if event.kind is Kind.ABORTED
    ]
    if world == "live" and "check" not in {name for _, name in phases_of(events)}:
        doubts.append("the journal ends before the run did")
    return doubts


def _strain(events: Sequence[Event]) -> float:
    return max((e.number("share") for e in events if e.kind is Kind.STRAIN), default=0.0)


def _missed(
    run: Event,
    phases: Mapping[str, Figures],
    recovery: float | None,
    faults: Sequence[FaultRecord],
) -> list[str]:
    if run.text("mode", "safety") != "liveness":
        return []
    whole = together(figures for name, figures in phases.items() if name != BASELINE)
    lines = missed(run, whole, "expect")
    wanted = run.text("expect_recovery", "")
    took = math.inf if recovery is None else recovery
    if wanted and not read_bound(wanted).holds(took):
        lines.append(f"recovery took {took:.2f} s, wanted {wanted}")
    wanted, met = run.text("expect_met", ""), sum(fault.exposed for fault in faults)
    if wanted and not read_bound(wanted).holds(met):
        lines.append(f"{met} requests met a fault, wanted {wanted}")
    return lines


OF_FEW: Mapping[str, tuple[Kind, ...]] = {
    "I4": (Kind.GAUGE,),
    "I5": (Kind.BREAKER,),
    "I5b": (Kind.ADMIT,),
    "I6": (Kind.POISON, Kind.ENGINE_START),
    "I6b": (Kind.POISON,),
    "I7": (Kind.ACCEPT, Kind.REJECT),
    "I8": (Kind.CANCEL,),
    "I9": (Kind.KILL,),
    "I10": (Kind.ATTEMPT_START,),
    "I12": (Kind.TERMINAL,),
    "I12b": (Kind.WORKER_DEAD, Kind.POISON),
    "I13": (Kind.PROVIDER_START,),
    "I14": (Kind.PROBE,),
    "I15": (Kind.LATE,),
    "I16": (Kind.DISPATCH,),
    "I18": (Kind.SUPERVISOR_DEAD,),
    "I19": (Kind.WORKER_DEAD,),
    "I31": (Kind.RELOAD,),
    "I20": (Kind.GAUGE,),
}
"""Kinds that an invariant is tried on; all others are tried on every request."""


def _subjects(name: str, history: History) -> int:
    kinds = OF_FEW.get(name)
    if kinds is None:
        return len(history.of(Kind.SUBMIT))
    return sum(len(history.of(kind)) for kind in kinds)
