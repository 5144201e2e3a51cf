"""Large events, read without holding up everybody else.

A JSON decoder can't be interrupted, and no thread helps, for it keeps the interpreter's lock: three
megabytes of text with many escapes took it up to 28 ms on a busy machine, in which no other stream
moved. So the long texts and arrays are taken out of the event first, piece by piece with a pause
after each; what is left is small and goes to the reader, and they are put into what the reader made
of it. What comes out is the same as if the reader had seen the whole event.

An event that is large without either is read as it is.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import msgspec

from orchestrator.errors import OrchestratorError
from orchestrator.events import TokenChunk
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.large_arrays import long_array
from orchestrator.runners.remote.sse import ServerSentEvent

LARGE_EVENT_BYTES = 256 << 10
PIECE_BYTES = 16 << 10

# A text's inside. All repeats are possessive, so nothing is tried twice and no stack grows.
INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
HIGH_SURROGATE = re.compile(rb"\\u[dD][89abAB]..", re.DOTALL)
ESCAPE_BYTES = len(b"\\u0000")
# Characters that no text may have (Unicode 23.7, "Noncharacters") stand for what was taken out.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
STAND_IN = re.compile(f"{OPEN}([0-9]+){CLOSE}")
ARRAY_STAND_IN = re.compile(f"{OPEN}a([0-9]+){CLOSE}")
"""The first item of an array that was taken out; nulls after it keep its length."""
# Members that readers keep, to tell them with a later event: what stands in for a text must be gone
# by then. They are short, or base64, which is read in no time.
KEPT = re.compile(rb'"(?:thought_?signature|signature|finish\w*|block\w*)"\s*:\s*\Z', re.IGNORECASE)
MAX_NAME_BYTES = 64
BACKSLASH = ord("\\")
LOOKS_LIKE_STAND_IN = re.compile(rb"\xef\xb7\x90|\\ufdd0", re.IGNORECASE)

ARRAY_WITHIN_JSON = re.compile(f'"{OPEN}a([0-9]+){CLOSE}"(?:,null)*+')

Take = Callable[[ServerSentEvent], Sequence[TokenChunk]]


@dataclass(frozen=True, slots=True)
class _Text:
    """A long text that was taken out."""

    plain: str
    escaped: str
    """As it stands within JSON; empty unless it was asked for."""


@dataclass(frozen=True, slots=True)
class _Array:
    """The items of a long array that were taken out."""

    items: list[object]
    written: bytes
    """As they stood; empty unless it was asked for."""


async def take_large(
    take: Take,
    event: ServerSentEvent,
    *,
    json_arguments: bool = False,
    piece_bytes: int = PIECE_BYTES,
) -> Sequence[TokenChunk]:
    """Reads a large event; others have their turn after every piece of it.

    Args:
        take: Reads an event at once.
        event: The event.
        json_arguments: The arguments of calls come as objects, and `take` writes them as JSON.
        piece_bytes: How much is read without a pause.

    Raises:
        OrchestratorError: What `take` raises for the event.
    """
    try:
        taken = await _taken_out(event.data, piece_bytes, escape=json_arguments)
    except NOT_JSON:
        return take(event)
    if taken is None:
        return take(event)
    try:
        chunks = take(ServerSentEvent(taken.rest, event.event))
    except OrchestratorError:
        return take(event)  # its text must quote what came
    return [_restored(chunk, taken, json_arguments=json_arguments) for chunk in chunks]


@dataclass(frozen=True, slots=True)
class _TakenOut:
    """An event, and what was taken out of it."""

    rest: bytes
    """The event with a stand-in for every text and array longer than a piece."""
    texts: list[_Text]
    arrays: list[_Array]


async def _taken_out(data: bytes, piece_bytes: int, *, escape: bool) -> _TakenOut | None:
    """Takes out what is long; None if nothing is, or if something looks like a stand-in.

    Raises:
        msgspec.DecodeError: A text has no end, or isn't one; or an array isn't one.
    """
    rest: list[bytes] = []
    texts: list[_Text] = []
    arrays: list[_Array] = []
    copied = start = paused = 0
    while (quote := data.find(b'"', start)) >= 0:
        bracket = data.find(b"[", start, quote)
        if bracket >= 0:
            start = bracket + 1
            array = await long_array(data, start, piece_bytes)
            if array is not None:
                stand_in = f'"{OPEN}a{len(arrays)}{CLOSE}"'.encode()
                rest += (data[copied:start], stand_in + b",null" * (len(array[1]) - 1))
                arrays.append(_Array(array[1], data[start : array[0]] if escape else b""))
                copied = paused = start = array[0]
            continue
        end = _end(data, quote + 1, piece_bytes)
        if end is None:
            end, text = await _long_text(data, quote + 1, piece_bytes, escape=escape)
            start = end + 1
            if KEPT.search(data, max(0, quote - MAX_NAME_BYTES), quote):
                continue
            rest += (data[copied : quote + 1], f"{OPEN}{len(texts)}{CLOSE}".encode())
            copied = paused = end
            texts.append(text)
        elif end - paused > piece_bytes:
            paused = end
            await asyncio.sleep(0)
        start = end + 1
    rest.append(data[copied:])
    if len(rest) == 1 or any(map(LOOKS_LIKE_STAND_IN.search, rest[::2])):
        return None
    return _TakenOut(b"".join(rest), texts, arrays)


def _end(data: bytes, start: int, within_bytes: int) -> int | None:
    """Returns where the text ends that starts there; None if it doesn't within so many bytes."""
    end = data.find(b'"', start, start + within_bytes)
    if end > start and data[end - 1] == BACKSLASH:
        found = INSIDE.match(data, start, start + within_bytes)
        end = -1 if found is None else found.end()
        return end if data[end : end + 1] == b'"' else None
    return None if end < 0 else end


async def _long_text(
    data: bytes, start: int, piece_bytes: int, *, escape: bool
) -> tuple[int, _Text]:
    """Returns where the text ends that starts there, and the text.

    Raises:
        msgspec.DecodeError: It has no end, or isn't one.
    """
    plain: list[str] = []
    escaped: list[str] = []
    last = False
    while not last:
        end = _cut(data, start, piece_bytes)
        try:
            piece = _text(data[start:end])
        except msgspec.DecodeError:
            found = _end(data, start, piece_bytes)
            if found is None:
                raise
            piece, end, last = _text(data[start:found]), found, True
        plain.append(piece)
        if escape:
            escaped.append(msgspec.json.encode(piece)[1:-1].decode())
        start = end
        await asyncio.sleep(0)
    return start, _Text("".join(plain), "".join(escaped))


def _text(inside: bytes) -> str:
    """Reads what stands between the quotes, where no quote can stand.

    Raises:
        msgspec.DecodeError: It is no text.
    """
    if not inside:
        raise msgspec.DecodeError("a text without an end")
    return msgspec.json.decode(b'"' + inside + b'"', type=str)


def _cut(data: bytes, start: int, piece_bytes: int) -> int:
    """Returns a place at most a piece further on, never within a character or its escape."""
    end = min(start + piece_bytes, len(data))
    while end > start and end < len(data) and data[end] & 0xC0 == 0x80:  # noqa: PLR2004 - UTF-8's mark of a byte that goes on
        end -= 1
    for place in range(max(start, end - ESCAPE_BYTES + 1), end):
        # a short escape is whole if its second character is there
        unfinished = place + 1 == end or data[place + 1] == ord("u")
        if unfinished and _escapes(data, start, place):
            end = place
            break
    before = end - ESCAPE_BYTES
    whole = before >= start and HIGH_SURROGATE.match(data, before, end)
    return before if whole and _escapes(data, start, before) else end


def _escapes(data: bytes, start: int, place: int) -> bool:
    """Whether an escape begins at that place of a text, and not one place before."""
    if data[place] != BACKSLASH:
        return False
    run = data[start : place + 1]
    return (len(run) - len(run.rstrip(b"\\"))) % 2 == 1


def _restored(chunk: TokenChunk, taken: _TakenOut, *, json_arguments: bool) -> TokenChunk:
    def put_back(value: str, *, within_json: bool = False) -> str:
        def text(found: re.Match[str]) -> str:
            long = taken.texts[int(found[1])]
            return long.escaped if within_json else long.plain

        def items(found: re.Match[str]) -> str:
            return taken.arrays[int(found[1])].written.decode()

        if within_json and STAND_IN.fullmatch(value):
            within_json = False  # arguments that were a text, and not an object
        value = STAND_IN.sub(text, value)
        # last, for what stands in an array may look like a stand-in
        return ARRAY_WITHIN_JSON.sub(items, value) if within_json and taken.arrays else value

    def restore(value: object, name: str = "") -> object:
        if isinstance(value, str):
            return put_back(value, within_json=json_arguments and name == "arguments")
        if isinstance(value, list):
            items = cast("list[object]", value)
            array = ARRAY_STAND_IN.match(items[0]) if items and isinstance(items[0], str) else None
            return taken.arrays[int(array[1])].items if array else [restore(item) for item in items]
        if isinstance(value, dict):
            members = cast("dict[str, object]", value)
            return {put_back(key): restore(member, key) for key, member in members.items()}
        return value

    fields = cast("dict[str, object] | None", restore(chunk.fields))
    return TokenChunk(put_back(chunk.text), chunk.tokens, fields, chunk.index)
