"""Puts the attendant beside a gateway whose configuration allows it, or that a run has started."""

import contextlib
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.chaos.attendant.bugs import bugs_named
from orchestrator.chaos.attendant.orders import Orders, applied, read_orders
from orchestrator.chaos.attendant.service import Service
from orchestrator.chaos.attendant.witness import Witness
from orchestrator.chaos.simulation.mutants.planting import Patch, planted, put_in_place
from orchestrator.chaos.stub.factories import stub_factory, wedgeable_factory
from orchestrator.config import Config
from orchestrator.deployment import RunningDeployment
from orchestrator.points import Points
from orchestrator.runners.torch.host import guard_against_orphanage
from orchestrator.wiring import System

Beside = Callable[[System], AbstractAsyncContextManager[None]]
DEFAULT_STATE_DIR = "chaos-state"
FACTORY = ("orchestrator.runners.torch.runner", "factory")


@dataclass(frozen=True, slots=True)
class Company:
    """What a gateway is started with."""

    config: Config
    points: Points | None = None
    beside: Beside | None = None
    orders_file: Path | None = None

    def adapted(self, config: Config) -> Config:
        """What is made of the configuration when it is read anew; the orders are read again, too.

        Raises:
            ConfigError: The orders can't be used.
        """
        if self.orders_file is None:
            return config
        return applied(read_orders(self.orders_file), config)


@contextlib.contextmanager
def accompanied(config: Config, orders_file: Path | None = None) -> Generator[Company]:
    """Makes what stands beside a gateway, which is nothing unless chaos is enabled.

    Args:
        config: The configuration as it was read.
        orders_file: The changes of a run that starts this gateway.

    Raises:
        ConfigError: The orders can't be used.
        PartedError: Whoever gave them is gone already.
    """
    orders = Orders(state_dir=str(config.chaos.state_dir or DEFAULT_STATE_DIR))
    if orders_file is not None:
        orders = read_orders(orders_file)
        config = applied(orders, config)
    if not config.chaos.enabled:
        yield Company(config)
        return
    if orders.parent:
        guard_against_orphanage(orders.parent)
    bugs = bugs_named(orders.planted)
    witness = Witness()
    with contextlib.ExitStack() as stack:
        for bug in bugs:
            stack.enter_context(planted(bug))
        if orders_file is not None:
            hosts = stub_factory if orders.stub_hosts else wedgeable_factory
            stack.enter_context(put_in_place([Patch(*FACTORY, hosts)]))
        yield Company(config, witness, _beside(witness, orders), orders_file)


def _beside(witness: Witness, orders: Orders) -> Beside:
    @contextlib.asynccontextmanager
    async def beside(system: System) -> AsyncGenerator[None]:
        witness.watch(list(system.deployments.values()))
        service = Service(system, witness, orders.planted)

        def added(running: RunningDeployment) -> None:
            witness.watch([running])
            service.count_changes(running)

        system.on_added = added
        async with service.listening(Path(orders.state_dir)):
            yield

    return beside
