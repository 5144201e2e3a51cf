"""A reload as a fault: every deployment is replaced by another one like it, under load.

The gateway's file stays as it is. Its orders name the deployments otherwise, so that a reload finds
none of those that run and brings as many new ones, which the journal can tell from the old.
"""

import asyncio
import signal
from pathlib import Path

import msgspec

from orchestrator.chaos.attendant.orders import read_orders
from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.figures import describe
from orchestrator.chaos.live.target import Target

RELOAD_SECONDS = 60.0
LOOK = 0.02


async def reload(target: Target, journal: Journal, number: int) -> bool:
    """Replaces all deployments; whether the new ones serve.

    Args:
        target: A gateway that was started here.
        journal: Told of the new ones, before they begin.
        number: Of this reload, from 1; it tells them from those before.

    Raises:
        ConfigError: The gateway doesn't answer.
    """
    if target.process is None or target.orders is None:
        return False
    state = await target.state()
    journal.record(Kind.RELOAD, number=number)
    orders = read_orders(target.orders)
    original = {new: old for old, new in orders.renames.items()}
    renames: dict[str, str] = {}
    for one in state.deployments:
        name = original.get(one.name, one.name)
        renames[name] = f"{name}-{number}"
        describe(journal, one, renames[name])
    _write(target.orders, msgspec.json.encode(msgspec.structs.replace(orders, renames=renames)))
    target.process.send_signal(signal.SIGHUP)
    loop = asyncio.get_running_loop()
    end = loop.time() + RELOAD_SECONDS
    while loop.time() < end:
        if {one.name for one in (await target.state()).deployments} == set(renames.values()):
            return True
        await asyncio.sleep(LOOK)
    return False


def _write(place: Path, content: bytes) -> None:
    beside = place.with_suffix(".new")
    beside.write_bytes(content)
    Path(beside).replace(place)  # the gateway must never read half of it
