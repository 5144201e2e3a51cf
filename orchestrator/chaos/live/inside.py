"""The socket of a gateway that may be broken, from the side of whoever breaks it."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from orchestrator.chaos.attendant.service import SOCKET, Command, DebugState
from orchestrator.chaos.journal import Event
from orchestrator.errors import ConfigError
from orchestrator.points import Point

LINE_BYTES = 1 << 22
_events = msgspec.json.Decoder(Event)


class Inside:
    """What can be asked of and done to a gateway from within.

    Args:
        state_dir: The folder that its configuration names.
    """

    def __init__(self, state_dir: Path) -> None:
        self._place = state_dir / SOCKET
        self._follower: asyncio.Task[None] | None = None
        self.following = asyncio.Event()
        """Set while lines come in."""

    async def state(self) -> DebugState:
        """Everything that it knows of itself.

        Raises:
            ConfigError: It doesn't answer.
        """
        return msgspec.json.decode(await self._ask(Command(do="state")), type=DebugState)

    async def do(self, what: str, *, deployment: str = "", seconds: float = 0.0) -> None:
        """Breaks something; returns when that is done.

        Raises:
            ConfigError: It can't be done.
        """
        line = await self._ask(Command(do=what, deployment=deployment, seconds=seconds))
        answer = msgspec.json.decode(line, type=dict[str, str])
        if "error" in answer:
            raise ConfigError(answer["error"])

    async def passage(self, point: Point, nth: int, deployments: list[str]) -> str:
        """Waits until so many have passed a point from now on; returns where the last one did.

        Args:
            point: Which.
            nth: How many, at least 1.
            deployments: Whose passages count.

        Raises:
            ConfigError: The gateway ended meanwhile.
        """
        command = Command(do="passage", point=point, nth=nth, deployments=deployments)
        answer = msgspec.json.decode(await self._ask(command), type=dict[str, str])
        if "error" in answer:
            raise ConfigError(answer["error"])
        return answer["deployment"]

    async def follow(self, take: Callable[[Event], None]) -> None:
        """Gives every event to `take` from now on, until `leave`."""
        self._follower = asyncio.create_task(self._follow(take))
        started = asyncio.create_task(self.following.wait())
        await asyncio.wait({started, self._follower}, return_when=asyncio.FIRST_COMPLETED)
        started.cancel()

    async def leave(self) -> None:
        """Follows no longer."""
        if self._follower is not None:
            self._follower.cancel()
            await asyncio.gather(self._follower, return_exceptions=True)

    async def _follow(self, take: Callable[[Event], None]) -> None:
        reader, writer = await asyncio.open_unix_connection(self._place, limit=LINE_BYTES)
        try:
            writer.write(b'{"do":"follow"}\n')
            await reader.readline()
            self.following.set()
            while line := await reader.readline():
                take(_events.decode(line))
        except (ConnectionError, msgspec.DecodeError):
            pass  # the gateway died in the middle of a line
        finally:
            writer.close()

    async def _ask(self, command: Command) -> bytes:
        try:
            reader, writer = await asyncio.open_unix_connection(self._place, limit=LINE_BYTES)
        except OSError as error:
            raise ConfigError(
                f"{self._place}: no gateway answers there ({error.strerror}); chaos.enabled and"
                " chaos.state_dir in its configuration allow it"
            ) from error
        with contextlib.closing(writer):
            writer.write(msgspec.json.encode(command) + b"\n")
            try:
                line = await reader.readline()
            except ConnectionError:  # it had no descriptor left for us, or ended
                line = b""
        if not line:
            raise ConfigError(f"{self._place}: the gateway broke off")
        return line
