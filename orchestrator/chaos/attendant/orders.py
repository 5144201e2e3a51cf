"""What `orchestrator chaos live` tells the gateway that it starts; a file, for one run.

A user's own configuration stays as it is: what a run needs otherwise (a free port, providers behind
the fault proxy, a stub for the model) is changed in what was read, never in the file.
"""

from collections.abc import Mapping
from pathlib import Path

import msgspec

from orchestrator.config import Config
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
    return config.model_copy(update={"deployments": deployments, "chaos": chaos})


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
