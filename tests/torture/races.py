"""Races with real threads: `python -m tests.torture.races --trials 10000`.

The interpreter switches threads as often as it can. Each trial lets several threads go at the same
moment and waits until all have come back; how each came back is counted, because a race in which
one side always wins proves nothing. `make races N=10000` runs it; it exits with 1 if somebody
waited in vain or was told something else than the truth.
"""

import argparse
import asyncio
import faulthandler
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pykka
from rich.table import Table
from typing_extensions import override

from orchestrator.actors.runtime import LoopActor, ask, ended, kill
from orchestrator.actors.supervisor import Supervision
from orchestrator.deployment import RunningDeployment
from orchestrator.errors import (
    EngineDrainingError,
    EngineUnhealthyError,
    OrchestratorError,
    RequestCanceledError,
)
from orchestrator.gateway.screen import plain_console
from orchestrator.plan import DeploymentPlan
from orchestrator.sdk import Orchestrator
from orchestrator.stream import TokenStream
from orchestrator.wiring import System
from tests.fakes.scripted import DONE, Stage
from tests.torture.threads import PATIENCE_SECONDS, Threads, Work, home

SWITCH_SECONDS = 1e-6
SUBMITTERS = 3
LATE = {"ask": 4000, "cancel": 4000, "poison": 20_000, "drain": 4000}
"""Steps, by race, with which each side wins about as often as the other (seen)."""
TEXT = "abc"


class BrokenPromiseError(Exception):
    """A race ended as none may end."""


class Echo(LoopActor):
    """Says what it is told, at once or a step later."""

    @override
    async def on_receive(self, message: int) -> int:
        if message % 2:
            await asyncio.sleep(0)
        return message


def ask_and_stop(threads: Threads, trials: int) -> None:
    """Asks meet a stop or a kill: each is answered, or refused because the actor is gone."""

    async def begin() -> pykka.ActorRef[Any]:
        return Echo.start()

    with home() as there:

        def asks(ref: pykka.ActorRef[Any], number: int) -> str:
            try:
                answer = there.run(ask(ref, number, within=PATIENCE_SECONDS / 2))
            except pykka.ActorDeadError:
                return "refused: the actor is gone"
            if answer != number:
                raise BrokenPromiseError(f"asked {number}, was told {answer}")
            return "answered"

        def ends(ref: pykka.ActorRef[Any], how: Callable[..., object]) -> str:
            there.loop.call_soon_threadsafe(how, ref)
            there.run(ended(ref))
            return "ended"

        def stop(ref: pykka.ActorRef[Any]) -> None:
            ref.stop(block=False)

        for trial in range(trials):
            ref = there.run(begin())
            works: list[Work] = [
                lambda ref=ref, number=number: asks(ref, number) for number in range(SUBMITTERS)
            ]
            how = kill if trial % 2 else stop
            threads.together(
                *works, last=lambda ref=ref, how=how: ends(ref, how), late_by=LATE["ask"]
            )


def _orchestrator() -> Orchestrator:
    stage = Stage(lambda _request, _call: [*TEXT, DONE])
    plan = DeploymentPlan(
        name="m", factory=stage.factory(), slots=2, supervision=Supervision(on_poison="stay")
    )
    return Orchestrator.over(System([plan], monitored=False), default_model="m", drain=5.0)


def _read(stream: TokenStream, *allowed: type[OrchestratorError]) -> str:
    """Reads to the end; what was read is whole, or the error is one of those."""
    text = ""
    try:
        for chunk in stream:
            text += chunk.text
    except allowed as error:
        if not TEXT.startswith(text):
            raise BrokenPromiseError(f"read {text!r}") from error
        return error.code
    if text != TEXT:
        raise BrokenPromiseError(f"read {text!r} to its end")
    return "answered"


def cancel_and_dispatch(threads: Threads, trials: int) -> None:
    """A cancel meets the dispatch: the stream ends, canceled or whole, and nothing stays busy."""
    with _orchestrator() as orchestrator:
        deployment = orchestrator.system.deployments["m"]

        def reads(stream: TokenStream) -> str:
            return _read(stream, RequestCanceledError)

        def cancels(stream: TokenStream) -> str:
            stream.cancel()
            return "cancel sent"

        for _ in range(trials):
            first, second = orchestrator.submit("hi"), orchestrator.submit("hi")
            threads.together(
                lambda first=first: reads(first),
                lambda second=second: reads(second),
                lambda first=first: cancels(first),
                last=lambda second=second: cancels(second),
                late_by=LATE["cancel"],
            )
    left = len(deployment.inflight), deployment.gates.limiter.outstanding
    if left != (0, 0):
        raise BrokenPromiseError(f"requests and permits left behind: {left}")


def poison_and_accept(threads: Threads, trials: int) -> None:
    """Submits meet a poison: each request ends, answered or refused with the poison's cause."""
    with home() as there:
        for _ in range(trials):
            orchestrator = _orchestrator()
            there.run(orchestrator.start())
            there.run(orchestrator.system.settled())
            deployment = orchestrator.system.deployments["m"]

            def submits(orchestrator: Orchestrator = orchestrator) -> str:
                stream = orchestrator.submit("hi")
                return _read(stream, EngineUnhealthyError)

            def poisons(deployment: RunningDeployment = deployment) -> str:
                there.loop.call_soon_threadsafe(
                    deployment.poison, "race", RuntimeError("on purpose")
                )
                return "poison sent"

            threads.together(*[submits] * SUBMITTERS, last=poisons, late_by=LATE["poison"])
            there.run(orchestrator.aclose())


def drain_and_accept(threads: Threads, trials: int) -> None:
    """Submits meet a close: each request ends, answered or refused, and the close returns."""
    for _ in range(trials):
        orchestrator = _orchestrator()
        orchestrator.open()

        def submits(orchestrator: Orchestrator = orchestrator) -> str:
            try:
                stream = orchestrator.submit("hi")
            except RuntimeError:
                return "refused: it isn't running"
            return _read(stream, EngineDrainingError)

        def closes(orchestrator: Orchestrator = orchestrator) -> str:
            orchestrator.close()
            return "closed"

        threads.together(*[submits] * SUBMITTERS, last=closes, late_by=LATE["drain"])


RACES = {
    "ask and stop": ask_and_stop,
    "cancel and dispatch": cancel_and_dispatch,
    "poison and accept": poison_and_accept,
    "drain and accept": drain_and_accept,
}


def run(name: str, trials: int, seed: int = 0) -> Counter[str]:
    """Runs one race so often; returns how many came back how.

    Raises:
        BrokenPromiseError: Somebody was told something else than the truth.
        TimeoutError: Somebody waits for ever.
    """
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    threads = Threads(seed)
    try:
        RACES[name](threads, trials)
        threads.close()
    finally:
        sys.setswitchinterval(usual)
    return threads.came_back


def main() -> None:
    """Runs all races from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000, help="of each race")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--races", default=",".join(RACES), help="names with commas between")
    options = parser.parse_args()
    logging.getLogger("orchestrator").setLevel(logging.CRITICAL)  # each poison is an ERROR
    console = plain_console()
    table = Table("race", "trials", "seconds", "came back", title="nothing waits for ever")
    for name in options.races.split(","):
        console.print(f"{name}: {options.trials} trials")
        begin = time.perf_counter()
        try:
            came_back = run(name, options.trials, options.seed)
        except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is, who waits is shown
            console.print(f"BROKEN {name}: {error!r}", style="red")
            faulthandler.dump_traceback()  # who waits, and where
            os._exit(1)  # the threads that wait can't be ended
        seconds = time.perf_counter() - begin
        how = ", ".join(f"{count} {what}" for what, count in sorted(came_back.items()))
        table.add_row(name, str(options.trials), f"{seconds:.0f}", how)
    console.print(table)


if __name__ == "__main__":
    main()
