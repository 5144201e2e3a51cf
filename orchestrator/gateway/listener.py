"""The HTTP server: uvicorn with its limits set, and with the signals left to us."""

import asyncio
import contextlib
import math
import socket
from collections.abc import Generator

import uvicorn
from starlette.types import ASGIApp
from typing_extensions import override

from orchestrator.gateway.connection import ConnectionLimits, protocol_within

BACKLOG = 2048
CLOSE_LIMIT = 5
"""Seconds that responses have to be written once all requests have ended."""


class BindError(Exception):
    """The address can't be used."""

    def __init__(self, host: str, port: int, cause: OSError) -> None:
        super().__init__(f"can't listen on {host}:{port}: {cause.strerror or cause}")


class Listener(uvicorn.Server):
    """Serves an application on a socket that is bound already.

    Args:
        app: The application.
        sock: See `bind`.
        limits: Of connections; None takes the defaults.
    """

    def __init__(
        self, app: ASGIApp, sock: socket.socket, limits: ConnectionLimits | None = None
    ) -> None:
        limits = limits or ConnectionLimits()
        super().__init__(
            uvicorn.Config(
                app,
                http=protocol_within(limits),
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=max(1, math.ceil(limits.idle)),
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
