"""Whether the steady state held before anything was injected."""

from collections.abc import Iterable, Mapping, Sequence

from orchestrator.chaos.journal import Event, Kind
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.scenario.values import read_bound
from orchestrator.chaos.verdict.figures import Figures, figures_of, requests_of

BASELINE = "baseline"
KNOWN = "known"
"""Requests before the baseline, whose answers are what later ones are compared with."""


def bounds_of(scenario: Scenario) -> Mapping[str, str]:
    """The bounds of a scenario as its journal's run has them, by their names there."""
    expect = scenario.expect
    bounds = {
        "steady_success": scenario.steady.success,
        "steady_ttft_p95": scenario.steady.ttft_p95,
        "expect_done": expect.done,
        "expect_recovery": expect.recovery,
        "expect_ttft_p95": expect.ttft_p95,
        "expect_met": expect.met,
    }
    return {name: bound.text for name, bound in bounds.items() if bound is not None}


def together(phases: Iterable[Figures]) -> Figures:
    """The figures of several phases as those of the run."""
    whole = Figures(phase="the run")
    for figures in phases:
        whole.requests += figures.requests
        whole.done += figures.done
        whole.canceled += figures.canceled
        whole.first_tokens += figures.first_tokens
    return whole


def steady_state(events: Sequence[Event]) -> list[str]:
    """What didn't hold in the baseline, a line each; empty if it was met.

    Raises:
        JournalError: An event lacks what its kind needs.
    """
    run = next((event for event in events if event.kind is Kind.RUN), None)
    found = figures_of(requests_of(events)).get(BASELINE)
    if run is None or found is None:
        return ["no request was sent in the baseline"]
    return missed(run, found, "steady")


def missed(run: Event, found: Figures, prefix: str) -> list[str]:
    """The bounds on success and time to the first token that a phase doesn't keep.

    Args:
        run: Has the bounds as text.
        found: The figures of the phase.
        prefix: Of the bounds' names.

    Raises:
        JournalError: A bound is none.
    """
    lines: list[str] = []
    for name, measured in (
        ("success", found.success),
        ("done", found.success),
        ("ttft_p95", found.ttft(0.95)),
    ):
        text = run.text(f"{prefix}_{name}", "")
        if not text:
            continue
        if measured is None or not read_bound(text).holds(measured):
            told = "nothing was read" if measured is None else f"{measured:.3f}"
            lines.append(f"{name} in {found.phase} was {told}, wanted {text}")
    return lines
