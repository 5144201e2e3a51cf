"""A provider on loopback whose every byte is scripted.

A real TCP server: what a client makes of a cut, a reset or a stall is seen, not imagined.
Each request takes the next script; the last one serves all that follow.
"""

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

CERTIFICATE = Path(__file__).with_name("loopback.pem")
"""Signed by itself for 127.0.0.1, with its key, which protects nothing."""

LAST_CHUNK = b"0\r\n\r\n"


@dataclass(frozen=True)
class Send:
    """Writes these bytes and waits until the system has taken them."""

    data: bytes


@dataclass(frozen=True)
class Wait:
    """Waits until the test sets the event."""

    event: asyncio.Event


@dataclass(frozen=True)
class Stall:
    """Says nothing until the peer goes away."""


@dataclass(frozen=True)
class Close:
    """Closes politely."""


@dataclass(frozen=True)
class Reset:
    """Closes with a TCP reset."""


Step = Send | Wait | Stall | Close | Reset
Script = Sequence[Step]


def head(
    status: int = 200,
    *,
    content_type: str = "text/event-stream",
    framing: str = "transfer-encoding: chunked",
    extra: Sequence[str] = (),
) -> bytes:
    """The status line and headers of an answer; `framing` says how the body ends."""
    lines = [f"HTTP/1.1 {status} Scripted", f"content-type: {content_type}", framing, *extra]
    return "\r\n".join(line for line in lines if line).encode() + b"\r\n\r\n"


def framed(data: bytes) -> bytes:
    """One chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(payload: object) -> bytes:
    """One event with that JSON."""
    return b"data: " + json.dumps(payload, separators=(",", ":")).encode() + b"\n\n"


def delta(content: str | None = None, *, finish: str | None = None, **members: object) -> bytes:
    """One chunk of a chat completion."""
    piece = {} if content is None else {"content": content}
    choice = {"index": 0, "delta": piece | members, "finish_reason": finish}
    return event({"object": "chat.completion.chunk", "choices": [choice]})


def answer(*events: bytes, end: bytes = LAST_CHUNK) -> Script:
    """A script that streams these events, one TCP write each, and ends politely."""
    return [Send(head()), *(Send(framed(data)) for data in events), Send(end)]


def refusal(status: int, payload: object, *extra: str) -> Script:
    """A script that refuses with a JSON body."""
    body = json.dumps(payload).encode()
    framing = f"content-length: {len(body)}"
    return [
        Send(head(status, content_type="application/json", framing=framing, extra=extra) + body)
    ]


@dataclass(eq=False)
class Recorded:
    """A request as it came."""

    line: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Number of the connection that it came on, from 0."""
    peer_gone: asyncio.Event = field(default_factory=asyncio.Event)
    at: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    """Loop time, seconds."""

    @property
    def json(self) -> dict[str, object]:
        """The decoded body."""
        return json.loads(self.body)


class SseServer:
    """Listens while its context is open.

    Args:
        scripts: One for each request, in order; the last serves all that follow.
        tls: Speaks https with the certificate in `CERTIFICATE`.
        mutual: Wants the same certificate of its client.
    """

    def __init__(self, *scripts: Script, tls: bool = False, mutual: bool = False) -> None:
        self._tls = tls or mutual
        self._mutual = mutual
        self.scripts = list(scripts)
        self.requests: list[Recorded] = []
        self._arrived = asyncio.Event()
        self.connections = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        context = None
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            if self._mutual:
                context.load_verify_locations(CERTIFICATE)
                context.verify_mode = ssl.CERT_REQUIRED
        self._server = await asyncio.start_server(
            self._accept, "127.0.0.1", 0, backlog=1024, ssl=context
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def url(self) -> str:
        """The base URL to configure."""
        assert self._server is not None
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    @property
    def open_connections(self) -> int:
        """Connections that are open now, idle ones included."""
        return len(self._tasks)

    async def arrived(self, count: int = 1) -> None:
        """Waits until that many requests have come."""
        while len(self.requests) < count:
            self._arrived.clear()
            await self._arrived.wait()

    async def ended(self) -> None:
        """Waits until every connection that was open has been closed from this side."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        number = self.connections
        self.connections += 1
        try:
            while await self._serve(reader, writer, number):
                pass
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        recorded = await self._read(reader, number)
        if recorded is None:
            return False
        script = self.scripts[min(len(self.requests), len(self.scripts) - 1)]
        self.requests.append(recorded)
        self._arrived.set()
        watch = asyncio.create_task(self._watch(reader, recorded))
        try:
            return await self._play(script, writer, recorded)
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def _read(self, reader: asyncio.StreamReader, number: int) -> Recorded | None:
        try:
            text = (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return None
        line, *lines = text.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (item.split(": ", 1) for item in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        return Recorded(line, headers, body, number)

    async def _watch(self, reader: asyncio.StreamReader, recorded: Recorded) -> None:
        """Clients don't pipeline: whatever ends this read is the peer going away."""
        try:
            if not await reader.read(1):
                recorded.peer_gone.set()
        except ConnectionError:
            recorded.peer_gone.set()

    async def _play(self, script: Script, writer: asyncio.StreamWriter, recorded: Recorded) -> bool:
        for step in script:
            match step:
                case Send(data):
                    writer.write(data)
                    await writer.drain()
                case Wait(until):
                    await until.wait()
                case Stall():
                    await recorded.peer_gone.wait()
                    return False
                case Close():
                    return False
                case Reset():
                    reset(writer)
                    return False
        return True


def reset(writer: asyncio.StreamWriter) -> None:
    """Makes the next close a TCP reset."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
