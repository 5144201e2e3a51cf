"""One fault at once, to a gateway that runs."""

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from orchestrator.chaos.live.guardian import Guardian
from orchestrator.chaos.live.hand import Hand, hosts_of, longest_lease
from orchestrator.chaos.live.reach import NOT_OURS
from orchestrator.chaos.live.starving import starved
from orchestrator.chaos.live.target import attached
from orchestrator.chaos.processes import ProcessId
from orchestrator.chaos.scenario.catalogue import CATALOGUE, PASSAGE, REPEATED
from orchestrator.chaos.scenario.reading import WHEN, parse_scenario
from orchestrator.chaos.scenario.sections import ANY, Fault
from orchestrator.errors import ConfigError

TARGETS = ("worker", "gateway")
LATER = WHEN | REPEATED | PASSAGE | {"after_tokens"}


def fault_from(name: str, *, whom: str, lasts: str, settings: Sequence[str]) -> Fault:
    """A fault from the words of a command line, read as one of a scenario is.

    Raises:
        ConfigError: There is no such fault, or a setting means nothing to it.
    """
    known = [fault for kind, fault in CATALOGUE if kind in TARGETS and fault not in NOT_OURS]
    target = next((target for target in TARGETS if (target, name) in CATALOGUE), None)
    if target is None or name not in known:
        raise ConfigError(
            f"no fault {name!r} of a worker or gateway (those of a provider need a proxy before it:"
            f" orchestrator chaos proxy --fault); {', '.join(known)}"
        )
    for key in (item.split("=", 1)[0].strip() for item in settings):
        if key in LATER:
            raise ConfigError(
                f"--set {key}: an attack strikes once, at once; scenarios wait and repeat"
            )
    keys = [f"{target}: {whom}", f"do: {name}"]
    keys += [f"for: {lasts}"] if lasts else []
    keys += [item.replace("=", ": ", 1) for item in settings]
    yaml = (
        "version: 1\nname: attack\nabout: one fault\nsteady: {}\n"
        f"faults: [{{{', '.join(keys)}}}]\n"
    )
    return parse_scenario(yaml, "attack").faults[0]


async def attack(fault: Fault, url: str, state_dir: Path, *, sure: bool) -> list[str]:
    """Does it and undoes it; returns what shows that it landed.

    Raises:
        ConfigError: The gateway can't be attached to.
        CancelledError: It was interrupted, and has been undone.
    """
    target = await attached(url, state_dir, sure=sure)
    landed: list[str] = []
    if fault.do == "fd_exhaust":
        state = await target.state()
        process = ProcessId(state.pid, state.started)
        with Guardian() as guardian:
            async with aclosing(starved(process, target.address, guardian, fault)) as told:
                landed += [f"the gateway: {evidence}" async for evidence in told]
        return landed
    if fault.target == "gateway":
        for deployment in (await target.state()).deployments:
            if fault.whom in (ANY, deployment.name):
                what = fault.do.replace("_", "-")
                await target.inside.do(what, deployment=deployment.name, seconds=fault.seconds)
                landed.append(f"{deployment.name}: {fault.do}")
        return landed
    with Guardian() as guardian:
        state = await target.state()
        lease = longest_lease(state)
        hand = Hand(state.pid, hosts_of(target), guardian, random.Random(), lease=lease)
        try:
            await hand.strike(fault, lambda name, evidence: landed.append(f"{name}: {evidence}"))
        except asyncio.CancelledError:
            hand.heal()
            raise
    return landed
