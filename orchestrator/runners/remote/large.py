"""Large events, read without holding up everybody else.

A JSON decoder can't be interrupted, and no thread helps, for it keeps the interpreter's lock: three
megabytes of small objects took it 60 ms and the reader after it 300 more, in which no other stream
moved. So a large event is gone through piece by piece, with a pause after each (`large_outline`).
An array of which a provider may send a part at a time is told as so many events
(`large_slices`); the long texts, and what a reader takes as it is, are taken out first and put into
what the reader made of the rest. What comes out is, put together, what the reader would have made
of the whole event.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import cast

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.events import TokenChunk
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.large_outline import (
    CLOSE,
    OPEN,
    Outline,
    Run,
    Shape,
    UnreadableError,
    outline_of,
)
from orchestrator.runners.remote.large_slices import events_of
from orchestrator.runners.remote.sse import ServerSentEvent

LARGE_EVENT_BYTES = 64 << 10
PIECE_BYTES = 4 << 10

TEXT = re.compile(f"{OPEN}([0-9]+){CLOSE}")
RUN = re.compile(f"{OPEN}r([0-9]+){CLOSE}")
RUN_WITHIN_JSON = re.compile(f'"{OPEN}r([0-9]+){CLOSE}"(?::null)?')
OPENED = OPEN.encode()

Take = Callable[[ServerSentEvent], Sequence[TokenChunk]]


async def take_large(
    take: Take, event: ServerSentEvent, shape: Shape, *, piece_bytes: int = PIECE_BYTES
) -> AsyncGenerator[TokenChunk]:
    """Reads a large event; others have their turn after every piece of it.

    Args:
        take: Reads an event at once.
        event: The event.
        shape: What the events of its wire format consist of.
        piece_bytes: How much is read without a pause.

    Raises:
        OrchestratorError: What `take` raises for the event.
    """
    outline = await _outline_of(event, shape, piece_bytes)
    if outline is None:
        for chunk in take(event):
            yield chunk
        return
    taken = False
    for data in events_of(outline):
        try:
            chunks = take(ServerSentEvent(data, event.event))
        except OrchestratorError:
            again = take(event)  # its text must quote what came
            if taken:
                raise
            for chunk in again:
                yield chunk
            return
        taken = True
        for chunk in chunks:
            yield await _restored(chunk, outline, shape) if OPENED in data else chunk
        await asyncio.sleep(0)


async def _outline_of(event: ServerSentEvent, shape: Shape, piece_bytes: int) -> Outline | None:
    """Goes through an event; None if it has to be read at once."""
    if len(event.data) <= piece_bytes:
        return None
    try:
        return await outline_of(event.data, shape, piece_bytes)
    except (*NOT_JSON, UnreadableError):
        return None


class _Lost:
    """What one chunk lacks, read with a pause after each piece."""

    def __init__(self) -> None:
        self.runs: dict[int, list[object] | dict[str, object]] = {}
        self.written: dict[int, str] = {}
        """Runs as they stand within JSON."""
        self.escaped: dict[int, str] = {}
        """Texts as they stand within JSON."""

    async def find(self, value: object, outline: Outline, shape: Shape, name: str = "") -> None:
        """Reads all that is referred to in a chunk's fields."""
        match value:
            case str() if name == "arguments" and not TEXT.fullmatch(value):
                for number in map(int, TEXT.findall(value)):
                    self.escaped[number] = await _escaped(outline.texts[number])
                for number in map(int, RUN_WITHIN_JSON.findall(value)):
                    self.written[number] = await _written(outline.runs[number], shape)
            case str() if found := RUN.fullmatch(value):
                self.runs[int(found[1])] = await _read(outline.runs[int(found[1])])
            case list():
                for item in cast("list[object]", value):
                    await self.find(item, outline, shape)
            case dict():
                for key, member in cast("dict[str, object]", value).items():
                    await self.find(key, outline, shape)
                    await self.find(member, outline, shape, key)
            case _:
                pass


async def _restored(chunk: TokenChunk, outline: Outline, shape: Shape) -> TokenChunk:
    """Puts what was taken out into a chunk."""
    lost = _Lost()
    await lost.find(chunk.fields, outline, shape)

    def text(found: re.Match[str]) -> str:
        return "".join(outline.texts[int(found[1])])

    def put_back(value: str, name: str) -> str:
        if name != "arguments" or TEXT.fullmatch(value):
            return TEXT.sub(text, value)
        # the JSON of an object; its runs come last, for what stands in them is no stand-in
        value = TEXT.sub(lambda found: lost.escaped[int(found[1])], value)
        return RUN_WITHIN_JSON.sub(lambda found: lost.written[int(found[1])], value)

    def items_of(item: object) -> Iterable[object]:
        found = RUN.fullmatch(item) if isinstance(item, str) else None
        return lost.runs[int(found[1])] if found else (restore(item),)

    def members_of(key: str, member: object) -> dict[str, object]:
        found = RUN.fullmatch(key)
        if found:
            return cast("dict[str, object]", lost.runs[int(found[1])])
        return {key: restore(member, key)}

    def restore(value: object, name: str = "") -> object:
        if isinstance(value, str):
            return put_back(value, name)
        if isinstance(value, list):
            return [one for item in cast("list[object]", value) for one in items_of(item)]
        if isinstance(value, dict):
            members: dict[str, object] = {}
            for key, member in cast("dict[str, object]", value).items():
                found = members_of(key, member)
                members = members | found if members else found
            return members
        return value

    fields = cast("dict[str, object] | None", restore(chunk.fields))
    return TokenChunk(TEXT.sub(text, chunk.text), chunk.tokens, fields, chunk.index)


async def _read(run: Run) -> list[object] | dict[str, object]:
    items: list[object] = []
    members: dict[str, object] = {}
    for piece in run.pieces:
        if run.members:
            members |= msgspec.json.decode(b"{" + piece + b"}", type=dict[str, object])
        else:
            items += msgspec.json.decode(b"[" + piece + b"]", type=list[object])
        await asyncio.sleep(0)
    return members if run.members else items


async def _escaped(text: Sequence[str]) -> str:
    pieces: list[str] = []
    for piece in text:
        pieces.append(msgspec.json.encode(piece)[1:-1].decode())
        await asyncio.sleep(0)
    return "".join(pieces)


async def _written(run: Run, shape: Shape) -> str:
    pieces: list[str] = []
    opening, closing = (b"{", b"}") if run.members else (b"[", b"]")
    for piece in run.pieces:
        if shape.written:
            pieces.append(piece.decode())
        else:
            value = cast("object", msgspec.json.decode(opening + piece + closing))
            pieces.append(msgspec.json.encode(value)[1:-1].decode())
        await asyncio.sleep(0)
    return ",".join(pieces)
