"""Kills the real model host at every token of an answer: `python -m tests.torture.seams`.

A greedy answer and a seeded one, each undisturbed first and then once for every place where it can
break off. The reader must get the very text of the undisturbed one each time, and no error.
`make seams` runs it; `make seams N=9` takes every ninth place. It exits with 1 if a text differed.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType

import uvloop
from rich.console import Console

from orchestrator.errors import OrchestratorError
from orchestrator.gateway.screen import plain_console
from orchestrator.sdk import Orchestrator
from orchestrator.stream import TokenStream
from tests.torture.lab import ALIVE_SECONDS, BREEDS, SLOTS, Lab, running_lab

LONGEST = 64
PROMPT = "Tell me a story about a fox and a crow, with a 🦊."
ASKED: Mapping[str, Callable[[Orchestrator], TokenStream]] = MappingProxyType(
    {
        "greedy": lambda sdk: sdk.submit(PROMPT, max_tokens=LONGEST, temperature=0),
        "seeded": lambda sdk: sdk.submit(
            PROMPT, max_tokens=LONGEST, temperature=0.9, top_p=0.95, seed=7
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """One answer that broke off, or one that didn't."""

    sampling: str
    place: int | None = None
    """Tokens that had been read when the host was killed; None if it wasn't."""
    text: str
    tokens: int = 0
    resumed_after: int | None = None
    """Tokens after which the next host went on; None if the answer began anew."""
    pause: float = 0.0
    """Longest time between two pieces after the kill, seconds."""
    error: OrchestratorError | None = None


async def ask(lab: Lab, sampling: str, place: int | None = None) -> Seam:
    """Reads one answer to its end and kills the host at that place."""
    stream = ASKED[sampling](lab.orchestrator)
    text, read, pause = "", 0, 0.0
    killed_at: float | None = None
    try:
        async for chunk in stream:
            if killed_at is not None:
                now = time.perf_counter()
                pause, killed_at = max(pause, now - killed_at), now
            elif place is not None and read >= place:
                os.kill(lab.process.pid, signal.SIGKILL)
                killed_at = time.perf_counter()
            text += chunk.text
            read += chunk.tokens
    except OrchestratorError as error:
        return Seam(sampling=sampling, place=place, text=text, error=error)
    return Seam(
        sampling=sampling,
        place=place,
        text=text,
        tokens=0 if stream.usage is None else stream.usage.completion_tokens,
        resumed_after=stream.attempts[-1].resumed_after,
        pause=pause,
    )


async def break_everywhere(lab: Lab, every: int, console: Console) -> tuple[list[Seam], list[str]]:
    """Breaks each answer at every so many places; returns all seams and what was wrong."""
    seams: list[Seam] = []
    wrong: list[str] = []
    for sampling in ASKED:
        undisturbed = await ask(lab, sampling)
        for place in range(0, undisturbed.tokens, every):
            async with asyncio.timeout(ALIVE_SECONDS):
                await lab.readiness.slots(SLOTS)
                seam = await ask(lab, sampling, place)
            seams.append(seam)
            if (seam.text, seam.tokens) != (undisturbed.text, undisturbed.tokens):
                wrong.append(f"{sampling} at {place}: {seam.error or seam.text!r}")
            console.print(
                f"{sampling} at {place:2}: went on after {seam.resumed_after} tokens,"
                f" {seam.pause:.1f} s later{'' if seam.text == undisturbed.text else ' OTHERWISE'}"
            )
    return seams, wrong


async def run(every: int, folder: Path, console: Console) -> list[str]:
    """Plays it all with a spare host; returns what was wrong."""
    async with running_lab(folder, BREEDS["real"], 1, spare=True) as lab:
        seams, wrong = await break_everywhere(lab, every, console)
    pauses = [seam.pause for seam in seams]
    resumed = sum(seam.resumed_after is not None for seam in seams)
    console.print(
        f"{len(seams)} answers broken, {resumed} gone on with, {len(seams) - resumed} begun anew, "
        f"{len(wrong)} wrong; pause median {median(pauses):.1f} s, longest {max(pauses):.1f} s"
    )
    return wrong


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="take every so many places")
    options = parser.parse_args()
    console = plain_console()
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        wrong = runner.run(run(options.every, Path(folder), console))
    for one in wrong:
        console.print(one, style="red")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
