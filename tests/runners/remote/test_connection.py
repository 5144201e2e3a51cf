"""The protocol without a network: what it does to its transport."""

import asyncio

import httpx
import pytest

from orchestrator.runners.remote.connection import (
    MAX_UNREAD_BYTES,
    WRITTEN_BYTES,
    Connection,
    Incoming,
)
from tests.fakes.wire import Wire

HEAD = b"HTTP/1.1 200 OK\r\n"


class Line:
    """A connection on a wire, and what its pool is told."""

    def __init__(self) -> None:
        self.wire = Wire()
        self.free: list[Connection] = []
        self.gone: list[Connection] = []
        self.connection = Connection(self.free.append, self.gone.append)
        self.connection.connection_made(self.wire)

    def ask(self) -> Incoming:
        return self.connection.send(b"POST / HTTP/1.1\r\n\r\n")

    def hear(self, data: bytes) -> None:
        self.connection.data_received(data)


async def test_a_reader_that_is_slow_stops_the_provider_and_not_the_memory():
    line = Line()
    exchange = line.ask()
    line.hear(HEAD + b"content-length: 10000000\r\n\r\n")

    line.hear(b"x" * MAX_UNREAD_BYTES)
    before = line.wire.paused
    line.hear(b"x")
    full = line.wire.paused
    read = await anext(exchange)

    assert (before, full, line.wire.paused) == (False, True, False)
    assert len(read) == MAX_UNREAD_BYTES + 1


async def test_a_whole_response_frees_the_connection_before_its_reader_comes():
    line = Line()
    exchange = line.ask()

    line.hear(HEAD + b"content-length: 2\r\n\r\nhi")
    again = line.ask()
    line.hear(HEAD + b"content-length: 3\r\n\r\nyou")

    assert line.free == [line.connection, line.connection]
    assert [read async for read in exchange] == [b"hi"]
    assert [read async for read in again] == [b"you"]
    await exchange.aclose()
    assert not line.wire.aborted


async def test_an_answer_that_comes_before_the_request_has_gone_out_ends_the_connection():
    line = Line()
    exchange = line.ask()
    line.wire.unsent = 5_000_000

    line.hear(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")

    assert line.free == []
    assert line.wire.aborted
    await exchange.head()
    assert exchange.parser.status == 413
    assert [read async for read in exchange] == [b"no"]


async def test_bytes_that_nobody_asked_for_end_the_connection():
    line = Line()

    line.hear(HEAD)

    assert line.wire.aborted
    with pytest.raises(httpx.ReadError):
        line.ask()


async def test_a_reader_that_waits_is_woken_by_the_fault():
    line = Line()
    exchange = line.ask()
    async with asyncio.timeout(5):
        waiting = asyncio.create_task(exchange.head())
        await asyncio.sleep(0)

        line.connection.connection_lost(ConnectionResetError("gone"))

        with pytest.raises(httpx.ReadError, match="ConnectionResetError: gone"):
            await waiting
        await line.connection.lost
    assert line.gone == [line.connection]


async def test_a_connection_and_its_exchange_tell_their_state_in_words():
    line = Line()
    idle = repr(line.connection)
    exchange = line.ask()
    states = [repr(exchange), repr(line.connection)]

    line.hear(HEAD + b"content-length: 3\r\n\r\nhi")
    states.append(repr(exchange))
    exchange.cut()

    assert idle == "<Connection free>"
    assert states == [
        "<Incoming <ResponseParser in its head, 0 bytes ready>>",
        "<Connection busy>",
        "<Incoming <ResponseParser in its body, 2 bytes ready>>",
    ]
    assert repr(exchange) == "<Incoming the response was closed>"


async def test_a_large_request_goes_out_in_pieces_as_the_provider_takes_them():
    line = Line()
    request = bytes(range(256)) * (5 * WRITTEN_BYTES // 512)

    line.connection.send(request)
    at_once = len(line.wire.writes)
    line.connection.pause_writing()
    await asyncio.sleep(0)
    held = len(line.wire.writes)
    line.connection.resume_writing()
    for _ in range(5):
        await asyncio.sleep(0)

    assert (at_once, held) == (1, 1)
    assert b"".join(line.wire.writes) == request
    assert max(map(len, line.wire.writes)) == WRITTEN_BYTES


async def test_an_answer_before_all_pieces_have_gone_out_ends_the_connection():
    line = Line()
    line.connection.send(b"x" * 3 * WRITTEN_BYTES)
    line.wire.unsent = 0

    line.hear(b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")
    await asyncio.sleep(0)

    assert line.free == []
    assert line.wire.aborted
    assert len(line.wire.writes) == 1
