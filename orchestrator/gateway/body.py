"""A request's body, bounded while it is read: in its own size, and together with all others."""

from starlette.types import Receive

from orchestrator import metrics
from orchestrator.errors import (
    InvalidRequestError,
    QueueRejectedError,
    RequestCanceledError,
    RequestTooLargeError,
)

MAX_BODIES = 512 << 20
COUNTED_FROM_BYTES = 256 << 10
"""Smaller bodies take little room, and what counts them is the number of connections."""
RETRY_AFTER = 1.0
"""Seconds; what takes the room may be gone by then."""
_TOO_LARGE = "the body is larger than %d bytes"


class BodyRoom:
    """The room for all large bodies together, from their first bytes until their answers' end.

    Args:
        most: Bytes.
    """

    def __init__(self, most: int = MAX_BODIES) -> None:
        self._most = most
        self._taken = 0

    def __repr__(self) -> str:
        return f"<BodyRoom, {self._taken} of {self._most} bytes taken>"

    def take(self, more: int) -> None:
        """Takes some of it, or gives some back.

        Raises:
            QueueRejectedError: There isn't as much left.
        """
        if more > 0 and self._taken + more > self._most:
            raise QueueRejectedError(
                "large bodies of other requests take all the room there is for them",
                retry_after=RETRY_AFTER,
            )
        self._taken += more
        metrics.BODY_BYTES.set(self._taken)


class Share:
    """What one body takes of the room; it has to be given back.

    Args:
        room: Of all bodies.
    """

    __slots__ = ("_room", "_taken")

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._taken = 0

    def grow(self, size: int) -> None:
        """So much of the body has come: a sender may be slow, or never end.

        Raises:
            QueueRejectedError: There is no room for it.
        """
        if size > COUNTED_FROM_BYTES:
            self._room.take(size - self._taken)
            self._taken = size

    def give_back(self) -> None:
        """Gives all of it back."""
        if self._taken:
            self._room.take(-self._taken)
            self._taken = 0


async def read_body(
    receive: Receive, limit: int, content_length: str | None, share: Share | None = None
) -> bytes:
    """Reads the whole body.

    Args:
        receive: ASGI's.
        limit: Bytes at most.
        content_length: What the caller announced; more than the limit is refused unread.
        share: Of the room for large bodies, which grows with this one.

    Raises:
        InvalidRequestError: The announced length is no number.
        RequestTooLargeError: The body is larger than the limit.
        RequestCanceledError: The caller went away.
        QueueRejectedError: There is no room for it.
    """
    if content_length is not None:
        if not content_length.isdecimal():
            raise InvalidRequestError("the header content-length is no number")
        if int(content_length) > limit:
            raise RequestTooLargeError(_TOO_LARGE % limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestCanceledError("the client went away while it sent its request")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise RequestTooLargeError(_TOO_LARGE % limit)
        if share is not None:
            share.grow(size)
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
