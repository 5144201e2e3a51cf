"""`orchestrator serve` as a process of its own."""

import asyncio
import contextlib
import re
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx

ROOT = Path(__file__).parent.parent.parent


class GatewayProcess:
    """A running gateway; `output` is what it has printed so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.output = ""
        self.url = ""

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def prints(self, pattern: str) -> re.Match[str]:
        """Reads on until a line matches."""
        assert self._process.stdout is not None
        while line := (await self._process.stdout.readline()).decode():
            self.output += line
            if match := re.search(pattern, line):
                return match
        raise AssertionError(f"it ended without {pattern!r}:\n{self.output}")

    async def ends(self) -> int:
        """Reads to the end and returns the exit code."""
        assert self._process.stdout is not None
        self.output += (await self._process.stdout.read()).decode()
        return await self._process.wait()

    def children(self) -> list[int]:
        """The processes that it has started."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(child) for child in path.read_text(encoding="utf-8").split()]


@contextlib.asynccontextmanager
async def gateway_process(config: Path) -> AsyncGenerator[tuple[GatewayProcess, httpx.AsyncClient]]:
    """Starts it on a free port; ends it, in the end by force."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orchestrator", "serve", str(config), "--port", "0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=ROOT,
    )
    gateway = GatewayProcess(process)
    try:
        gateway.url = (await gateway.prints(r"listening on (http://\S+);"))[1]
        async with httpx.AsyncClient(base_url=gateway.url, timeout=60) as client:
            yield gateway, client
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
