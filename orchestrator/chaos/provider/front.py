"""The server that stands in a provider's place, and what it counts."""

import asyncio
import contextlib
import random
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Self

from orchestrator.chaos.provider.toxics import BEFORE_THE_ANSWER, Harm, Landed, Toxic, Toxics
from orchestrator.chaos.provider.wire import Asked, GoneError, Wire
from orchestrator.chaos.provider.wreck import SSE_HEADERS, Wreck, name_in

LOOPBACK = "127.0.0.1"


class Reply:
    """What the origin of an answer says.

    Args:
        status: HTTP status.
        events: The events of a stream; None if the answer is whole.
        body: The whole answer.
        headers: Of a whole answer.
    """

    def __init__(
        self,
        status: int,
        *,
        events: AsyncIterator[bytes] | None = None,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.events = events
        self.body = body
        self.headers = headers or {}


Origin = Callable[[Asked], AbstractAsyncContextManager[Reply]]
"""Where answers come from: the stub itself, or the provider behind the proxy."""


class Front(ABC):
    """Listens on loopback while its context is open; see `Stub` and `Proxy`.

    Args:
        port: 0 takes a free one.
        seed: Of the choice whom a toxic meets.
        on_landed: Told of every strike of a toxic.
        on_start: Told of every request that arrives, with its name if that is known.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        seed: int = 0,
        on_landed: Landed | None = None,
        on_start: Callable[[str | None], None] | None = None,
    ) -> None:
        self.toxics = Toxics(random.Random(seed), on_landed)
        self.requests = 0
        self.open_streams = 0
        self._port = port
        self._on_start = on_start
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def origin(self, asked: Asked) -> AbstractAsyncContextManager[Reply]:
        """Where the answer comes from."""

    async def __aenter__(self) -> Self:
        """Begins to listen.

        Raises:
            OSError: The port can't be had.
        """
        self._server = await asyncio.start_server(self._serve, LOOPBACK, self._port, backlog=512)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.toxics.reset()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        wire = Wire(reader, writer)
        try:
            if (refused := self.toxics.meets(_refuses_all)) is not None:
                self.toxics.strike(refused, None)
                wire.reset()
            while (asked := await wire.read()) is not None:
                await self._answer(asked, wire)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, was cut off, or this server ends: the task is over
        finally:
            await wire.close()

    async def _answer(self, asked: Asked, wire: Wire) -> None:
        self.requests += 1
        self.open_streams += 1
        name = name_in(asked)
        if self._on_start is not None:
            self._on_start(name)
        watch = wire.watch()
        try:
            await self._spoilt(asked, wire, Wreck(self.toxics, wire, name))
        finally:
            self.open_streams -= 1
            watch.cancel()
            # the read must be over before the next one on the same connection
            with contextlib.suppress(asyncio.CancelledError):
                await watch

    async def _spoilt(self, asked: Asked, wire: Wire, wreck: Wreck) -> None:
        first = self.toxics.meets(_is_before)
        sent = first is not None and first.toxic.where == "after_send"
        if first is not None and not sent and await wreck.before(first):
            return
        async with self.origin(asked) as reply:
            if first is not None and sent and await wreck.before(first):
                return
            if first is not None and first.toxic.harm is Harm.REPLY_LOST:
                wire.reset()
            if reply.events is None:
                await wire.whole(reply.status, reply.body, reply.headers)
                return
            later = self.toxics.meets(lambda toxic: not _is_before(toxic))
            await wire.head(reply.status, SSE_HEADERS)
            await wreck.stream(reply.events, later)


def _refuses_all(toxic: Toxic) -> bool:
    return toxic.harm is Harm.REFUSED and toxic.where == "before_send"


def _is_before(toxic: Toxic) -> bool:
    return toxic.harm in BEFORE_THE_ANSWER


__all__ = ["LOOPBACK", "Front", "GoneError", "Reply"]
