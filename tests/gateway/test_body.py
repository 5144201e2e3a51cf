"""A body in pieces, bounded."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.types import Message

from orchestrator.errors import InvalidRequestError, RequestCanceledError, RequestTooLargeError
from orchestrator.gateway.body import read_body


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
