"""A body in pieces, bounded."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from orchestrator.errors import (
    InvalidRequestError,
    QueueRejectedError,
    RequestCanceledError,
    RequestTooLargeError,
)
from orchestrator.gateway.body import COUNTED_FROM_BYTES, BodyRoom, Share, read_body
from tests.fakes.scripted import DONE
from tests.gateway.serving import plays, serving, until


class Pieces:
    """ASGI's receive over pieces; counts how many were asked for."""

    def __init__(self, pieces: Sequence[bytes], *, whole: bool = True) -> None:
        self._messages: list[Message] = [
            {
                "type": "http.request",
                "body": piece,
                "more_body": not whole or index + 1 < len(pieces),
            }
            for index, piece in enumerate(pieces)
        ]
        self.read = 0

    async def __call__(self) -> Message:
        self.read += 1
        return self._messages.pop(0) if self._messages else {"type": "http.disconnect"}


@settings(deadline=None)
@given(st.lists(st.binary(max_size=9), min_size=1, max_size=9), st.integers(0, 60))
async def test_a_body_is_whole_or_refused_never_cut(pieces: list[bytes], limit: int) -> None:
    receive, body = Pieces(pieces), b"".join(pieces)

    try:
        read = await read_body(receive, limit, None)
    except RequestTooLargeError:
        read = None

    assert read == (body if len(body) <= limit else None)


async def test_an_announced_size_above_the_limit_is_refused_unread() -> None:
    receive = Pieces([b"x"])

    with pytest.raises(RequestTooLargeError):
        await read_body(receive, 10, "11")

    assert receive.read == 0


async def test_a_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        await read_body(Pieces([b"x"]), 10, "many")


async def test_a_caller_who_leaves_in_the_body_is_told_apart() -> None:
    with pytest.raises(RequestCanceledError):
        await read_body(Pieces([b"x"], whole=False), 10, None)


async def test_bodies_that_find_no_room_together_are_refused_until_one_has_its_answer() -> None:
    large = {"padding": "x" * COUNTED_FROM_BYTES}
    hold = asyncio.Event()
    stages = {"m": plays("a", hold, DONE), "n": plays("a", DONE)}

    async with asyncio.timeout(5), serving(stages, max_bodies=len(large["padding"]) * 2) as served:
        first = asyncio.create_task(served.ask(**large))
        await until(lambda: stages["m"].running == 1)
        refused = await served.ask(model="n", **large)
        small = await served.ask(model="n")
        hold.set()
        answered = await first
        after = await served.ask(model="n", **large)

    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert refused.json()["error"]["code"] == "queue_full"
    assert [answered.status_code, small.status_code, after.status_code] == [200] * 3


async def test_a_sender_who_never_ends_takes_the_room_of_what_it_has_sent_alone() -> None:
    room = BodyRoom(2 * COUNTED_FROM_BYTES)
    slow, whole = Share(room), Share(room)

    slow.grow(1000)
    whole.grow(2 * COUNTED_FROM_BYTES)
    with pytest.raises(QueueRejectedError):
        slow.grow(COUNTED_FROM_BYTES + 1)
    whole.give_back()
    slow.grow(COUNTED_FROM_BYTES + 1)
    slow.give_back()
    slow.give_back()

    assert repr(room) == f"<BodyRoom, 0 of {2 * COUNTED_FROM_BYTES} bytes taken>"
