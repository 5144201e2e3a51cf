"""One caller of a real gateway over a socket of its own, who reads, dawdles, or goes away.

What it was given goes into the journal token by token. A caller that gives up by itself has proven
nothing: its request is indeterminate.
"""

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Literal

from orchestrator.chaos.journal import Journal, Kind
from orchestrator.chaos.stub.words import FOREIGN, Listener, prompt
from orchestrator.reading.text import list_of, section_of

Manner = Literal["reads", "cancel", "rst", "slow_reader", "never_reads"]
READS = {"slow_reader": "slowly", "never_reads": "never"}
PATIENCE = 3.0
"""Seconds beyond its deadline after which a caller gives up by itself."""
SMALL_BUFFER = 2048
SERVED = 200
CLOSE_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What one caller wants and how it behaves."""

    name: str
    route: str
    tokens: int
    priority: str = "normal"
    deadline: float
    manner: Manner = "reads"
    after_tokens: int = 0
    rate: int = 0
    """Bytes a second of a slow reader."""
    must_succeed: bool = False
    fault: int | None = None
    """Number of the fault that this caller is, if it is one."""
    text: str | None = None
    """The prompt, for a model that doesn't count."""
    answer: str | None = None
    """What it must answer, word for word, if that is known."""


class Ear:
    """Judges an answer while it comes in: by its numbers, or against the text it must be."""

    def __init__(self, wish: Wish) -> None:
        self._listener = Listener(wish.name) if wish.text is None else None
        self._expected = wish.answer
        self.text = ""
        self._pieces = 0

    def hear(self, piece: str) -> list[int]:
        """The numbers of the tokens that came."""
        self.text += piece
        if self._listener is not None:
            return self._listener.hear(piece)
        self._pieces += 1
        if self._expected is not None and not self._expected.startswith(self.text):
            return [FOREIGN]
        return [self._pieces - 1]

    @property
    def whole(self) -> bool:
        """Whether nothing of the known text is missing."""
        return self._expected is None or self.text == self._expected


class Visitor:
    """One request.

    Args:
        address: Host and port of the gateway.
        wish: What it wants.
        journal: Told of all that happens to it.
        on_end: Told of the outcome.
        on_read: Told of each token, by the request's name and how many it has now.
    """

    def __init__(
        self,
        address: tuple[str, int],
        wish: Wish,
        journal: Journal,
        on_end: Callable[[str], None] = lambda _: None,
        on_read: Callable[[str, int], None] = lambda _, __: None,
    ) -> None:
        self._address = address
        self._wish = wish
        self._journal = journal
        self._on_end = on_end
        self._on_read = on_read
        self._ear = Ear(wish)
        self._finished = False
        self._read = 0

    async def visit(self) -> str:
        """Asks, and returns what was read."""
        wish = self._wish
        counts = {} if wish.text is not None else {"tokens": wish.tokens}
        self._journal.record(
            Kind.SUBMIT,
            request=wish.name,
            must_succeed=wish.must_succeed,
            reads=READS.get(wish.manner, "at once"),
            more=counts,
        )
        if wish.manner == "reads":
            self._landed()  # of a burst, whose fault is that they come
        try:
            async with asyncio.timeout(wish.deadline + PATIENCE):
                await self._ask()
        except TimeoutError:
            self._end("indeterminate", code="caller_gave_up")
        except (OSError, EOFError, ValueError) as error:
            self._end("cut", code="connection_lost", cause=type(error).__name__)
        return self._ear.text

    async def _ask(self) -> None:
        wish = self._wish
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            if wish.manner in ("slow_reader", "never_reads"):
                raw: socket.socket = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER)
                self._landed()
            writer.write(self._request())
            if wish.manner == "never_reads":
                await asyncio.sleep(wish.deadline)
                self._leave(writer)
                return
            status, chunked, length = await _head(reader)
            if status != SERVED:
                body = await _whole(reader, length, chunked=chunked)
                self._refused(status, body)
                return
            async with aclosing(_events(reader)) as events:
                async for event in events:
                    if self._takes(event):
                        self._leave(writer)
                        return
                    if wish.manner == "slow_reader":
                        await asyncio.sleep(len(event) / max(1, wish.rate))
        finally:
            writer.close()
            with suppress(OSError, TimeoutError):  # see `provider.wire.Wire.close`
                async with asyncio.timeout(CLOSE_SECONDS):
                    await writer.wait_closed()

    def _request(self) -> bytes:
        wish = self._wish
        body = json.dumps(
            {
                "model": wish.route,
                "stream": True,
                "temperature": 0,
                "max_tokens": wish.tokens,
                "priority": wish.priority,
                "deadline": wish.deadline,
                "messages": [
                    {"role": "user", "content": wish.text or prompt(wish.tokens, wish.name)}
                ],
            }
        ).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\n"
            f"host: {self._address[0]}:{self._address[1]}\r\n"
            "content-type: application/json\r\nconnection: close\r\n"
            f"x-request-id: {wish.name}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def _takes(self, event: bytes) -> bool:
        """Notes an event; returns whether the caller goes away at it."""
        if event == b"[DONE]":
            self._end("done" if self._finished else "cut", code="no_finish_reason")
            return False
        chunk = section_of(json.loads(event))
        if "error" in chunk:
            self._failed(SERVED, section_of(chunk["error"]))
            return False
        choice = section_of((list_of(chunk.get("choices")) or [None])[0])
        piece = section_of(choice.get("delta")).get("content")
        if isinstance(piece, str) and piece:
            for number in self._ear.hear(piece):
                self._read += 1
                self._journal.record(Kind.READ, request=self._wish.name, index=number)
                self._on_read(self._wish.name, self._read)
        self._finished = self._finished or choice.get("finish_reason") is not None
        return self._wish.manner in ("cancel", "rst") and self._read >= self._wish.after_tokens

    def _leave(self, writer: asyncio.StreamWriter) -> None:
        wish = self._wish
        self._journal.record(Kind.CANCEL, request=wish.name)
        if wish.manner == "rst":
            raw: socket.socket = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if wish.manner in ("cancel", "rst"):
            self._landed()
        writer.transport.abort()
        self._on_end("canceled")

    def _landed(self) -> None:
        wish = self._wish
        if wish.fault is not None:
            self._journal.record(
                Kind.FAULT_LANDED, request=wish.name, fault=wish.fault, evidence=wish.manner
            )

    def _refused(self, status: int, body: bytes) -> None:
        try:
            told = section_of(json.loads(body)).get("error")
        except ValueError:
            told = None
        self._failed(status, section_of(told))

    def _failed(self, status: int, told: Mapping[str, object]) -> None:
        cause = str(told.get("message", ""))[:200]
        self._end("error", status=status, code=str(told.get("code", "")), cause=cause)

    def _end(self, outcome: str, *, code: str = "", cause: str = "", status: int = 200) -> None:
        value: dict[str, str | int | bool] = {"outcome": outcome}
        if outcome == "done":
            value["whole"] = self._ear.whole
        else:
            value |= {"code": code, "cause": cause, "status": status}
        self._journal.record(Kind.END_READ, request=self._wish.name, more=value)
        self._on_end(outcome)


async def _head(reader: asyncio.StreamReader) -> tuple[int, bool, int]:
    """The status, whether the body is chunked, and its length if that is told."""
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    line, *lines = text.split("\r\n")
    headers = dict(item.split(": ", 1) for item in lines if ": " in item)
    chunked = headers.get("transfer-encoding") == "chunked"
    return int(line.split(" ")[1]), chunked, int(headers.get("content-length", "0"))


async def _whole(reader: asyncio.StreamReader, length: int, *, chunked: bool) -> bytes:
    if not chunked:
        return await reader.readexactly(length)
    return b"".join([piece async for piece in _chunks(reader)])


async def _chunks(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        piece = await reader.readexactly(size + 2)
        yield piece[:-2]
    await reader.readuntil(b"\r\n")


async def _events(reader: asyncio.StreamReader) -> AsyncGenerator[bytes]:
    """The data of each event of a stream."""
    rest = b""
    async with aclosing(_chunks(reader)) as chunks:
        async for piece in chunks:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                if line.startswith(b"data: "):
                    yield line[6:].rstrip(b"\r")
