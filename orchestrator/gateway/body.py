"""A request's body, bounded while it is read."""

from starlette.types import Receive

from orchestrator.errors import InvalidRequestError, RequestCanceledError, RequestTooLargeError

_TOO_LARGE = "the body is larger than %d bytes"


async def read_body(receive: Receive, limit: int, content_length: str | None) -> bytes:
    """Reads the whole body.

    Args:
        receive: ASGI's.
        limit: Bytes at most.
        content_length: What the caller announced; more than the limit is refused unread.

    Raises:
        InvalidRequestError: The announced length is no number.
        RequestTooLargeError: The body is larger than the limit.
        RequestCanceledError: The caller went away.
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
        pieces.append(piece)
        if not message.get("more_body", False):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
