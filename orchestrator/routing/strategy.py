"""The order in which a request tries the deployments of its route.

Only healthy ones, then any: those that would serve now come first, in the order of the strategy,
and after them the others, for one that is about to be back is better than none.

    failover     as they are listed
    weighted     by chance, each as often as its weight says; weight 0 is for failover only
    least_busy   fewest requests per slot first
    latency      of two chosen by chance the one with the lower expected time to its first token,
                 then the others by that time
"""

import random
from collections.abc import Mapping, Sequence
from typing import assert_never

from orchestrator.routing.deployment import Deployment
from orchestrator.routing.route import RoutePolicy


def in_order(
    policy: RoutePolicy, deployments: Sequence[Deployment], chance: random.Random
) -> list[Deployment]:
    """Orders the deployments that may be able to serve a request."""
    if len(deployments) < 2:  # noqa: PLR2004 - one has no order
        return list(deployments)
    healthy = [deployment for deployment in deployments if deployment.healthy()]
    others = [deployment for deployment in deployments if deployment not in healthy]
    # a deployment that waits for its slots is nearer to serving than one that refuses
    others.sort(key=_refuses)
    match policy.strategy:
        case "failover":
            return healthy + others
        case "weighted":
            return _by_weight(policy.weights, healthy, chance) + others
        case "least_busy":
            # chance decides among equals: the first one would get all that comes to an idle route
            chance.shuffle(healthy)
            return sorted(healthy, key=_load) + others
        case "latency":
            return _by_latency(healthy, chance) + others
        case _:
            assert_never(policy.strategy)


def _refuses(deployment: Deployment) -> bool:
    return not deployment.ready()


def _load(deployment: Deployment) -> float:
    return deployment.load


def _cost(deployment: Deployment) -> float:
    return deployment.latency.cost(deployment.load)


def _by_weight(
    weights: Mapping[str, float], healthy: list[Deployment], chance: random.Random
) -> list[Deployment]:
    # Efraimidis and Spirakis, "Weighted random sampling with a reservoir" (2006): the order of
    # u ** (1 / weight) is that of drawing one after the other by weight
    def key(deployment: Deployment) -> float:
        weight = weights.get(deployment.name, 1.0)
        return chance.random() ** (1.0 / weight) if weight > 0 else -1.0

    return sorted(healthy, key=key, reverse=True)


def _by_latency(healthy: list[Deployment], chance: random.Random) -> list[Deployment]:
    ranked = sorted(healthy, key=_cost)
    if len(ranked) > 2:  # noqa: PLR2004 - of two both are chosen
        # always the best one would send everybody there between two samples of it
        first = min(chance.sample(range(len(ranked)), 2))
        ranked.insert(0, ranked.pop(first))
    return ranked
