"""The HTTP server: uvicorn with its limits set, and with the signals left to us."""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Generator

import msgspec
import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from orchestrator.gateway.failure import error_object
from orchestrator.gateway.heads import HeadHolder

BACKLOG = 2048
KEEP_ALIVE = 75
"""Seconds; longer than the usual idle time of load balancers, so that they close first."""
CLOSE_LIMIT = 5
"""Seconds that responses have to be written once all requests have ended."""
LINE = "orchestrator.line"
"""ASGI extension: `abort` ends a connection whose peer reads no more, without waiting for it;
`watch` takes what is called once when the peer is gone, in place of what it took before. A task
that waits for ASGI's disconnect would say the same for a twentieth of a short request's cost."""
MAX_HEAD_BYTES = 64 << 10
"""Also the most of a chunk's size line: whatever says nothing until it is complete."""
MAX_HEADERS = 100


class BindError(Exception):
    """The address can't be used."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(f"can't listen on {host}:{port}: {cause.strerror or cause}")


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too large: the parser itself has no limit.

    What is complete is counted as it is told. What isn't, one header without an end, is counted as
    it comes, for the parser joins its pieces anew with each read: the cost of 20 MB were minutes.
    """

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(HeadHolder(transport))
        self._gone = False
        self._on_gone: Callable[[], None] | None = None
        self._steps = 0
        self._unfinished_bytes = 0

    @override
    def data_received(self, data: bytes) -> None:
        steps = self._steps
        super().data_received(data)
        if self._steps != steps:
            self._unfinished_bytes = 0
            return
        self._unfinished_bytes += len(data)
        if self._unfinished_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("the request's head, or a chunk's, is too large")

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._gone = True
        self._watch(self._on_gone)

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._steps += 1
        self._head_bytes = 0
        self.scope["extensions"] = {LINE: {"abort": self.transport.abort, "watch": self._watch}}

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._steps += 1
        super().on_headers_complete()

    @override
    def on_body(self, body: bytes) -> None:
        self._steps += 1
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._steps += 1
        super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        body = msgspec.json.encode(
            error_object(msg, kind="invalid_request_error", code="invalid_http")
        )
        self.transport.write(
            b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()

    def _watch(self, on_gone: Callable[[], None] | None) -> None:
        self._on_gone = on_gone
        if self._gone and on_gone is not None:
            self._on_gone = None
            on_gone()

    def _count(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            raise ValueError("the request's head is too large")  # the parser makes it a 400


class Listener(uvicorn.Server):
    """Serves an application on a socket that is bound already.

    Args:
        app: The application.
        sock: See `bind`.
    """

    def __init__(self, app: ASGIApp, sock: socket.socket) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=CLOSE_LIMIT,
            )
        )
        self._socket = sock
        self.listening = asyncio.Event()
        """Set once connections are accepted."""

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._socket.getsockname()[1]

    async def run_until_closed(self) -> None:
        """Serves until `close` was called and every response is written."""
        await self.serve([self._socket])

    def close(self) -> None:
        """Asks it to stop."""
        self.should_exit = True

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @override
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        # uvicorn would raise them again at the end, and the exit code would not be 0
        yield


def bind(host: str, port: int) -> socket.socket:
    """Takes the address, before anything slow is done.

    Raises:
        BindError: It is taken, or isn't this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise BindError(host, port, error) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        # a second process on the port is noticed by listen, not by bind, with SO_REUSEADDR
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise BindError(host, port, error) from error
    return sock
