"""What came of a campaign: its exit code, its lines for people and its JSON for programs."""

from collections.abc import Iterator

import msgspec

from orchestrator.chaos.provenance import provenance
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.simulation.campaign import Outcome, Settings, Tally

PASSED, VIOLATED, INCONCLUSIVE, DIVERGED, MISSED = 0, 1, 4, 6, 7
SCHEMA = "orchestrator/chaos/sim/v1"
REPLAY = "orchestrator chaos replay"
SHOWN_SEEDS = 3


def exit_code(tally: Tally, settings: Settings) -> int:
    """What the campaign has shown; of several things the one that counts most."""
    if tally.diverged:
        return DIVERGED
    if tally.failed:
        return VIOLATED
    if not tally.faults and _should_land(settings.scenario):
        return INCONCLUSIVE
    return MISSED if tally.missed else PASSED


def _should_land(scenario: Scenario | None) -> bool:
    """Whether nothing is proven if no fault lands; callers behave as their plan says anyway."""
    if scenario is None:
        return True
    return any(fault.target in ("worker", "provider") for fault in scenario.faults)


def lines_of(tally: Tally, settings: Settings) -> Iterator[str]:
    """The campaign for people, with the command that runs the first failure again."""
    yield (
        f"{tally.seeds} seeds, {tally.requests} requests, {tally.faults} faults landed,"
        f" {tally.virtual_seconds:.0f} s simulated in {tally.real_seconds:.1f} s:"
        f" {tally.rate:.0f} requests/s per core"
    )
    for outcome in tally.failed[:SHOWN_SEEDS]:
        yield f"seed {outcome.seed} failed, trace {outcome.trace}:"
        yield from (f"  {line}" for line in outcome.findings)
    for outcome in tally.missed[:SHOWN_SEEDS]:
        yield f"seed {outcome.seed} missed what is expected, trace {outcome.trace}:"
        yield from (f"  {line}" for line in outcome.missed)
    if tally.diverged:
        yield f"seeds that left two traces: {', '.join(map(str, tally.diverged[:20]))}"
    if wrong := tally.failed or tally.missed:
        more = f" --scenario {settings.scenario.name}" if settings.scenario else ""
        more += f" --grid {settings.grid * 1000:g}" if settings.grid is not None else ""
        yield f"{len(wrong)} of {tally.seeds} seeds; to see the first one:"
        yield f"  {REPLAY} {wrong[0].seed} --mode {settings.mode}{more}"


def as_json(tally: Tally, settings: Settings) -> str:
    """The campaign as one line of JSON; keys are only ever added within a version."""
    return msgspec.json.encode(
        {
            "schema": SCHEMA,
            "exit_code": exit_code(tally, settings),
            "scenario": settings.scenario.name if settings.scenario else None,
            "mode": settings.scenario.mode if settings.scenario else settings.mode,
            "provenance": provenance(),
            "seeds": tally.seeds,
            "requests": tally.requests,
            "faults": tally.faults,
            "virtual_seconds": tally.virtual_seconds,
            "real_seconds": tally.real_seconds,
            "requests_per_second": tally.rate,
            "failed": [_seed(outcome, outcome.findings) for outcome in tally.failed],
            "missed": [_seed(outcome, outcome.missed) for outcome in tally.missed],
            "diverged": tally.diverged,
        }
    ).decode()


def _seed(outcome: Outcome, lines: object) -> dict[str, object]:
    return {"seed": outcome.seed, "trace": outcome.trace, "lines": lines}
