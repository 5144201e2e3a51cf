"""`chaos stub` and `chaos proxy`: a provider's place that stands alone."""

import asyncio
import contextlib
from typing import Annotated

import typer

from orchestrator.chaos.command.app import app, mistakes_told, refuse, say
from orchestrator.chaos.live.injector import toxic_of
from orchestrator.chaos.live.target import LOOPBACK
from orchestrator.chaos.provider.front import Front
from orchestrator.chaos.provider.proxy import Proxy
from orchestrator.chaos.provider.stub import Stub
from orchestrator.chaos.provider.toxics import Toxic
from orchestrator.chaos.scenario.reading import parse_scenario
from orchestrator.errors import ConfigError

Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", help="As in a scenario: 'do: cut, how: rst, toxicity: 0.3'."),
]
Seed = Annotated[int, typer.Option(help="Of the choice whom a fault meets.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]


@app.command()
def stub(
    *,
    port: Port = 0,
    faults: Faults = None,
    seed: Seed = 0,
    token_ms: Annotated[float, typer.Option(min=0.0, help="Between two tokens.")] = 10.0,
) -> None:
    """Runs a provider that counts: `count 5 NAME` is answered with five tokens that prove it.

    [bold]Examples[/bold]

      orchestrator chaos stub --port 9000

      orchestrator chaos stub --port 9000 --fault "do: stall, after_tokens: 3, toxicity: 0.1"
    """
    with mistakes_told():
        toxics = [_toxic(text) for text in faults or []]
        asyncio.run(_serve(Stub(port=port, seed=seed, token_seconds=token_ms / 1000), toxics))


@app.command()
def proxy(
    upstream: Annotated[str, typer.Option(help="Base URL of the provider.")],
    *,
    listen: Port = 0,
    faults: Faults = None,
    seed: Seed = 0,
    yes: Annotated[bool, typer.Option("--yes", help="An upstream elsewhere is meant.")] = False,
) -> None:
    """Stands before a provider and spoils what it says; it knows events from bytes, needs no root.

    [bold]Examples[/bold]

      orchestrator chaos proxy --upstream http://127.0.0.1:9000/v1 --listen 9001 --fault "do: cut"
    """
    with mistakes_told():
        host = upstream.split("//")[-1].split("/")[0].rsplit(":", 1)[0]
        if host not in LOOPBACK and not yes:
            refuse(f"{upstream} isn't this machine; --yes if you mean it")
        toxics = [_toxic(text) for text in faults or []]
        asyncio.run(_serve(Proxy(upstream, port=listen, seed=seed), toxics))


def _toxic(text: str) -> Toxic:
    yaml = (
        "version: 1\nname: toxic\nabout: one fault\nsteady: {}\n"
        f"faults: [{{provider: any, {text}}}]\n"
    )
    return toxic_of(parse_scenario(yaml, "--fault").faults[0])


async def _serve(front: Front, toxics: list[Toxic]) -> None:
    try:
        async with front:
            for toxic in toxics:
                front.toxics.put_on(toxic)
            url = front.url if isinstance(front, Stub | Proxy) else ""
            say(f"listening on {url}; ^C ends it")
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.get_running_loop().create_future()
            for active in front.toxics.active:
                say(f"{active.toxic.harm}: struck {active.landed} of {front.requests} requests")
    except OSError as error:
        raise ConfigError(f"port {front.port}: {error.strerror}") from error
