"""After a live run: whether all is back, the gateway ends well, and nothing is left."""

import asyncio

from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.figures import gauge, is_quiet, measure
from orchestrator.chaos.live.hand import STOPPED
from orchestrator.chaos.live.preflight import LOOK, Ground
from orchestrator.chaos.live.strain import Strain
from orchestrator.chaos.processes import state_of

QUIET_SECONDS = 3.0


async def drain(ground: Ground, journal: Journal, strain: Strain) -> None:
    """Measures what the gateway holds at rest, ends it, and looks for what is left.

    Args:
        ground: What the run stood on.
        journal: Told all of it.
        strain: Of the run and its gateway.
    """
    journal.record(Kind.STRAIN, share=round(strain.share, 3))
    journal.record(Kind.PHASE, name="drain")
    target = ground.target
    if target.ended_with is None:
        await _measure(ground, journal)
        hosts = [host for one in (await target.state()).deployments for host in one.hosts]
        stopped = sum(state_of(pid) == STOPPED for pid, _ in hosts)
        gauge(journal, "residue: stopped processes", stopped, 0)
        await target.end()
    toxics = sum(len(front.toxics.active) for front in ground.fronts.values())
    gauge(journal, "residue: toxics", toxics, 0)
    if target.ended_with is not None:
        gauge(journal, "exit code of the gateway", abs(target.ended_with), 0)
        gauge(journal, "model hosts left", target.hosts_left, 0)


async def _measure(ground: Ground, journal: Journal) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + QUIET_SECONDS
    state = await ground.target.state()
    while loop.time() < end and not is_quiet(state, ground.fronts):
        await asyncio.sleep(LOOK)
        state = await ground.target.state()
    measure(journal, state, ground.fronts)
