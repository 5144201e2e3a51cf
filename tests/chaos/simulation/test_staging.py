"""Scenarios in the simulation, and failing plans made small."""

import msgspec
import pytest

from orchestrator.chaos.journal import Kind
from orchestrator.chaos.scenario.reading import parse_scenario, shipped
from orchestrator.chaos.scenario.sections import Scenario
from orchestrator.chaos.simulation.campaign import missed_of
from orchestrator.chaos.simulation.mutants.catalogue import MUTANTS
from orchestrator.chaos.simulation.mutants.planting import planted
from orchestrator.chaos.simulation.plan import Plan, plan_from_json
from orchestrator.chaos.simulation.shrink import Shrinker, signs_of, size_of
from orchestrator.chaos.simulation.staging import stage
from orchestrator.chaos.simulation.swarm import draw
from orchestrator.chaos.simulation.trial import run_plan

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("scenario", shipped(), ids=lambda scenario: scenario.name)
def test_every_scenario_holds_in_simulation_and_leaves_one_trace(scenario: Scenario) -> None:
    reports = [run_plan(stage(scenario, 2)) for _ in range(2)]

    assert reports[0].violations == []
    assert reports[0].failure is None
    assert reports[1].trace == reports[0].trace
    assert missed_of(reports[0], scenario) == []
    breaks = [fault for fault in scenario.faults if fault.target in ("worker", "provider")]
    slow = all(fault.do == "latency" for fault in breaks)
    landed = [event for event in reports[0].events if event.kind is Kind.FAULT_LANDED]
    assert landed or not breaks or slow


def test_a_fault_at_a_point_strikes_at_its_passage_and_not_at_one_before_its_time() -> None:
    yaml = (
        "version: 1\nname: x\nabout: y\nsteady: {}\nsystem: {kind: local}\nload: {for: 4s}\n"
        "faults: [{at: 2s, worker: any, do: crash, at_point: attempt.admitted, nth: 3}]\n"
    )
    plan = stage(parse_scenario(yaml), 1)  # off the grid

    events = run_plan(plan).events

    admitted = [e.t for e in events if e.kind is Kind.ADMIT and e.t >= plan.injections[0].since]
    died = next(event.t for event in events if event.kind is Kind.WORKER_DEAD)
    assert admitted[2] <= died < admitted[3]


def test_a_fault_within_an_answer_strikes_after_so_many_of_its_tokens() -> None:
    yaml = (
        "version: 1\nname: x\nabout: y\nsteady: {}\nsystem: {kind: local, slots: 1}\n"
        "load: {rate: 1/s, for: 4s, tokens: [20, 20], shape: steady}\n"
        "faults: [{at: 1500ms, worker: any, do: crash, after_tokens: 7}]\n"
    )

    events = run_plan(stage(parse_scenario(yaml), 1)).events

    died = next(event.t for event in events if event.kind is Kind.WORKER_DEAD)
    tokens = [e for e in events if e.kind is Kind.TOKEN and e.request == "r2" and e.t < died]
    assert len(tokens) == 7


def test_a_staged_plan_survives_its_way_through_a_file() -> None:
    plan = stage(shipped()[0], 3)

    assert plan_from_json(plan.as_json()) == plan


def test_a_failing_plan_shrinks_and_fails_in_the_same_way() -> None:
    bug = next(mutant for mutant in MUTANTS if mutant.name == "unbounded queue")
    told: list[int] = []
    with planted(bug):
        failing = next(plan for plan in map(draw, range(20)) if signs_of(run_plan(plan)))
        shrinker = Shrinker(
            failing, on_progress=lambda _, plan: told.append(size_of(plan)), max_runs=40
        )
        smallest = shrinker.shrink()

        assert signs_of(run_plan(smallest)) & shrinker.signs
    assert size_of(smallest) < size_of(failing) / 2
    assert told == sorted(told, reverse=True)


def test_a_plan_that_holds_has_nothing_to_shrink() -> None:
    plan = Plan(seed=0, shapes=(), callers=())

    shrinker = Shrinker(plan)

    assert shrinker.signs == frozenset()
    assert shrinker.shrink() == plan


def test_a_plan_that_has_no_caller_left_still_comes_to_its_end() -> None:
    staged = stage(shipped()[0], 1)

    report = run_plan(msgspec.structs.replace(staged, callers=()))

    assert report.passed
