"""Routes of the configuration in the words of routing."""

from orchestrator.config import parse
from orchestrator.plan import plan_deployments
from orchestrator.routing.hedging import HedgeSettings
from orchestrator.routing.rules import Rules

TWO = """
deployments:
  a:
    {runner: {kind: openai, base_url: "http://127.0.0.1:1/v1", model: m}, context: 100}
  b:
    {runner: {kind: openai, base_url: "http://127.0.0.1:1/v1", model: m}, prefill: true}
routes:
  r: {deployments: [a, b], """


def route(more: str):
    plans, routes = plan_deployments(parse(f"{TWO}{more}}}"))
    return plans, routes["r"].policy


def test_a_route_is_planned_as_it_is_written():
    plans, policy = route(
        "strategy: weighted, weights: {a: 3}, max_attempts: 4, midstream: continue,"
        " failover: {context_length: [b], quota: never}, hedge: {after: p90, budget: 2%}"
    )

    assert (policy.strategy, policy.weights, policy.max_attempts) == ("weighted", {"a": 3}, 4)
    assert policy.midstream == "continue"
    assert policy.rules == Rules({"context_length": ("b",), "quota": "never"})
    assert policy.hedge == HedgeSettings(percentile=0.9, share=0.02)
    assert [(plan.context, plan.prefill) for plan in plans] == [(100, False), (None, True)]


def test_a_hedge_may_wait_for_a_time_instead_of_a_percentile():
    _, policy = route("hedge: {after: 800ms}")

    assert policy.hedge == HedgeSettings(seconds=0.8, share=0.05)
