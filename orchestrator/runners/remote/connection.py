"""One connection to a provider, with at most one exchange on it.

The connection belongs to the exchange from the request's first byte to the response's last one,
which the parser sees before the reader does: at that moment it goes back to its pool, with what is
still unread left to the reader. Whatever else ends an exchange closes the connection at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import httpx
from typing_extensions import override

from orchestrator.errors import describe
from orchestrator.runners.remote.http1 import ResponseParser

MAX_UNREAD_BYTES = 256 << 10
"""Beyond this the provider is not read from until the reader has caught up."""
WRITTEN_BYTES = 256 << 10
"""What is written at once: of 10 MB the system takes as much as it has room for, and TLS encrypts
all of it, in which nobody else has a turn."""


class Incoming(httpx.AsyncByteStream):
    """One response while it comes: its head to wait for, then its body to read."""

    __slots__ = ("_connection", "_fault", "_waiter", "parser")

    def __init__(self, connection: "Connection") -> None:
        self.parser = ResponseParser()
        self._connection: Connection | None = connection
        self._fault: httpx.RequestError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __repr__(self) -> str:
        return f"<Incoming {self._fault or self.parser}>"

    @property
    def ready(self) -> bool:
        """Whether the next read of the body has its answer without waiting."""
        parser = self.parser
        return bool(parser.pieces) or parser.complete or self._fault is not None

    async def head(self) -> None:
        """Waits for the headers.

        Raises:
            httpx.RequestError: The connection broke, or what came is no response.
        """
        while not self.parser.head_done:
            if self._fault is not None:
                raise self._fault
            await self._more()

    @override
    def __aiter__(self) -> "Incoming":
        return self

    async def __anext__(self) -> bytes:
        parser = self.parser
        while not parser.pieces:
            if self._fault is not None:
                raise self._fault
            if parser.complete:
                raise StopAsyncIteration
            await self._more()
        data = parser.take()
        if self._connection is not None and self._connection.paused:
            self._connection.read_on()
        return data

    @override
    async def aclose(self) -> None:
        """Cuts the connection, unless the whole response has come."""
        self.cut()

    def cut(self) -> None:
        """Closes the connection if it is still this exchange's; what wasn't read is gone."""
        if self._connection is not None:
            self._connection.abort()
            self.settle(httpx.ReadError("the response was closed"))

    def wake(self) -> None:
        """Something came."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def settle(self, fault: httpx.RequestError | None) -> None:
        """The connection isn't this exchange's any more; after what is unread comes the fault."""
        if self._connection is not None:  # else its reader has left before
            self._connection = None
            self._fault = fault
            self.wake()

    async def _more(self) -> None:
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None


class Connection(asyncio.Protocol):
    """One connection.

    Args:
        on_free: Called when it can carry another exchange.
        on_lost: Called once when it is gone.
    """

    __slots__ = (
        "_exchange",
        "_full",
        "_on_free",
        "_on_lost",
        "_transport",
        "_unsent",
        "free_since",
        "lost",
        "paused",
        "usable",
    )

    def __init__(
        self, on_free: "Callable[[Connection], None]", on_lost: "Callable[[Connection], None]"
    ) -> None:
        self._on_free = on_free
        self._on_lost = on_lost
        self._exchange: Incoming | None = None
        self._transport: asyncio.Transport | None = None
        self._unsent = deque[bytes | memoryview]()
        """What is left of a large request."""
        self._full = False
        """Whether the provider has to take some of it before more is written."""
        self.paused = False
        """Whether the provider isn't read from until the reader has caught up."""
        self.free_since = 0.0
        """Loop time, seconds; written by the pool."""
        self.usable = False
        """Whether a request may be sent on it."""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is gone."""

    def __repr__(self) -> str:
        state = "busy" if self._exchange is not None else "free" if self.usable else "closed"
        return f"<Connection {state}>"

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # what create_connection makes
        self.usable = True

    def send(self, request: bytes, more: Sequence[bytes] = ()) -> Incoming:
        """Sends a request, which begins an exchange.

        Args:
            request: All of it, or its begin.
            more: What follows it.

        Raises:
            httpx.ReadError: The connection is gone.
        """
        if self._transport is None or not self.usable:
            raise httpx.ReadError("the connection was closed before the request was sent")
        self._exchange = Incoming(self)
        if len(request) <= WRITTEN_BYTES and not more:
            self._transport.write(request)
        else:
            for piece in (request, *more):
                self._unsent.extend(_cut(piece))
            self._send_on()
        return self._exchange

    def abort(self) -> None:
        """Closes it now."""
        self.usable = False
        self._unsent.clear()
        if self._transport is not None:
            self._transport.abort()

    def read_on(self) -> None:
        """The reader has caught up."""
        if self._transport is not None:
            self.paused = False
            self._transport.resume_reading()

    @override
    def pause_writing(self) -> None:
        self._full = True

    @override
    def resume_writing(self) -> None:
        self._full = False
        self._send_on()

    def _send_on(self) -> None:
        """Writes the next piece of a large request, and the one after it in another turn."""
        if self._full or not self._unsent or self._transport is None:
            return
        self._transport.write(self._unsent.popleft())
        if self._unsent:
            asyncio.get_running_loop().call_soon(self._send_on)

    @override
    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None:  # nobody asked
            self.abort()
            return
        parser = exchange.parser
        try:
            parser.feed(data)
        except httpx.RemoteProtocolError as error:
            self._finish(error)
            return
        if parser.complete:
            self._finish(None)
            return
        if parser.size > MAX_UNREAD_BYTES and not self.paused and self._transport is not None:
            self.paused = True
            self._transport.pause_reading()
        exchange.wake()

    @override
    def eof_received(self) -> None:
        self.usable = False
        if self._exchange is not None:
            self._finish(_cut_off(self._exchange.parser))

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.usable = False
        self._unsent.clear()
        if self._exchange is not None:
            fault = (
                _cut_off(self._exchange.parser) if exc is None else httpx.ReadError(describe(exc))
            )
            self._finish(fault)
        if not self.lost.done():
            self.lost.set_result(None)
        self._on_lost(self)

    def _finish(self, fault: httpx.RequestError | None) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None or self._transport is None:
            return
        # a server that answers before it has read the request may never read the rest of it
        sent = not self._unsent and not self._transport.get_write_buffer_size()
        if fault is None and exchange.parser.reusable and sent and self.usable:
            if self.paused:
                self.read_on()
            self._on_free(self)
        else:
            self.abort()
        exchange.settle(fault)


def _cut(piece: bytes) -> Iterator[bytes | memoryview]:
    if len(piece) <= WRITTEN_BYTES:
        yield piece
        return
    whole = memoryview(piece)
    for start in range(0, len(piece), WRITTEN_BYTES):
        yield whole[start : start + WRITTEN_BYTES]


def _cut_off(parser: ResponseParser) -> httpx.RemoteProtocolError | None:
    try:
        parser.end()
    except httpx.RemoteProtocolError as error:
        return error
    return None
