"""The chunks that one event of a large one's parts brings, with what was taken out put back.

Long texts, and the arguments of a call that came as an object, are told in several chunks, as a
provider does that streams them: the first has all else. So nobody has to write, send or free a long
text at once.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from orchestrator.events import TokenChunk
from orchestrator.runners.remote.large_outline import CLOSE, OPEN, Outline, Run
from orchestrator.runners.remote.translation import list_in, object_in

TEXT = re.compile(f"{OPEN}([0-9]+){CLOSE}")
RUN = re.compile(f"{OPEN}r([0-9]+){CLOSE}")
STAND_IN = re.compile(f'"{OPEN}r([0-9]+){CLOSE}"(?::null)?|{OPEN}([0-9]+){CLOSE}')
"""What stands within the JSON of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rest:
    """What is still to be told of a text, and as what."""

    text: str
    """With its stand-ins."""
    json: bool = False
    """It is the JSON of an object."""
    call: object = None
    """The number of the call whose arguments it is."""
    name: str | None = None
    """The field that it is; it is the chunk's text if it is neither."""

    def told(self, piece: str, tokens: int, index: int) -> TokenChunk:
        """Returns the chunk that tells a piece of it."""
        if self.call is not None:
            call = {"index": self.call, "function": {"arguments": piece}}
            return TokenChunk("", tokens, {"tool_calls": [call]}, index)
        if self.name is not None:
            return TokenChunk("", tokens, {self.name: piece}, index)
        return TokenChunk(piece, tokens, None, index)


async def restored(
    chunk: TokenChunk, outline: Outline, *, written: bool
) -> AsyncGenerator[TokenChunk]:
    """Tells a chunk with what was taken out put back; others have their turn after each.

    Args:
        chunk: What a reader made of an event with stand-ins.
        outline: What was taken out.
        written: Whether arguments are told as they were written.
    """
    rests: list[_Rest] = []
    text, fields, tokens = _begin(chunk.text, rests), None, chunk.tokens
    if chunk.fields is not None:
        begun = {name: _begun(name, value, rests) for name, value in chunk.fields.items()}
        runs: dict[int, _Members] = {}
        await _read_all(begun, outline, runs)
        fields = _restored(begun, outline, runs)
    if text or any((fields or {}).values()):
        yield TokenChunk(text, tokens, fields, chunk.index)
        tokens = 0
    for rest in rests:
        for piece in _pieces(rest, outline, written=written):
            yield rest.told(piece, tokens, chunk.index)
            tokens = 0
            await asyncio.sleep(0)


def _begin(text: str, rests: list[_Rest], name: str | None = None) -> str:
    """Returns a text up to its first stand-in; the rest is told later."""
    begin, opened, _ = text.partition(OPEN)
    if opened:
        rests.append(_Rest(text=text[len(begin) :], name=name))
    return begin


def _begun(name: str, value: object, rests: list[_Rest]) -> object:
    """Returns a field without the texts in it that are told later."""
    if isinstance(value, str):
        return _begin(value, rests, name)
    return [_call(one, rests) for one in list_in(value)] if name == "tool_calls" else value


def _call(call: object, rests: list[_Rest]) -> object:
    members = object_in(call)
    function = object_in(members.get("function"))
    arguments = function.get("arguments")
    begin = STAND_IN.search(arguments) if isinstance(arguments, str) else None
    if begin is None:
        return call
    rest, json = begin.string[begin.start() :], begin.string != begin[0]
    rests.append(_Rest(text=rest, json=json, call=members["index"]))
    begun = begin.string[: begin.start()]
    return {**members, "function": {**function, "arguments": begun}}


def _pieces(rest: _Rest, outline: Outline, *, written: bool) -> Iterator[str]:
    """Gives what is still to be told of a text, piece by piece."""
    at = 0
    for found in (STAND_IN if rest.json else TEXT).finditer(rest.text):
        if at < found.start():
            yield rest.text[at : found.start()]
        at = found.end()
        if not rest.json:
            yield from filter(None, outline.texts[int(found[1])].pieces)
        elif found[1]:
            yield from _written(outline.runs[int(found[1])], written=written)
        else:
            for piece in outline.texts[int(found[2])].pieces:
                yield msgspec.json.encode(piece)[1:-1].decode()
    if at < len(rest.text):
        yield rest.text[at:]


def _written(run: Run, *, written: bool) -> Iterator[str]:
    opening, closing = (b"{", b"}") if run.members else (b"[", b"]")
    between = ""
    for piece in run.pieces:
        told = piece
        if not written:
            value = cast("object", msgspec.json.decode(opening + piece + closing))
            told = msgspec.json.encode(value)[1:-1]
        yield between + told.decode()
        between = ","


_Members = list[object] | dict[str, object]


async def _read_all(value: object, outline: Outline, runs: dict[int, _Members]) -> None:
    """Reads the runs that a value refers to."""
    if isinstance(value, str):
        found = RUN.fullmatch(value)
        if found is not None:
            runs[int(found[1])] = await _read(outline.runs[int(found[1])])
    elif isinstance(value, list):
        for item in cast("list[object]", value):
            await _read_all(item, outline, runs)
    elif isinstance(value, dict):
        for name, member in cast("dict[str, object]", value).items():
            await _read_all(name, outline, runs)
            await _read_all(member, outline, runs)


async def _read(run: Run) -> _Members:
    items: list[object] = []
    members: dict[str, object] = {}
    for piece in run.pieces:
        if run.members:
            members |= msgspec.json.decode(b"{" + piece + b"}", type=dict[str, object])
        else:
            items += msgspec.json.decode(b"[" + piece + b"]", type=list[object])
        await asyncio.sleep(0)
    return members if run.members else items


def _restored(
    members: Mapping[str, object], outline: Outline, runs: Mapping[int, _Members]
) -> dict[str, object]:
    """Returns an object with all that it refers to in its place."""

    def text(found: re.Match[str]) -> str:
        return "".join(outline.texts[int(found[1])].pieces)

    def items_of(item: object) -> Iterable[object]:
        found = RUN.fullmatch(item) if isinstance(item, str) else None
        return (value(item),) if found is None else runs[int(found[1])]

    def value(given: object) -> object:
        if isinstance(given, str):
            return TEXT.sub(text, given)
        if isinstance(given, list):
            return [one for item in cast("list[object]", given) for one in items_of(item)]
        if isinstance(given, dict):
            return _restored(cast("dict[str, object]", given), outline, runs)
        return given

    whole: dict[str, object] = {}
    for name, member in members.items():
        found = RUN.fullmatch(name)
        known = None if found is None else cast("dict[str, object]", runs[int(found[1])])
        # with nothing before it there is nothing to copy
        whole = (
            whole | (known or {name: value(member)}) if whole else known or {name: value(member)}
        )
    return whole
