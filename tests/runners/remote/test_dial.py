import asyncio
import socket

import pytest

from orchestrator.runners.remote.connection import Connection
from orchestrator.runners.remote.dial import first_to_connect, interleaved
from tests.fakes.wire import Wire


def connected() -> tuple[Connection, Wire]:
    connection, wire = Connection(_ignore, _ignore), Wire()
    connection.connection_made(wire)
    return connection, wire


def _ignore(connection: Connection) -> None:
    pass


def test_the_families_of_a_name_take_turns_in_the_order_of_the_resolver():
    six, four = socket.AF_INET6, socket.AF_INET
    found = [(six, "a"), (six, "b"), (six, "b"), (six, "c"), (four, "1"), (four, "2")]

    assert interleaved(found) == ["a", "1", "b", "2", "c"]


async def test_an_address_that_refuses_is_followed_by_the_next_at_once():
    good, _ = connected()
    tried: list[str] = []

    async def connect(address: str) -> Connection:
        tried.append(address)
        if address == "bad":
            raise ConnectionRefusedError
        return good

    async with asyncio.timeout(5):
        found = await first_to_connect(["bad", "good", "other"], connect)

    assert found is good
    assert tried == ["bad", "good"]


async def test_an_address_that_leads_nowhere_does_not_hold_up_the_next():
    good, _ = connected()

    async def connect(address: str) -> Connection:
        if address == "silent":
            await asyncio.get_running_loop().create_future()
        return good

    async with asyncio.timeout(5):
        assert await first_to_connect(["silent", "good"], connect) is good


async def test_of_two_connections_that_stand_in_one_turn_one_is_closed():
    both = asyncio.Event()
    made: list[tuple[Connection, Wire]] = []

    async def connect(address: str) -> Connection:
        if address == "second":
            both.set()
        await both.wait()
        made.append(connected())
        return made[-1][0]

    async with asyncio.timeout(5):
        found = await first_to_connect(["first", "second"], connect)
        await asyncio.sleep(0)

    assert [wire.aborted for connection, wire in made if connection is not found] == [True]


async def test_the_first_fault_is_told_when_no_address_answers():
    async def connect(address: str) -> Connection:
        raise OSError(address)

    with pytest.raises(OSError, match="first"):
        await first_to_connect(["first", "second"], connect)
