"""Does the faults of workers: signals to the real processes of model hosts, and their undoing.

Each undo is told to the guardian before its fault is done. What shows that a fault landed is seen
from outside, at the process, never taken from having sent a signal.
"""

import asyncio
import contextlib
import random
import resource
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from orchestrator.chaos.attendant.service import DebugState
from orchestrator.chaos.live.guardian import Guardian, continuing, unlimited
from orchestrator.chaos.live.target import Target
from orchestrator.chaos.processes import Held, NotOursError, ProcessId, state_of
from orchestrator.chaos.scenario.sections import ANY, Fault

DEATH_SECONDS = 15.0
STOP_SECONDS = 1.0
START_SECONDS = 15.0
LOOK_SECONDS = 0.005
DUTY_SECONDS = 0.1
SIGNALS = {"crash": signal.SIGKILL, "segv": signal.SIGSEGV, "exit": signal.SIGTERM}
STOPPED = "T"
IS_STOPPED = f"state {STOPPED} in /proc"

Hosts = Callable[[], Awaitable[list[tuple[str, ProcessId]]]]
"""The hosts that live now, each with its deployment."""
Landed = Callable[[str, str], None]
"""(deployment, evidence)."""


def longest_lease(state: DebugState) -> float:
    """Seconds after which any of a gateway's hosts that makes no progress is killed."""
    return max((one.stall for one in state.deployments), default=0.0)


def hosts_of(target: Target) -> Hosts:
    """The hosts of a gateway, as it tells them itself."""

    async def hosts() -> list[tuple[str, ProcessId]]:
        return [
            (one.name, ProcessId(*host))
            for one in (await target.state()).deployments
            for host in one.hosts
        ]

    return hosts


class Hand:
    """Breaks the workers of one gateway.

    Args:
        gateway: The process from which all targets must descend.
        hosts: Who lives now.
        guardian: Told of every undo beforehand.
        chance: Chooses.
        lease: Seconds after which a host that makes no progress is killed.
    """

    def __init__(
        self,
        gateway: int,
        hosts: Hosts,
        guardian: Guardian,
        chance: random.Random,
        *,
        lease: float = 0.0,
    ) -> None:
        self._gateway = gateway
        self._hosts = hosts
        self._guardian = guardian
        self._chance = chance
        self._patience = DEATH_SECONDS + lease
        self._stopped: dict[ProcessId, None] = {}

    def __repr__(self) -> str:
        return f"<Hand at {self._gateway}, {len(self._stopped)} stopped>"

    async def strike(self, fault: Fault, landed: Landed) -> None:
        """Does one fault and undoes it; a fault that finds nobody doesn't land."""
        hosts = await self._targets(fault)
        if not hosts:
            return
        if fault.do == "swizzle":
            await self._swizzle(hosts, fault, landed)
            return
        name, process = self._chance.choice(hosts)
        try:
            with Held(process, below=self._gateway) as held:
                if evidence := await self._do(held, fault):
                    landed(name, evidence)
                if fault.do == "stop":
                    await asyncio.sleep(fault.for_)
                    self._go_on(held)
        except NotOursError:
            pass  # it died of something else before it could be broken: nothing landed

    async def _targets(self, fault: Fault) -> list[tuple[str, ProcessId]]:
        """Whom it may meet; one that is just starting is waited for."""
        loop = asyncio.get_running_loop()
        end = loop.time() + START_SECONDS
        while True:
            hosts = await self._hosts()
            meant = [(name, process) for name, process in hosts if fault.whom in (ANY, name)]
            if meant or loop.time() > end:
                return meant
            await asyncio.sleep(DUTY_SECONDS)

    def heal(self) -> None:
        """Lets all go on that are stopped."""
        for process in tuple(self._stopped):
            try:
                with Held(process) as held:
                    self._go_on(held)
            except NotOursError:
                self._forget(process)

    async def _do(self, held: Held, fault: Fault) -> str:
        """Returns what shows that it landed; empty if it didn't."""
        match fault.do:
            case "stop":
                return IS_STOPPED if await self._stop(held) else ""
            case "slow":
                return await self._slow(held, fault)
            case "wedge":
                held.send(signal.SIGUSR1)
                ended = await _ends(held, self._patience)
            case "oom":
                ended = await self._starve(held, fault)
            case _:
                held.send(SIGNALS[fault.do])
                ended = await _ends(held, self._patience)
        return "the process ended" if ended else ""

    async def _stop(self, held: Held) -> bool:
        self._guardian.remember(continuing(held.which))
        self._stopped[held.which] = None
        held.send(signal.SIGSTOP)
        loop = asyncio.get_running_loop()
        end = loop.time() + STOP_SECONDS
        while loop.time() < end:  # the kernel tells nobody of it
            if state_of(held.which.pid) == STOPPED:
                return True
            await asyncio.sleep(LOOK_SECONDS)
        return False

    def _go_on(self, held: Held) -> None:
        held.send(signal.SIGCONT)
        self._forget(held.which)

    def _forget(self, process: ProcessId) -> None:
        self._stopped.pop(process, None)
        self._guardian.forget(continuing(process))

    async def _slow(self, held: Held, fault: Fault) -> str:
        loop = asyncio.get_running_loop()
        began, seen, stood = loop.time(), 0, 0.0
        while loop.time() < began + fault.for_ and not held.ended():
            if await self._stop(held):
                seen += 1
                stood -= loop.time()
                await asyncio.sleep(DUTY_SECONDS * (1.0 - fault.duty))
                stood += loop.time()
            self._go_on(held)
            await asyncio.sleep(DUTY_SECONDS * fault.duty)
        seconds = loop.time() - began
        if seen <= 1:
            return ""
        return f"{IS_STOPPED} {seen} times, for {stood / seconds:.0%} of {seconds:.1f} s"

    async def _starve(self, held: Held, fault: Fault) -> bool:
        pid = held.which.pid
        try:
            soft, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        except ProcessLookupError:
            return False
        undo = unlimited(held.which, soft, hard)
        self._guardian.remember(undo)
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_AS, (_used(pid) + fault.size, hard))
        ended = await _ends(held, self._patience)
        if not ended:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))
        self._guardian.forget(undo)
        return ended

    async def _swizzle(
        self, hosts: list[tuple[str, ProcessId]], fault: Fault, landed: Landed
    ) -> None:
        some = self._chance.sample(hosts, self._chance.randint(1, len(hosts)))
        with contextlib.ExitStack() as stack:
            held: list[Held] = []
            for name, process in some:
                with contextlib.suppress(NotOursError):
                    held.append(stack.enter_context(Held(process, below=self._gateway)))
                    if await self._stop(held[-1]):
                        landed(name, IS_STOPPED)
                    await asyncio.sleep(fault.interval)
            await asyncio.sleep(fault.for_)
            self._chance.shuffle(held)
            for one in held:
                self._go_on(one)
                await asyncio.sleep(fault.interval)


def _used(pid: int) -> int:
    """Bytes of address space that a process has.

    Raises:
        ProcessLookupError: It is gone.
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]
    except (OSError, IndexError):
        raise ProcessLookupError(pid) from None
    return int(pages) * resource.getpagesize()


async def _ends(held: Held, seconds: float) -> bool:
    """Waits for the end of a process, as its pidfd tells it."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(held.fileno(), ended.set)
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(held.fileno())
    return True
