"""What becomes of a request in the figures of its phase."""

import pytest

from orchestrator.chaos.verdict.figures import WHOLE_RUN, figures_of, requests_of
from tests.chaos.invariants.notation import sketch

CUT_OFF = "1 terminal r1 outcome=error code=slow_consumer"


@pytest.mark.parametrize("reads", ["slowly", "never"])
def test_who_was_to_dawdle_and_is_cut_off_for_it_counts_for_nobody(reads: str):
    events = sketch(f"0 submit r1 reads={reads}\n{CUT_OFF}")

    figures = figures_of(requests_of(events))[WHOLE_RUN]

    assert (figures.requests, figures.canceled, figures.success) == (1, 1, 1.0)


def test_who_reads_at_once_and_is_cut_off_all_the_same_has_failed():
    events = sketch(f"0 submit r1\n{CUT_OFF}")

    figures = figures_of(requests_of(events))[WHOLE_RUN]

    assert figures.success == 0.0


def test_a_slow_reader_who_fails_of_something_else_has_failed():
    events = sketch("0 submit r1 reads=slowly\n1 terminal r1 outcome=error code=worker_crashed")

    figures = figures_of(requests_of(events))[WHOLE_RUN]

    assert figures.success == 0.0
