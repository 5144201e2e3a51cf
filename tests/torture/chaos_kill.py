"""Kills the chaos command at random moments: `python -m tests.torture.chaos_kill`.

Half of the rounds kill a whole live run (its stubs, its fault proxies and the gateway that it has
started are then orphans), half an attack on a gateway that goes on. Shortly after each kill no
process that the command had started may live, none may be stopped, and nothing may listen.
`make chaos-kill N=50` runs it; it exits with 1 if anything was left.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from orchestrator.chaos.processes import state_of
from orchestrator.gateway.screen import plain_console

MARK = "ORCHESTRATOR_CHAOS_ROUND"
"""In the environment of the command, and so of all that it starts."""
LOOK = 0.02
GRACE = 20.0
"""Seconds in which everything must be gone; a guardian has to be scheduled, on a busy machine."""
READY_SECONDS = 120.0
LISTENING = "0A"
STOPPED = "T"
SCENARIO = """\
version: 1
name: killed
about: A host is stopped, again and again, and a provider falls silent.
system: {kind: failover, slots: 4}
load: {rate: 10/s, for: 3s}
steady: {success: ">= 0", for: 500ms}
faults:
  - {at: 0s, worker: any, do: stop, for: 400ms, every: 100ms, times: 6}
  - {at: 0s, provider: any, do: stall, after_tokens: 2, for: 3s}
heal: 10s
expect: {exposed: 0}
"""
GATEWAY = """\
server: {port: 0, access_log: false}
deployments:
  local: {runner: {kind: torch, model: stub}, slots: 4}
"""


@dataclass(slots=True, eq=False)
class Tally:
    """What was left, over all rounds."""

    rounds: int = 0
    struck: int = 0
    """Rounds in which the command had begun to start processes when it was killed."""
    stopped_then: int = 0
    """Rounds in which a process was stopped at that very moment."""
    left: list[str] = field(default_factory=list[str])


async def kill_again_and_again(
    rounds: int, *, seed: int, folder: Path, console: Console, longest: float | None = None
) -> Tally:
    """Runs all rounds.

    Args:
        rounds: How many.
        seed: Of the moments.
        folder: For scenario, configuration and runs.
        console: Told of each round.
        longest: Seconds until the latest kill; measured by one whole run of each kind if None.
    """
    chance, tally = random.Random(seed), Tally()
    (folder / "killed.yaml").write_text(SCENARIO, encoding="utf-8")
    async with _target(folder) as target:
        kinds = {"live": _live(folder), "attack": _attack(*target)}
        spans = {name: longest or await _span(command) for name, command in kinds.items()}
        for number in range(rounds):
            name = "live" if number % 2 == 0 else "attack"
            moment = chance.uniform(0.0, spans[name])
            await _round(kinds[name], f"{seed}-{number}", moment, tally)
            if stopped := [pid for pid in marked("target") if state_of(pid) == STOPPED]:
                tally.left.append(f"round {number}: the target's {stopped} stopped")
            console.print(f"{number + 1}/{rounds}: {name} killed after {moment:.2f} s")
    return tally


def _live(folder: Path) -> list[str]:
    return ["live", str(folder / "killed.yaml"), "--out", str(folder / "run")]


def _attack(url: str, state_dir: Path) -> list[str]:
    return ["attack", "stop", "--for", "1s", "--target", url, "--state-dir", str(state_dir)]


async def _span(command: list[str]) -> float:
    loop = asyncio.get_running_loop()
    begin = loop.time()
    process = await _start(command, "span")
    await process.wait()
    return loop.time() - begin


async def _start(command: list[str], mark: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchestrator", "chaos", *command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env=os.environ | {MARK: mark},
    )


async def _round(command: list[str], mark: str, moment: float, tally: Tally) -> None:
    process = await _start(command, mark)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(moment):
            await process.wait()
    family = marked(mark)
    listeners = set(_listeners(family))
    tally.rounds += 1
    tally.struck += len(family) > 1
    tally.stopped_then += any(state_of(pid) == STOPPED for pid in (*family, *marked("target")))
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
    await _gone(mark, listeners, tally)


async def _gone(mark: str, listeners: set[str], tally: Tally) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + GRACE
    while loop.time() < end:
        stopped = [pid for pid in marked("target") if state_of(pid) == STOPPED]
        if not marked(mark) and not stopped:
            break
        await asyncio.sleep(LOOK)
    if left := [f"{pid} {state_of(pid)}" for pid in marked(mark)]:
        tally.left.append(f"round {mark}: processes {left}")
    if open_ := listeners & set(_open_listeners()):
        tally.left.append(f"round {mark}: {len(open_)} listeners")


def marked(mark: str) -> list[int]:
    """The processes that were started with that mark, or by one that was."""
    wanted = f"{MARK}={mark}".encode()
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                if wanted in (place / "environ").read_bytes().split(b"\0"):
                    found.append(int(place.name))
    return found


def _listeners(family: list[int]) -> Iterator[str]:
    """Inodes of what these processes listen with."""
    listening = set(_open_listeners())
    for pid in family:
        with contextlib.suppress(OSError):
            for place in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    name = str(place.readlink())
                    if name.startswith("socket:[") and name[8:-1] in listening:
                        yield name[8:-1]


def _open_listeners() -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == LISTENING:
                    yield fields[9]


@contextlib.asynccontextmanager
async def _target(folder: Path) -> AsyncGenerator[tuple[str, Path]]:
    """A gateway of a stub host that allows chaos, and goes on while commands are killed."""
    config, orders, state = folder / "target.yaml", folder / "target.json", folder / "state"
    config.write_text(GATEWAY, encoding="utf-8")
    orders.write_text(
        json.dumps({"state_dir": str(state), "stub_hosts": True, "parent": os.getpid()}),
        encoding="utf-8",
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchestrator", "serve", str(config)),
        *("--log-level", "error", "--chaos-orders", str(orders)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=os.environ | {MARK: "target"},
    )
    reading: asyncio.Task[bytes] | None = None
    try:
        assert process.stdout is not None
        async with asyncio.timeout(READY_SECONDS):
            while b"deployments ready, listening on http" not in (
                line := await process.stdout.readline()
            ):
                assert line, "the target ended"
        url = line.decode().rsplit("listening on ", maxsplit=1)[-1].split(";")[0].strip()
        reading = asyncio.create_task(process.stdout.read())
        yield url, state
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if reading is not None:
            await reading


def main() -> None:
    """Runs it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    console = plain_console()
    with tempfile.TemporaryDirectory() as folder:
        tally = asyncio.run(
            kill_again_and_again(
                options.rounds, seed=options.seed, folder=Path(folder), console=console
            )
        )
    console.print(
        f"{tally.rounds} kills, {tally.struck} while it had processes of its own,"
        f" {tally.stopped_then} while one was stopped; left: {tally.left or 'nothing'}"
    )
    sys.exit(bool(tally.left))


if __name__ == "__main__":
    main()
