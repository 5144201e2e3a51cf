"""What is believed of a deployment's time to the first token."""

import pytest

from orchestrator.routing.latency import DECAY_SECONDS, Latency


def test_one_slow_answer_is_believed_at_once():
    latency = Latency()
    latency.observe(0.1, now=0.0)
    latency.observe(5.0, now=0.1)

    assert latency.cost(0.0) == 5.0


def test_a_fast_answer_after_a_while_takes_most_of_the_bad_name_away():
    latency = Latency()
    latency.observe(5.0, now=0.0)
    latency.observe(0.1, now=0.001)
    soon = latency.cost(0.0)
    latency.observe(0.1, now=0.001 + 3 * DECAY_SECONDS)

    assert soon == pytest.approx(5.0, rel=0.01)
    assert latency.cost(0.0) == pytest.approx(0.1 + 4.9 * 0.0498, rel=0.02)


def test_requests_that_are_there_already_make_a_deployment_dearer():
    latency = Latency()
    latency.observe(0.2, now=0.0)

    assert latency.cost(2.0) == pytest.approx(0.6)


def test_a_deployment_that_was_never_asked_costs_nothing():
    assert Latency().cost(100.0) == 0.0
