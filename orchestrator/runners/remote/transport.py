"""The wire to a provider: httpx's transport interface over connections of our own.

httpx's own pool costs more with every connection it holds (encode/httpx#3215), and aiohttp's client
costs three times what this does for a request of one token (ARCHITECTURE.md, Decisions). What is
here is little: HTTP/1.1 to an origin or through a proxy, TLS by the event loop, the grammar by
llhttp (`http1.py`). HTTP/2 and methods whose answers have no body are not supported.

There are no timeouts here: the lease of an attempt measures each of its steps. There is no upper
bound of connections either: the slots are the bound.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

import httpx
from typing_extensions import override

from orchestrator.errors import describe
from orchestrator.runners.remote.connection import Connection, Incoming
from orchestrator.runners.remote.dial import dial
from orchestrator.runners.remote.proxy import Proxy, tunnel

IDLE_CONNECTION_SECONDS = 15.0

# httpcore's names, so that a runner's `trace` extension hears the same from every transport
CONNECTING = "connection.connect_tcp.started"
SENDING = "http11.send_request_headers.started"

Trace = Callable[[str, dict[str, object]], Awaitable[None]]
"""httpx's `trace` extension: told what happens to a request, by name."""

Origin = tuple[bytes, bytes, int | None]
PORTS = {b"http": 80, b"https": 443}
WITHOUT_BODY = ("HEAD", "CONNECT")


class Pieces(httpx.AsyncByteStream):
    """A request's body in memory, which nobody has to join.

    Args:
        pieces: At least one; the first is sent together with the head.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


class Http1Transport(httpx.AsyncBaseTransport):
    """One pool of connections, used on one loop.

    Args:
        ssl_context: Whom to trust for `https`; None where only `http` is spoken.
        proxy: What stands between; None is a direct way.
    """

    def __init__(
        self, ssl_context: ssl.SSLContext | None = None, *, proxy: Proxy | None = None
    ) -> None:
        self._ssl_context = ssl_context
        self._proxy = proxy
        self._free: dict[Origin, deque[Connection]] = {}
        """The one that was used last stands last and is used next, so the others can age."""
        self._connections: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        free = sum(len(queue) for queue in self._free.values())
        return f"<Http1Transport {len(self._connections)} connections, {free} free>"

    @override
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request whose body is in memory and returns when the answer's headers are there.

        Raises:
            httpx.RequestError: No connection, or it broke, or what came isn't HTTP.
        """
        url = request.url
        origin = (url.raw_scheme, url.raw_host, url.port)
        head = _head_of(request, self._proxy if origin[0] == b"http" else None)
        stream = request.stream
        first, *more = stream.pieces if isinstance(stream, Pieces) else (request.content,)
        trace = cast("Trace | None", request.extensions.get("trace"))
        connection = self._take(origin)
        if connection is None:
            if trace is not None:
                await trace(CONNECTING, {})
            connection = await self._connect(origin, url.host)
        exchange: Incoming | None = None
        try:
            if trace is not None:
                await trace(SENDING, {})
            exchange = connection.send(head + first, more)
            await exchange.head()
        except BaseException:
            connection.abort()
            if exchange is not None:
                exchange.cut()
            raise
        parser = exchange.parser
        return httpx.Response(
            parser.status, headers=parser.headers, stream=exchange, request=request
        )

    @override
    async def aclose(self) -> None:
        """Closes every connection, and with it every stream that still runs."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        connections = list(self._connections)
        for connection in connections:
            connection.abort()
        for connection in connections:
            await connection.lost

    def _take(self, origin: Origin) -> Connection | None:
        free = self._free.get(origin)
        while free:
            connection = free.pop()
            if connection.usable:
                return connection
        return None

    async def _connect(self, origin: Origin, host: str) -> Connection:
        scheme, _, port = origin
        if scheme not in PORTS:
            raise httpx.UnsupportedProtocol(f"no transport for {scheme.decode()}://")
        tls = self._ssl_context if scheme == b"https" else None
        if tls is None and scheme == b"https":
            raise httpx.UnsupportedProtocol("https needs to be told whom to trust")

        def free(connection: Connection) -> None:
            self._release(origin, connection)

        def factory() -> Connection:
            return Connection(on_free=free, on_lost=self._connections.discard)

        try:
            proxy = self._proxy
            if proxy is None:
                connection = await dial(host, port or PORTS[scheme], tls, factory)
            elif tls is None:
                connection = await dial(proxy.host, proxy.port, None, factory)
            else:
                connection = await tunnel(proxy, host, port or PORTS[scheme], tls, factory)
        except OSError as error:
            raise httpx.ConnectError(describe(error)) from error
        if not connection.lost.done():
            self._connections.add(connection)
        return connection

    def _release(self, origin: Origin, connection: Connection) -> None:
        loop = asyncio.get_running_loop()
        connection.free_since = loop.time()
        self._free.setdefault(origin, deque()).append(connection)
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_CONNECTION_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Closes what nobody has used for a while."""
        loop = asyncio.get_running_loop()
        old = loop.time() - IDLE_CONNECTION_SECONDS
        for free in self._free.values():
            while free and (free[0].free_since <= old or not free[0].usable):
                free.popleft().abort()
        oldest = min((free[0].free_since for free in self._free.values() if free), default=None)
        self._sweeper = (
            None if oldest is None else loop.call_at(oldest + IDLE_CONNECTION_SECONDS, self._sweep)
        )


def _head_of(request: httpx.Request, proxy: Proxy | None) -> bytes:
    """A request's head as it goes over the wire, to a proxy if there is one.

    Raises:
        httpx.UnsupportedProtocol: Its answer would have no body, however it is framed.
        httpx.LocalProtocolError: A line end in a header would begin a header, or a request, anew.
    """
    if request.method in WITHOUT_BODY:
        raise httpx.UnsupportedProtocol(f"{request.method} is not supported")
    headers = request.headers.raw
    target = request.url.raw_path
    if proxy is not None:
        target = b"http://" + request.url.netloc + target
        if proxy.authorization is not None:
            headers = [*headers, (b"proxy-authorization", proxy.authorization.encode())]
    parts = [request.method.encode(), b" ", target, b" HTTP/1.1\r\n"]
    for name, value in headers:
        parts += (name, b": ", value, b"\r\n")
    parts.append(b"\r\n")
    head = b"".join(parts)
    lines = len(headers) + 2
    if head.count(b"\n") != lines or head.count(b"\r") != lines or b"\0" in head:
        raise httpx.LocalProtocolError("a header has characters that none can carry")
    return head
