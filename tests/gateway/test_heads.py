import asyncio

from orchestrator.gateway.heads import HeadHolder
from tests.fakes.wire import Wire

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


async def test_a_head_goes_out_with_the_first_piece_of_its_body():
    wire = Wire()
    holder = HeadHolder(wire)

    holder.write(HEAD)
    before = list(wire.writes)
    holder.write(b"first")
    holder.write(b"second")

    assert before == []
    assert wire.writes == [HEAD + b"first", b"second"]


async def test_a_head_alone_goes_out_in_the_same_turn_of_the_loop():
    wire = Wire()
    holder = HeadHolder(wire)

    holder.write(HEAD)
    await asyncio.sleep(0)

    assert wire.writes == [HEAD]


async def test_a_head_goes_out_before_its_connection_closes_and_not_after_it_broke():
    closed, broken = Wire(), Wire()
    holders = [HeadHolder(closed), HeadHolder(broken)]
    for holder in holders:
        holder.write(HEAD)

    holders[0].close()
    holders[1].abort()
    await asyncio.sleep(0)

    assert (closed.writes, closed.closed) == ([HEAD], True)
    assert (broken.writes, broken.aborted) == ([], True)


async def test_what_is_written_to_a_connection_that_is_gone_is_dropped():
    wire = Wire()
    holder = HeadHolder(wire)

    wire.close()
    holder.write(HEAD)
    holder.write(b"body")
    await asyncio.sleep(0)

    assert wire.writes == []
