"""Reloads among everything else that goes wrong, in virtual time."""

import msgspec
import pytest

from orchestrator.chaos.journal import Kind
from orchestrator.chaos.scenario.reading import find_scenario, parse_scenario
from orchestrator.chaos.simulation.mutants.planting import Mutant, grafted, planted
from orchestrator.chaos.simulation.plan import Action
from orchestrator.chaos.simulation.staging import stage
from orchestrator.chaos.simulation.trial import run_plan
from orchestrator.deployment import RunningDeployment
from orchestrator.wiring import System

pytestmark = pytest.mark.sim

AMONG_ALL_ELSE = """\
version: 1
name: among-all-else
about: Reloads while hosts die and hang, an engine is poisoned and a provider fails in every way.
mode: safety
system: {kind: failover, slots: 4, deadline: 6s, failures: 5, permits: 600}
load: {rate: 20/s, for: 3s, tokens: [2, 30], deadlines: [800ms, 6s]}
steady: {success: ">= 0.5"}
faults:
  - {at: 300ms, gateway: any, do: reload, every: 400ms, times: 6}
  - {at: 500ms, worker: any, do: crash, every: 500ms, times: 3}
  - {at: 500ms, provider: any, do: cut, after_tokens: 2, toxicity: 0.3, for: 2s}
  - {at: 1s, provider: any, do: status, code: 429, toxicity: 0.3, for: 1s}
  - {at: 1500ms, gateway: any, do: poison}
  - {at: 2s, worker: any, do: stop, for: 1500ms}
  - {at: 0s, client: any, do: cancel, after_tokens: 2, toxicity: 0.2, for: 3s}
  - {at: 2s, client: any, do: burst, n: 40}
heal: 10s
"""


class ClosesAtOnce(System):
    """Closes what a reload has taken out without a thought of those who are there."""

    async def _retire(self, running: RunningDeployment) -> None:
        await running.aclose()


def test_a_reload_that_ends_those_who_run_is_found() -> None:
    bug = Mutant("a reload ends who runs", "a reload that cuts streams", grafted([ClosesAtOnce]))

    with planted(bug):
        report = run_plan(stage(find_scenario("reload-under-load"), 1))

    assert "I31" in {violation.id for violation in report.violations}


@pytest.mark.parametrize("seed", [0, 1])
def test_reloads_among_all_else_lose_nobody(seed: int) -> None:
    plan = stage(parse_scenario(AMONG_ALL_ELSE), seed)

    report = run_plan(plan)

    assert sum(injection.do is Action.RELOAD for injection in plan.injections) == 6
    assert sum(event.kind is Kind.RELOAD for event in report.events) == 6
    assert report.violations == []
    assert report.failure is None


def test_a_reload_alone_is_noticed_by_nobody() -> None:
    plan = stage(find_scenario("reload-under-load"), 4)

    report = run_plan(msgspec.structs.replace(plan, callers=plan.callers[:60]))

    endings = [event.text("outcome") for event in report.events if event.kind is Kind.TERMINAL]
    assert report.passed
    assert set(endings) == {"done"}
