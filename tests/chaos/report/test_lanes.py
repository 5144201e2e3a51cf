"""What is drawn of a run, from its journal."""

from orchestrator.chaos.report.lanes import Span, picture_of
from tests.chaos.invariants.notation import sketch


def test_the_lanes_of_a_deployment_end_where_a_reload_took_it_away():
    events = sketch(
        "0 engine_start generation=1\n0 ready ready=true\n3 retired\n5 phase name=check",
    )

    lanes = picture_of(events, frozenset()).states

    assert [[(span.begin, span.end) for span in spans] for spans in lanes.values()] == [
        [(0.0, 3.0)],
        [(0.0, 3.0)],
    ]


def test_a_breaker_that_moves_is_drawn_from_the_beginning_of_the_run():
    events = sketch("1 breaker state=open\n2 phase name=check")

    (spans,) = picture_of(events, frozenset()).states.values()

    assert spans == [Span(0.0, 1.0, "closed"), Span(1.0, 2.0, "open")]


def test_a_simulated_run_is_drawn_though_it_has_no_phases():
    picture = picture_of(sketch("0 engine_start generation=1\n3 submit r1"), frozenset())

    assert picture.phases == []
    assert picture.states[" engine"] == [Span(0.0, 3.0, "serving")]


def test_the_curve_of_a_queue_falls_with_whoever_leaves_it():
    events = sketch(
        "1 accept r1 deployment=a depth=1\n1 accept r1 deployment=b depth=1\n"
        "2 accept r2 deployment=a depth=2\n3 dequeue r1 deployment=a\n4 terminal r2\n"
        "5 terminal r1\n6 accept r3 deployment=a depth=1\n7 poison deployment=a"
    )

    queues = picture_of(events, frozenset()).queues

    assert queues == {
        "a": [(1.0, 1.0), (2.0, 2.0), (3.0, 1.0), (4.0, 0.0), (6.0, 1.0), (7.0, 0.0)],
        "b": [(1.0, 1.0), (5.0, 0.0)],
    }
