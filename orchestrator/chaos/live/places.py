"""The places of a gateway's providers in a run: a stub, or a fault proxy before the real one."""

from collections.abc import Mapping
from contextlib import AsyncExitStack

from orchestrator.chaos.attendant.orders import reroutable
from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.live.target import LOOPBACK
from orchestrator.chaos.provider.front import Front
from orchestrator.chaos.provider.proxy import Proxy
from orchestrator.chaos.provider.stub import Stub
from orchestrator.config import Config
from orchestrator.errors import ConfigError


async def opened(
    stack: AsyncExitStack, config: Config, journal: Journal, *, seed: int, stubs: bool, sure: bool
) -> Mapping[str, Stub | Proxy]:
    """Opens the place of each provider, by deployment; the stack closes them.

    Args:
        stack: Of what the run has opened.
        config: Names the providers.
        journal: Told of each request that reaches one.
        seed: Of what the toxics draw.
        stubs: Whether stubs take the place of all providers.
        sure: Whether one that isn't on this machine is meant.

    Raises:
        ConfigError: A provider isn't on this machine, and that isn't meant.
    """
    places: dict[str, Stub | Proxy] = {}
    for name, upstream in reroutable(config).items():

        def note(request: str | None, deployment: str = name) -> None:
            journal.record(Kind.PROVIDER_START, request=request, deployment=deployment)

        if not stubs and not sure and _host_of(upstream) not in LOOPBACK:
            raise ConfigError(
                f"deployment {name} asks {upstream}, which isn't this machine and may cost money:"
                " --yes if you mean it, --stubs to put a stub in its place"
            )
        place = (
            Stub(seed=seed, on_start=note) if stubs else Proxy(upstream, seed=seed, on_start=note)
        )
        places[name] = await stack.enter_async_context(place)
    return places


def streams_at(places: Mapping[str, Front]) -> int:
    """Streams that are open at all of them."""
    return sum(front.open_streams for front in places.values())


def _host_of(url: str) -> str:
    return url.rsplit("//", maxsplit=1)[-1].split("/", maxsplit=1)[0].rsplit(":", 1)[0]
