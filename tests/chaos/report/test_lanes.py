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
