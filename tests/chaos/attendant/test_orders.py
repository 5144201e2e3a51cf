"""What a run changes in a configuration that was read."""

from orchestrator.chaos.attendant.orders import Orders, applied
from orchestrator.config import parse

CONFIG = """
deployments:
  a: {runner: {kind: torch, model: a}, context: 10}
  b: {runner: {kind: torch, model: b}, context: 20}
routes:
  r: {deployments: [a, b], strategy: weighted, weights: {a: 3}, failover: {context_length: [b]}}
budgets: [{deployment: a, tokens: 10, per: day}]
"""


def test_renamed_deployments_are_asked_for_by_their_old_names_all_the_same():
    renames = {"a": "a-1", "b": "b-1"}

    config = applied(Orders(state_dir="s", renames=renames), parse(CONFIG))

    route = config.routes["r"]
    assert set(config.deployments) == {"a-1", "b-1"}
    assert route.deployments == ("a-1", "b-1")
    assert route.weights == {"a-1": 3}
    assert route.failover.context_length == ("b-1",)
    assert config.routes["a"].deployments == ("a-1",)
    assert [budget.deployment for budget in config.budgets] == ["a-1"]


def test_without_other_names_the_deployments_stay_as_they_are():
    before = parse(CONFIG)

    config = applied(Orders(state_dir="s"), before)

    assert config.deployments == before.deployments
    assert config.routes == before.routes
