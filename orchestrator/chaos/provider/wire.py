"""HTTP/1.1 as a provider speaks it, down to the bytes, so that every byte can be spoilt."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

MAX_BODY = 64 << 20
CLOSE_SECONDS = 1.0
LAST_CHUNK = b"0\r\n\r\n"


class GoneError(ConnectionError):
    """The peer went away, or the connection was cut here: nothing more can be sent on it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Wire:
    """One connection of a client.

    Args:
        reader: Its reading half.
        writer: Its writing half.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.gone = asyncio.Event()
        """Set when the peer goes away while it is answered."""

    async def read(self) -> Asked | None:
        """The next request; None if there is none any more.

        Raises:
            GoneError: The peer broke off within it, or it is no HTTP.
        """
        try:
            text = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = text.rstrip().split("\r\n")
            method, target, _ = line.split(" ", 2)
            headers = {
                name.strip().lower(): value.strip()
                for name, value in (item.split(":", 1) for item in lines)
            }
            length = int(headers.get("content-length", "0"))
            if length > MAX_BODY:
                raise GoneError("a body beyond all measure")
            body = await self._reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise GoneError("broken off within a request") from error
            return None
        except (ValueError, asyncio.LimitOverrunError) as error:
            raise GoneError("not HTTP") from error
        return Asked(method, target, headers, body)

    async def send(self, data: bytes) -> None:
        """Writes bytes and waits until the system has taken them.

        Raises:
            GoneError: The peer is gone.
        """
        if self.gone.is_set():
            raise GoneError("the peer went away")
        try:
            self._writer.write(data)
            await self._writer.drain()
        except ConnectionError as error:
            raise GoneError(str(error)) from error

    async def head(self, status: int, headers: Mapping[str, str]) -> None:
        """Writes status line and headers."""
        lines = [f"HTTP/1.1 {status} Chaos", *(f"{name}: {text}" for name, text in headers.items())]
        await self.send("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    async def whole(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Writes an answer at one go."""
        await self.head(status, {**headers, "content-length": str(len(body))})
        await self.send(body)

    async def chunk(self, data: bytes) -> None:
        """Writes one chunk of a chunked body."""
        await self.send(b"%x\r\n%s\r\n" % (len(data), data))

    def watch(self) -> "asyncio.Task[None]":
        """Notes from now on when the peer goes away; clients of ours don't pipeline."""
        return asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        try:
            if not await self._reader.read(1):
                self.gone.set()
        except ConnectionError:
            self.gone.set()

    def reset(self) -> None:
        """Ends the connection with a TCP reset.

        Raises:
            GoneError: Always, for nothing more can be sent.
        """
        raw: socket.socket = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise GoneError("reset")

    async def close(self) -> None:
        """Ends the connection."""
        self._writer.close()
        # how it ended must be heard, or asyncio complains that nobody listened
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._writer.wait_closed()


async def events_of(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Cuts a stream of server-sent events at the blank lines; each part keeps its own."""
    rest = b""
    async for piece in pieces:
        rest += piece.replace(b"\r\n", b"\n")
        *events, rest = rest.split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    if rest:
        yield rest
