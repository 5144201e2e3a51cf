"""The gateway that is broken: one that the run starts from a configuration, or one that runs.

A gateway that was started here ends with the run, however that ends: the kernel kills it when the
run's process is gone, and its model hosts with it.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from orchestrator.chaos.attendant.orders import Orders
from orchestrator.chaos.attendant.service import DebugState
from orchestrator.chaos.live.inside import Inside
from orchestrator.chaos.processes import ProcessId
from orchestrator.errors import ConfigError

START_SECONDS = 180.0
END_SECONDS = 45.0
STATE = "state"
LOG = "gateway.log"
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
_LISTENING = re.compile(rb"listening on (http://\S+?);")


@dataclass(slots=True, kw_only=True)
class Target:
    """A gateway that may be broken."""

    address: tuple[str, int]
    inside: Inside
    process: asyncio.subprocess.Process | None = None
    """Of a gateway that was started here."""
    orders: Path | None = None
    """The file with the changes that it makes to its configuration, whenever it reads that."""
    ended_with: int | None = None
    """Exit code, once it was ended."""
    hosts_left: int = 0
    """Model hosts that outlived it."""

    @property
    def url(self) -> str:
        """Its base URL."""
        return f"http://{self.address[0]}:{self.address[1]}"

    async def state(self) -> DebugState:
        """Everything that it knows of itself.

        Raises:
            ConfigError: It doesn't answer.
        """
        return await self.inside.state()

    async def end(self) -> None:
        """Asks a gateway that was started here to drain and end, and notes how it ended.

        Raises:
            ConfigError: It doesn't answer any more.
        """
        if self.process is None or self.ended_with is not None:
            return
        deployments = (await self.state()).deployments
        hosts = [host for one in deployments for host in one.hosts + one.spares]
        self.process.send_signal(signal.SIGTERM)
        await self.wait(END_SECONDS)
        self.hosts_left = sum(_lives(*host) for host in hosts)

    async def wait(self, seconds: float) -> None:
        """Waits for its end, and kills it after so long."""
        if self.process is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        self.ended_with = self.process.returncode


def _lives(pid: int, started: int) -> bool:
    try:
        return ProcessId.of(pid) == ProcessId(pid, started)
    except ProcessLookupError:
        return False


def endpoint(url: str, *, sure: bool) -> tuple[str, int]:
    """Host and port of a target.

    Args:
        url: Its base URL.
        sure: Whether one that isn't on this machine is meant.

    Raises:
        ConfigError: It is no such URL, or isn't on this machine and that isn't meant.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(f"{url} is no target; as http://127.0.0.1:8080 it would be")
    if host not in LOOPBACK and not sure:
        raise ConfigError(f"{url} isn't this machine; --yes if you mean it")
    return host, port


async def attached(url: str, state_dir: Path, *, sure: bool) -> Target:
    """A gateway that runs, whose configuration allows chaos.

    Raises:
        ConfigError: It can't be attached to.
    """
    target = Target(address=endpoint(url, sure=sure), inside=Inside(state_dir))
    await target.state()
    return target


@contextlib.asynccontextmanager
async def started(
    config: Path,
    folder: Path,
    *,
    reroutes: Mapping[str, str],
    stubbed: Mapping[str, str],
    stub_hosts: bool,
    planted: str = "",
) -> AsyncGenerator[Target]:
    """Starts a gateway and ends it with the context.

    Args:
        config: The configuration, which stays as it is.
        folder: Where its log and its socket go.
        reroutes: Base URLs of the proxies before its providers, by deployment.
        stubbed: Base URLs of stubs instead of its providers, by deployment.
        stub_hosts: Whether stubs take the place of its local models.
        planted: Name of a planted bug.

    Raises:
        ConfigError: It doesn't start; its log says why.
    """
    state_dir = folder / STATE
    orders = Orders(
        state_dir=str(state_dir),
        reroutes=dict(reroutes),
        stubbed=dict(stubbed),
        stub_hosts=stub_hosts,
        planted=planted,
        parent=os.getpid(),
    )
    place = folder / "orders.json"
    place.write_bytes(msgspec.json.encode(orders))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchestrator", "serve", str(config)),
        *("--host", "127.0.0.1", "--port", "0", "--chaos-orders", str(place)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # ^C is for the run, which then ends it in its own order
    )
    keeping: asyncio.Task[None] | None = None
    try:
        url = await _listening(process, folder / LOG)
        keeping = asyncio.create_task(_keep(process, folder / LOG))
        yield Target(
            address=endpoint(url, sure=False),
            inside=Inside(state_dir),
            process=process,
            orders=place,
        )
    finally:
        if process.returncode is None:
            process.kill()  # the run is over: whoever wanted it to drain has asked it to
            await process.wait()
        if keeping is not None:
            await asyncio.gather(keeping, return_exceptions=True)


async def _listening(process: asyncio.subprocess.Process, log: Path) -> str:
    reader = process.stdout
    try:
        async with asyncio.timeout(START_SECONDS):
            with log.open("ab") as file:
                while reader is not None and (line := await reader.readline()):
                    file.write(line)
                    if found := _LISTENING.search(line):
                        return found[1].decode()
    except TimeoutError:
        pass
    raise ConfigError(f"the gateway didn't start: {_tail(log) or 'it said nothing'}")


def _tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-500:].strip()


async def _keep(process: asyncio.subprocess.Process, log: Path) -> None:
    reader = process.stdout
    with log.open("ab", buffering=0) as file:
        while reader is not None and (data := await reader.read(1 << 16)):
            file.write(data)
