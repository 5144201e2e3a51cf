"""Small plans: written by hand for one story each, or drawn and shrunk by Hypothesis."""

import hypothesis
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.chaos.journal import Event, Kind
from orchestrator.chaos.simulation.campaign import findings_of
from orchestrator.chaos.simulation.mutants.catalogue import MUTANTS
from orchestrator.chaos.simulation.mutants.planting import planted
from orchestrator.chaos.simulation.plan import (
    Action,
    Caller,
    Dice,
    Injection,
    Plan,
    Shape,
    Trouble,
)
from orchestrator.chaos.simulation.swarm import GRID
from orchestrator.chaos.simulation.trial import Report, run_plan
from orchestrator.points import Point

pytestmark = pytest.mark.sim


def dice(*troubles: Trouble) -> st.SearchStrategy[Dice]:
    return st.builds(
        Dice,
        trouble=st.sampled_from(troubles),
        after=st.integers(0, 2),
        seconds=st.sampled_from([0.1, 0.3]),
    )


INJECTIONS = st.builds(
    Injection,
    do=st.sampled_from([Action.POISON, Action.CANCEL, Action.KILL_HOST, Action.STRETCH]),
    deployment=st.just("a"),
    point=st.sampled_from(Point),
    nth=st.integers(0, 3),
    delay=st.sampled_from([0.0, 0.002]),
)


@st.composite
def plans(
    draw: st.DrawFn, fates: st.SearchStrategy[Dice], most_callers: int = 8, most_injections: int = 2
) -> Plan:
    shape = Shape(
        name="a",
        local=draw(st.booleans()),
        shared_host=draw(st.booleans()),
        slots=draw(st.integers(1, 3)),
        queue_capacity=8,
    )
    count = draw(st.integers(1, most_callers))
    callers = [
        Caller(
            name=f"r{number}",
            at=draw(st.integers(0, 30)) * GRID,
            route="a",
            tokens=draw(st.integers(1, 4)),
            timeout=8.0,
            held=draw(st.booleans()),
            cancel_after=draw(st.sampled_from([None, 0, 1])),
            dice=tuple(draw(st.lists(fates, max_size=2))),
        )
        for number in range(count)
    ]
    return Plan(
        seed=draw(st.integers(0, 3)),
        shuffle=True,
        grid=GRID,
        shapes=(shape,),
        callers=tuple(callers),
        injections=tuple(draw(st.lists(INJECTIONS, max_size=most_injections))),
    )


@settings(max_examples=40, deadline=None)
@given(plan=plans(dice(*Trouble)))
def test_every_small_plan_holds_every_invariant(plan: Plan):
    assert findings_of(run_plan(plan)) == []


def test_a_planted_bug_shrinks_to_one_request_that_is_cut():
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "retry after the first token")

    with planted(mutant):
        smallest = hypothesis.find(
            plans(dice(Trouble.NONE, Trouble.CUT), most_callers=3, most_injections=0),
            lambda plan: not run_plan(plan).passed,
            settings=settings(max_examples=50, deadline=None, database=None, derandomize=True),
        )

    assert len(smallest.callers) == 1
    assert len(smallest.callers[0].dice) == 1
    assert smallest.callers[0].dice[0].trouble is Trouble.CUT


def story(*callers: Caller, injections: tuple[Injection, ...] = (), **shapes: Shape) -> Report:
    chosen = tuple(shapes.values()) or (Shape(name="a", slots=1),)
    routes = {"both": tuple(shape.name for shape in chosen)} if len(chosen) > 1 else {}
    plan = Plan(seed=1, shapes=chosen, routes=routes, callers=callers, injections=injections)
    return run_plan(plan)


def asking(name: str, *fates: Dice, route: str = "a", held: bool = False) -> Caller:
    return Caller(name=name, at=0.0, route=route, tokens=3, timeout=8.0, held=held, dice=fates)


def ending(report: Report, request: str) -> Event:
    return next(
        event for event in report.events if event.kind is Kind.TERMINAL and event.request == request
    )


def test_a_crash_before_the_first_token_is_tried_again_elsewhere():
    report = story(asking("r0", Dice(trouble=Trouble.CRASH_FIRST)))

    assert findings_of(report) == []
    assert ending(report, "r0").text("outcome") == "done"


def test_a_cut_after_a_token_was_read_ends_the_request_with_its_cause():
    report = story(asking("r0", Dice(trouble=Trouble.CUT, after=2)))

    assert findings_of(report) == []
    assert "cut in attempt 1 of r0" in ending(report, "r0").text("cause")


def test_a_cut_stream_of_a_caller_who_waits_for_all_is_tried_again():
    report = story(asking("r0", Dice(trouble=Trouble.CUT, after=2), held=True))

    assert findings_of(report) == []
    assert ending(report, "r0").text("outcome") == "done"


def test_a_poisoned_deployment_hands_its_requests_to_the_next():
    poison = Injection(do=Action.POISON, deployment="a", point=Point.DISPATCH_TOLD)

    report = story(
        asking("r0", route="both"),
        injections=(poison,),
        first=Shape(name="a", slots=1),
        second=Shape(name="b", slots=1),
    )

    assert findings_of(report) == []
    assert ending(report, "r0").text("outcome") == "done"
    assert [event.deployment for event in report.events if event.kind is Kind.POISON] == ["a"]


def test_what_cannot_be_canceled_answers_late_and_changes_nothing():
    first = Caller(
        name="r0",
        at=0.0,
        route="a",
        tokens=3,
        timeout=8.0,
        cancel_after=0,
        cancel_delay=0.1,
        dice=(Dice(trouble=Trouble.ZOMBIE, seconds=0.5),),
    )

    report = story(first)

    assert findings_of(report) == []
    assert ending(report, "r0").text("outcome") == "canceled"
    assert any(event.kind is Kind.LATE for event in report.events)
