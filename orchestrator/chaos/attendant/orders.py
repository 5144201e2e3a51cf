"""What `orchestrator chaos live` tells the gateway that it starts; a file, for one run.

A user's own configuration stays as it is: what a run needs otherwise (a free port, providers behind
the fault proxy, a stub for the model) is changed in what was read, never in the file.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from orchestrator.config import Config, Route
from orchestrator.errors import ConfigError
from orchestrator.reading.remote import OpenAI, Remote


class Orders(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run's changes."""

    state_dir: str
    """Folder for the socket."""
    reroutes: dict[str, str] = {}
    """Base URLs by deployment, instead of the configured ones."""
    stubbed: dict[str, str] = {}
    """Base URLs of stubs that take the place of these deployments' providers, whatever they are."""
    parent: int = 0
    """Process whose end is this gateway's as well; 0 for none."""
    stub_hosts: bool = False
    """Whether a stub takes the place of every local model."""
    renames: dict[str, str] = {}
    """Other names of deployments: a reload with others replaces them all by ones like them."""
    planted: str = ""
    """Names of planted bugs with commas between them; empty for none."""


def read_orders(path: Path) -> Orders:
    """Reads the file.

    Raises:
        ConfigError: It can't be read, or isn't such a file.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Orders)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: not the orders of a chaos run: {error}") from error


def applied(orders: Orders, config: Config) -> Config:
    """The configuration with the changes made."""
    deployments = {
        name: section.model_copy(update={"runner": _placed(orders, name, section.runner)})
        for name, section in config.deployments.items()
    }
    chaos = config.chaos.model_copy(update={"enabled": True, "state_dir": Path(orders.state_dir)})
    config = config.model_copy(update={"deployments": deployments, "chaos": chaos})
    return _renamed(config, orders.renames) if orders.renames else config


def _renamed(config: Config, names: Mapping[str, str]) -> Config:
    """The deployments under other names; callers ask for them by the old ones all the same."""
    routes = {name: _route(route, names) for name, route in config.routes.items()}
    for old, new in names.items():
        routes.setdefault(old, Route(deployments=(new,)))
    return config.model_copy(
        update={
            "deployments": {names[old]: section for old, section in config.deployments.items()},
            "routes": routes,
            "budgets": tuple(
                budget.model_copy(update={"deployment": names.get(budget.deployment or "")})
                if budget.deployment in names
                else budget
                for budget in config.budgets
            ),
        }
    )


def _route(route: Route, names: Mapping[str, str]) -> Route:
    actions: dict[str, str | tuple[str, ...] | None] = dict(route.failover)
    rules = {
        kind: tuple(names[name] for name in action) if isinstance(action, tuple) else action
        for kind, action in actions.items()
    }
    return route.model_copy(
        update={
            "deployments": tuple(names[name] for name in route.deployments),
            "weights": {names[name]: weight for name, weight in route.weights.items()},
            "failover": route.failover.model_copy(update=rules),
        }
    )


def _placed(orders: Orders, name: str, runner: object) -> object:
    if name in orders.stubbed:
        return OpenAI(kind="openai", base_url=orders.stubbed[name], model="stub")
    if name in orders.reroutes and isinstance(runner, Remote):
        return runner.model_copy(update={"base_url": orders.reroutes[name]})
    return runner


def reroutable(config: Config) -> Mapping[str, str]:
    """The base URLs of all deployments that have one, by deployment."""
    return {
        name: section.runner.base_url
        for name, section in config.deployments.items()
        if isinstance(section.runner, Remote)
    }
