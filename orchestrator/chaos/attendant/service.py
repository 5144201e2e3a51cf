"""The socket through which `orchestrator chaos` looks into a gateway and breaks it from within.

A Unix socket in a folder that only its user may enter. A client sends one JSON object a line:

    {"do": "state"}                         one line: what runs, what is held, which processes
    {"do": "follow"}                        from then on a line for each passage; nothing else
    {"do": "passage", "point": POINT, "nth": 3, "deployments": [NAME]}
                                            one line when so many have passed that point there
    {"do": "block", "seconds": 2.0}         the event loop does nothing for so long
    {"do": "poison", "deployment": NAME}    ends that engine's generation
    {"do": "kill-supervisor", "deployment": NAME}

Every other command is answered with one line, `{"error": ...}` if it could not be done. Processes
are killed by whoever asks, not here: only from outside is it as sudden as in life.
"""

import asyncio
import contextlib
import logging
import os
import stat
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from orchestrator.actors.runtime import kill
from orchestrator.chaos.attendant.witness import Witness
from orchestrator.chaos.processes import ProcessId
from orchestrator.deployment import RunningDeployment
from orchestrator.errors import ConfigError
from orchestrator.points import Point
from orchestrator.wiring import System

logger = logging.getLogger(__name__)

SOCKET = "gateway.sock"
PRIVATE = 0o700
LONGEST_BLOCK = 30.0
LAST_WORDS_SECONDS = 1.0
UNREAD_BYTES = 64 << 20
"""A follower who leaves more unread is let go."""


class DebugDeployment(msgspec.Struct, frozen=True, kw_only=True):
    """One deployment from within."""

    name: str
    state: str
    ready: bool
    slots: int
    live_slots: int
    queued: int
    queue_capacity: int
    waiting: int
    """Places beyond that for those whom it lets wait instead."""
    aging: float | None
    """Seconds of waiting that are worth a class; None if nothing is."""
    inflight: int
    permits: int
    breaker: str
    generation: int
    max_restarts: int
    within: float
    stall: float
    """Seconds that a step may take without progress."""
    requests_per_minute: float | None
    probes: int
    stays_down: bool
    changes: int
    """How often its state or the number of its live slots has changed."""
    hosts: list[tuple[int, int]]
    """Number and start time of the processes of local models that serve."""
    spares: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])
    """The same of those that wait to take their place."""


class DebugState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole gateway from within."""

    pid: int
    started: int
    tasks: int
    deployments: list[DebugDeployment]
    routes: dict[str, list[str]]
    retiring: int = 0
    """Deployments of before a reload that are still there."""
    planted: str = ""


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a client."""

    do: str
    deployment: str = ""
    deployments: list[str] = []
    seconds: float = 0.0
    point: Point = Point.SUBMIT_REGISTERED
    nth: int = 1


def state_of(system: System, changes: Mapping[str, int], planted: str = "") -> DebugState:
    """Reads the state of everything; asks no actor."""
    return DebugState(
        pid=os.getpid(),
        started=ProcessId.of(os.getpid()).started,
        tasks=len(asyncio.all_tasks()),
        planted=planted,
        retiring=len(system.retiring),
        routes={
            name: [deployment.name for deployment in route.deployments]
            for name, route in system.router.routes.items()
        },
        deployments=[
            DebugDeployment(
                name=name,
                state=running.inflight.state_name,
                ready=running.ready,
                slots=running.plan.slots,
                live_slots=running.inflight.live_slots,
                queued=len(running.queue),
                queue_capacity=running.plan.queue_capacity,
                waiting=running.plan.queue.waiting if running.plan.queue.on_full == "wait" else 0,
                aging=running.plan.queue.aging,
                inflight=len(running.inflight),
                permits=running.gates.limiter.outstanding,
                breaker=running.gates.breaker.state,
                generation=running.inflight.generation,
                max_restarts=running.plan.supervision.max_restarts,
                within=running.plan.supervision.within,
                stall=max(running.plan.steps.first_token, running.plan.steps.inter_token),
                requests_per_minute=running.plan.limits.requests_per_minute,
                probes=running.plan.breaker.probes,
                stays_down=running.plan.supervision.on_poison == "stay",
                changes=changes.get(name, 0),
                hosts=_processes(running.plan.factory.processes()),
                spares=_processes(running.plan.factory.spares()),
            )
            for name, running in system.deployments.items()
        ],
    )


def _processes(pids: Sequence[int]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            found.append((pid, ProcessId.of(pid).started))
    return found


class Service:
    """Answers on the socket of one gateway.

    Args:
        system: What runs.
        witness: Whom followers follow.
        planted: Name of the planted bug, if there is one.
    """

    def __init__(self, system: System, witness: Witness, planted: str = "") -> None:
        self._system = system
        self._witness = witness
        self._planted = planted
        self._clients: set[asyncio.Task[None]] = set()
        self._changes: Counter[str] = Counter()
        for running in system.deployments.values():
            self.count_changes(running)

    @contextlib.asynccontextmanager
    async def listening(self, folder: Path) -> AsyncGenerator[None]:
        """Listens while the context is open.

        Raises:
            ConfigError: The folder can't be used.
        """
        place = _private(folder) / SOCKET
        place.unlink(missing_ok=True)
        try:
            server = await asyncio.start_unix_server(self._serve, place)
        except OSError as error:
            raise ConfigError(f"chaos.state_dir: no socket in {folder}: {error}") from error
        logger.warning("chaos is enabled: whoever may open %s can break this gateway", place)
        try:
            yield
        finally:
            server.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)
            place.unlink(missing_ok=True)

    def count_changes(self, running: RunningDeployment) -> None:
        """Counts how often a deployment changes, from its beginning on."""
        running.inflight.observe(partial(self._note_change, running.plan.name))

    def _note_change(self, deployment: str) -> None:
        self._changes[deployment] += 1

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._clients.add(task)
            task.add_done_callback(self._clients.discard)
        try:
            while line := await reader.readline():
                await self._answer(line, reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the gateway ends: either way this task is over
        finally:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                async with asyncio.timeout(LAST_WORDS_SECONDS):
                    await writer.wait_closed()

    async def _answer(
        self, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            command = msgspec.json.decode(line, type=Command)
        except msgspec.DecodeError as error:
            writer.write(_line({"error": str(error)}))
            return
        if command.do == "follow":
            await self._follow(reader, writer)
            return
        if command.do == "passage":
            await self._await_passage(command, reader, writer)
            return
        writer.write(self._do(command))
        await writer.drain()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport

        def tell(line: bytes) -> None:
            if transport.get_write_buffer_size() > UNREAD_BYTES:
                transport.abort()
            else:
                writer.write(line)

        leave = self._witness.follow(tell)
        try:
            writer.write(_line({"following": True}))
            await reader.read()  # a follower says nothing more: what ends this is its going away
        finally:
            leave()

    async def _await_passage(
        self, command: Command, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        passed, leave = self._witness.expect(command.point, command.nth, command.deployments)
        gone = asyncio.ensure_future(reader.read())  # who waits for it says nothing meanwhile
        try:
            await asyncio.wait({passed, gone}, return_when=asyncio.FIRST_COMPLETED)
            if passed.done():
                writer.write(_line({"done": "passage", "deployment": passed.result()}))
                await writer.drain()
        finally:
            gone.cancel()
            leave()

    def _do(self, command: Command) -> bytes:
        running = self._system.deployments.get(command.deployment)
        match command.do:
            case "state":
                return (
                    msgspec.json.encode(state_of(self._system, self._changes, self._planted))
                    + b"\n"
                )
            case "block":
                # a wait that lets nothing else run is what this is for
                threading.Event().wait(min(command.seconds, LONGEST_BLOCK))
            case "poison" if running is not None:
                running.poison("drill", RuntimeError(f"poison drill in {command.deployment}"))
            case "kill-supervisor" if running is not None and running.supervisor is not None:
                kill(running.supervisor)
            case _:
                return _line({"error": f"can't do {command.do!r} to {command.deployment!r}"})
        return _line({"done": command.do})


def _line(answer: dict[str, str | bool]) -> bytes:
    return msgspec.json.encode(answer) + b"\n"


def _private(folder: Path) -> Path:
    """Makes the folder, for its user alone.

    Raises:
        ConfigError: It can't be made, or others may enter it.
    """
    try:
        folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise ConfigError(f"chaos.state_dir: {folder}: {error.strerror}") from error
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"chaos.state_dir: {folder} must belong to this user and be closed to all others"
        )
    return folder
