"""Large events, read without holding up everybody else.

A JSON decoder can't be interrupted, and no thread helps, for it keeps the interpreter's lock: three
megabytes of small objects took it 60 ms and the reader after it 300 more, in which no other stream
moved. So a large event is gone through piece by piece, with a pause after each (`large_scan`).
What a provider may send a part at a time is told as so many events (`large_slices`); the long
texts, and what a reader takes as it is, are taken out first and put into what the reader made of
the rest (`large_chunks`). What comes out is, put together, what the reader would have made of the
whole event.

An event that is no JSON, or that is an error, is told by how it begins: nobody reads it whole.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence

from orchestrator.errors import OrchestratorError
from orchestrator.events import TokenChunk
from orchestrator.runners.remote.large_chunks import restored
from orchestrator.runners.remote.large_outline import HEAD_BYTES, OPEN, Outline
from orchestrator.runners.remote.large_scan import MalformedError, UnreadableError, outline_of
from orchestrator.runners.remote.large_slices import events_of
from orchestrator.runners.remote.reader import Reader, pieces_of
from orchestrator.runners.remote.sse import ServerSentEvent

LARGE_EVENT_BYTES = 64 << 10
PIECE_BYTES = 4 << 10

OPENED = OPEN.encode()


async def take_large(
    reader: Reader,
    event: ServerSentEvent,
    *,
    whole: bool = False,
    piece_bytes: int = PIECE_BYTES,
    large_bytes: int = LARGE_EVENT_BYTES,
) -> AsyncGenerator[TokenChunk]:
    """Reads a large event; others have their turn after every piece of it.

    Args:
        reader: Reads what is left of it.
        event: The event.
        whole: It is an answer that came at once.
        piece_bytes: How much is read without a pause.
        large_bytes: An event of so many bytes at most is read at once where it is broken.

    Raises:
        OrchestratorError: What the reader raises for the event.
    """
    if reader.done:
        return
    outline = await _outline_of(reader, event, piece_bytes, large_bytes)
    if outline is None:
        for chunk in _take(reader, event, event.data, whole=whole):
            yield chunk
        return
    reader.large, taken = True, False
    try:
        for data in events_of(outline, reader.shape.names):
            try:
                chunks = _take(reader, event, data, whole=whole)
            except OrchestratorError:
                # its text must quote what came
                if len(event.data) > large_bytes:
                    _take(reader, event, outline.summary(), whole=whole)
                again = _take(reader, event, event.data, whole=whole)
                if taken:
                    raise
                for chunk in again:
                    yield chunk
                return
            taken = True
            for chunk in chunks:
                if OPENED not in data:
                    yield chunk
                    continue
                telling = restored(chunk, outline, written=reader.shape.written)
                async with contextlib.aclosing(telling) as told:
                    async for piece in told:
                        yield piece
            await asyncio.sleep(0)
    finally:
        reader.large = False


def _take(
    reader: Reader, event: ServerSentEvent, data: bytes, *, whole: bool
) -> Sequence[TokenChunk]:
    if whole:
        return pieces_of(reader, reader.take_whole(data))
    return pieces_of(reader, reader.take(ServerSentEvent(data, event.event)))


async def _outline_of(
    reader: Reader, event: ServerSentEvent, piece_bytes: int, large_bytes: int
) -> Outline | None:
    """Goes through an event; None if it has to be read at once.

    Raises:
        OrchestratorError: It is no JSON.
    """
    data = event.data
    if len(data) <= piece_bytes:
        return None
    try:
        return await outline_of(data, reader.shape, piece_bytes)
    except UnreadableError:
        return None
    except MalformedError as malformed:
        if len(data) <= large_bytes:
            return None
        if event.event == b"error":
            reader.take(ServerSentEvent(data[:HEAD_BYTES], event.event))
        unreadable = reader.unreadable(data, malformed)
        raise unreadable from malformed
