"""Takes the file descriptors of a gateway away: it may open few more, and those are taken.

The limit is lowered from outside (`prlimit`), and callers who say nothing take what is left. What
shows that it landed is seen at the process: every number below its limit is in use.
"""

import asyncio
import contextlib
import resource
from collections.abc import AsyncGenerator
from itertools import count
from pathlib import Path

from orchestrator.chaos.live.guardian import Guardian, few_files
from orchestrator.chaos.processes import ProcessId
from orchestrator.chaos.scenario.sections import Fault

LOOK = 0.005
MORE = 8
"""Silent callers beyond the numbers that are left."""


class Starving:
    """The descriptors of one process."""

    def __init__(self, process: ProcessId, guardian: Guardian) -> None:
        self._process = process
        self._guardian = guardian
        self._soft, self._hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        self._left: str | None = None

    def __repr__(self) -> str:
        return f"<Starving {self._process.pid}, {'begun' if self._left else 'not begun'}>"

    def begin(self, spare: int) -> int:
        """Leaves so many free numbers; returns the limit.

        Raises:
            ProcessLookupError: It is gone.
        """
        used = _numbers(self._process.pid)
        limit = next(n for n in count(1) if n - sum(one < n for one in used) == spare)
        self._left = few_files(self._process, self._soft, self._hard)
        self._guardian.remember(self._left)  # before the fault, as every undo
        self._set(limit)
        return limit

    def end(self) -> None:
        """Gives them back."""
        if self._left is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._set(self._soft)
        self._guardian.forget(self._left)
        self._left = None

    def exhausted(self, limit: int) -> bool:
        """Whether every number below the limit is in use."""
        return sum(one < limit for one in _numbers(self._process.pid)) >= limit

    def _set(self, soft: int) -> None:
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (soft, self._hard))


def _numbers(pid: int) -> list[int]:
    try:
        return [int(place.name) for place in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        raise ProcessLookupError(pid) from None


@contextlib.asynccontextmanager
async def silent_callers(address: tuple[str, int], number: int) -> AsyncGenerator[None]:
    """So many connections over which nothing is said."""
    writers: list[asyncio.StreamWriter] = []
    try:
        for _ in range(number):
            with contextlib.suppress(OSError):  # refused is as good: there is no room for more
                writers.append((await asyncio.open_connection(*address))[1])
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


async def starved(
    process: ProcessId, address: tuple[str, int], guardian: Guardian, fault: Fault
) -> AsyncGenerator[str]:
    """Takes the files of a gateway for as long as the fault says, and gives them back.

    Args:
        process: The gateway's.
        address: Where it takes callers.
        guardian: Told of the undo before the fault.
        fault: How many files are left, and for how long.

    Yields:
        What shows that it landed, once; nothing if it doesn't.
    """
    loop = asyncio.get_running_loop()
    end, landed = loop.time() + fault.for_, False
    with contextlib.suppress(ProcessLookupError):  # it ended of something else
        starving = Starving(process, guardian)
        try:
            limit = starving.begin(fault.n)
            async with silent_callers(address, fault.n + MORE):
                while (left := end - loop.time()) > 0:
                    if not landed and starving.exhausted(limit):
                        landed = True
                        yield f"{limit} of {limit} files are open"
                    await asyncio.sleep(left if landed else min(LOOK, left))
        finally:
            starving.end()
