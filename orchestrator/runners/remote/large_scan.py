"""A large event, gone through piece by piece: what is long in it is taken out, the rest stays.

A value that fits into a piece is found by one expression; one that doesn't is entered. So there are
as many steps as pieces, whatever the event consists of, and others have their turn after each.
"""

import asyncio
import re

import msgspec

from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.halves import FIRST
from orchestrator.runners.remote.large_outline import (
    Outline,
    Run,
    Slices,
    Text,
    begin_of,
    stand_in,
)
from orchestrator.runners.remote.large_shape import Shape
from orchestrator.runners.remote.translation import object_in

MAX_DEPTH = 32
PAIRED = 8
"""Items in a slice of arrays whose items belong together, place by place."""
ENTERING_BYTES = 256
"""What it costs to enter a value, in bytes that are read in that time."""

# A text, and values that contain others up to eight levels deep. All repeats are possessive, so
# nothing is tried twice and no stack grows. The expressions are lenient, the decoder is strict.
_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_SPACE = r"[ \t\r\n]*+"


def _value(levels: int) -> str:
    plain = rf'{_TEXT}|[^\s"\[\]{{}},:]++'
    if not levels:
        return f"(?:{plain})"
    return rf"(?:{plain}|[\[{{](?:[\s,:]++|{_value(levels - 1)})*+[\]}}])"


def _expression(text: str) -> re.Pattern[bytes]:
    return re.compile(text.encode(), re.DOTALL)


SPACE = _expression(_SPACE)
NAME = _expression(rf"{_SPACE}({_TEXT}){_SPACE}:{_SPACE}")
ITEM = rf"{_SPACE}{_value(8)}{_SPACE}"
MEMBER = rf"{_SPACE}{_TEXT}{_SPACE}:{ITEM}"
ITEMS, LAST_ITEM = _expression(f"(?:{ITEM},)++"), _expression(rf"{ITEM}(?=\])")
FEW_ITEMS = _expression(rf"(?:{ITEM},){{1,{PAIRED}}}+")
MEMBERS, LAST_MEMBER = _expression(f"(?:{MEMBER},)++"), _expression(rf"{MEMBER}(?=\}})")
# A text's inside, without end
INSIDE = _expression(r'(?:[^"\\]++|\\.)*+')
HIGH_SURROGATE = _expression(r"\\u[dD][89abAB]..")
FIRST_IS_HALF = _expression(r"\\u[dD][c-fC-F]..")
HALF = _expression(r"\\u[dD][89a-fA-F]")
ESCAPE_BYTES = len(b"\\u0000")
BACKSLASH, QUOTE = b'\\"'
PLACE = re.compile(r"\(byte ([0-9]+)\)")
UNSURE_BYTES = 32
"""Near its end a piece may be wrong for no other reason than that it ends there."""


class UnreadableError(Exception):
    """The event can't be gone through, though it may be JSON: of a form that nobody sends."""


class MalformedError(Exception):
    """The event is no JSON; the text says why, in the decoder's words."""


class _Item(msgspec.Struct):
    index: object = None


_item = msgspec.json.Decoder(_Item)


async def outline_of(data: bytes, shape: Shape, piece_bytes: int) -> Outline:
    """Goes through an event.

    Args:
        data: The event.
        shape: What it consists of.
        piece_bytes: How much is read without a pause.

    Raises:
        UnreadableError: It can't be done.
        MalformedError: It is no JSON.
    """
    return await _Scan(data, shape, piece_bytes).outline()


class _Scan:
    """One event while it is gone through; `_at` is the place in it."""

    def __init__(self, data: bytes, shape: Shape, piece_bytes: int) -> None:
        self._data = data
        self._shape = shape
        self._piece_bytes = piece_bytes
        self._at = 0
        self._read_bytes = 0
        """Bytes that were read since the last pause."""
        self._depth = 0
        self._objects = 0
        self._found = Outline()

    async def outline(self) -> Outline:
        await self._space()
        rest = await self._long_value("")
        if self._at < len(self._data):
            raise self._unmatched(b'""')
        self._found.rest = rest
        return self._found

    async def _paid(self, count: int) -> None:
        self._read_bytes += count
        if self._read_bytes > self._piece_bytes // 2:  # the next piece may be a whole one
            self._read_bytes = 0
            await asyncio.sleep(0)

    async def _space(self) -> bytes:
        """Takes blanks; a piece of them stays, for arguments are told as they were written."""
        start = self._at
        while found := SPACE.match(self._data, self._at, self._at + self._piece_bytes):
            if not found[0]:
                break
            self._at = found.end()
            await self._paid(len(found[0]))
        return self._data[start : min(self._at, start + self._piece_bytes)]

    def _match(self, expression: re.Pattern[bytes]) -> bytes:
        """Takes what matches within a piece; empty if nothing does."""
        found = expression.match(self._data, self._at, self._at + self._piece_bytes)
        if found is None:
            return b""
        self._at = found.end()
        return _plain(found[0])

    async def _long_value(
        self, path: str, *, free: bool = False, within_array: bool = False
    ) -> bytes:
        """Enters a value and returns what stands for it.

        Args:
            path: Of the value.
            free: It is within something that the reader takes as it is.
            within_array: It is an item.

        Raises:
            UnreadableError: It is too deep.
            MalformedError: It is no value.
        """
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError
        await self._paid(ENTERING_BYTES)
        shape = self._shape
        # what is within an array is one item of it, and can't be told as several
        several = not (free or within_array) and shape.several.fullmatch(path) is not None
        anything = free or shape.anything.fullmatch(path) is not None
        free = anything and not several
        begin = self._data[self._at : self._at + 1]
        if begin not in (b'"', b"[", b"{"):
            raise self._unmatched(b"[")
        self._at += 1
        if begin == b'"':
            value = await self._text(path, several=several)
        elif begin == b"[":
            value = await self._array(path, anything=anything, several=several)
        else:
            value = await self._object(path, free=free, several=several and anything)
        self._depth -= 1
        return value + await self._space()

    async def _array(self, path: str, *, anything: bool, several: bool) -> bytes:
        shape = self._shape
        paired = several and path.rpartition(".")[2].encode() in shape.pairs
        one, over = shape.one.fullmatch(path) is not None, False
        free = anything and not several
        parts: list[bytes] = []
        counts: list[int] = []
        run: list[bytes] = []
        while True:
            begin = self._at
            items, last = self._match(FEW_ITEMS if paired else ITEMS)[:-1], b""
            if not items:
                last = items = self._match(LAST_ITEM)
            if items:
                read = self._decoded(items, begin, b"[", b"]")
                counts.append(len(read))
                found = one and not over and any(map(_is_first, read))
                if found or not one or not self._fit(items):
                    (run if free else parts).append(items)
                over = over or found
                await self._paid(len(items))
            else:
                space = await self._space()
                if self._data[self._at : self._at + 1] == b"]" and not parts and not run:
                    break
                self._end_run(run, parts)
                item = space + await self._long_value(
                    path, free=anything or over, within_array=True
                )
                found = one and not over and _is_first_item(item)
                # with a stand-in in it an item that is none of ours may look wrong; that harms none
                if found or not one or not self._fit(item):
                    parts.append(item)
                over = over or found
                counts.append(0)
                last = self._separator(b"]")
            if last:
                break
        self._end_run(run, parts)
        self._at += 1
        if paired and not _is_even(parts, counts):
            raise UnreadableError
        if several and len(parts) > 1:
            return b'["' + self._sliced(parts, whole=True, paired=paired) + b'"]'
        return b"[" + b",".join(parts) + b"]"

    def _fit(self, items: bytes) -> bool:
        """Whether the reader bears items that it doesn't take."""
        read = self._shape.items
        if read is None:
            return True
        try:
            read(b"[" + items + b"]")
        except NOT_JSON:
            return False
        return True

    async def _object(self, path: str, *, free: bool, several: bool) -> bytes:
        self._objects += 1
        number = self._objects
        parts: list[bytes] = []
        run: list[bytes] = []
        while True:
            begin = self._at
            members, last = self._match(MEMBERS)[:-1], b""
            if not members:
                last = members = self._match(LAST_MEMBER)
            if members:
                self._decoded(members, begin, b"{", b"}")
                (run if free else parts).append(members)
                await self._paid(len(members))
            else:
                space = await self._space()
                if self._data[self._at : self._at + 1] == b"}" and not parts and not run:
                    break
                self._end_run(run, parts, members=True)
                parts.append(space + await self._member(path, free=free))
                last = self._separator(b"}")
            if last:
                break
        self._end_run(run, parts, members=True)
        self._at += 1
        if several and len(parts) > 1:
            return b'{"' + self._sliced(parts, whole=True, members=True) + b'":null}'
        return b"{" + self._tied(b",".join(parts), number) + b"}"

    async def _member(self, path: str, *, free: bool) -> bytes:
        named = self._match(NAME)
        if not named:
            raise self._unmatched(b"{")
        (name,) = map(str, self._decoded(named + b"0", self._at - len(named), b"{", b"}"))
        return named + await self._long_value(f"{path}.{name}" if path else name, free=free)

    def _separator(self, end: bytes) -> bytes:
        """Takes the comma after an entered value; returns the end, untaken, if that comes.

        Raises:
            MalformedError: Neither comes.
        """
        found = self._data[self._at : self._at + 1]
        if found == b",":
            self._at += 1
            return b""
        if found != end:
            raise self._unmatched(b"[0" if end == b"]" else b'{"":0')
        return found

    def _decoded(
        self, piece: bytes, begin: int, opening: bytes, closing: bytes
    ) -> list[object] | dict[str, object]:
        """Reads items or members.

        Args:
            piece: What was taken.
            begin: Its place.
            opening: The bracket before it.
            closing: The bracket after it.

        Raises:
            UnreadableError: It can't be read here.
            MalformedError: It is no JSON.
        """
        try:
            return msgspec.json.decode(
                opening + piece + closing, type=list[object] | dict[str, object]
            )
        except NOT_JSON as error:
            failure = _failure(error, piece, begin - len(opening))
            raise failure from error

    def _unmatched(self, opening: bytes) -> Exception:
        """Returns what is wrong where nothing matches.

        Args:
            opening: What makes a JSON of what follows, if that is well.
        """
        begin, end = self._at, self._at + self._piece_bytes
        snippet = opening + self._data[begin:end]
        try:
            msgspec.json.decode(snippet)
        except NOT_JSON as error:
            place = PLACE.search(str(error))
            early = place is not None and int(place[1]) < len(snippet) - UNSURE_BYTES
            if early or end >= len(self._data):
                return _failure(error, snippet, begin - len(opening))
        return UnreadableError()

    def _end_run(self, run: list[bytes], parts: list[bytes], *, members: bool = False) -> None:
        """Puts a stand-in for what came of a value that the reader takes as it is."""
        if sum(map(len, run)) > self._piece_bytes // 2:
            name = b'"' + stand_in("r", len(self._found.runs)) + b'"'
            parts.append(name + b":null" if members else name)
            self._found.runs.append(Run(run.copy(), members))
        else:
            parts += run
        run.clear()

    def _sliced(
        self, parts: list[bytes], *, whole: bool, members: bool = False, paired: bool = False
    ) -> bytes:
        mark = stand_in("s", len(self._found.slices))
        # which object it is tied to is known when that ends
        tied = -1 if paired else None
        self._found.slices.append(Slices(parts=parts, whole=whole, members=members, object=tied))
        return mark

    def _tied(self, members: bytes, number: int) -> bytes:
        """Ties the paired arrays of an object to it, if each of them has been taken out."""
        ours = [one for one in enumerate(self._found.slices) if one[1].object == -1]
        if not ours:
            return members
        others = sum(members.count(b'"' + name + b'"') for name in self._shape.pairs)
        for place, slices in ours:
            slices.object = number
            if others != len(ours):
                # one of a pair is short: then so is what stands in the other, or it is odd
                mark = b'"' + stand_in("s", place) + b'"'
                members = members.replace(mark, b",".join(slices.parts))
        return members

    async def _text(self, path: str, *, several: bool) -> bytes:
        start = self._at
        raw: list[bytes] = []
        plain: list[str] = []
        last = False
        while not last:
            begin = self._at
            piece, last = self._text_piece()
            plain.append(self._plain_text(piece, begin, last=last, ends_half=several))
            raw.append(piece)
            await self._paid(len(piece))
        self._at += 1
        # a text is entered as well if many blanks follow it, and a reader asks whether it is empty
        if len(raw) == 1 or self._shape.kept.fullmatch(path):
            return self._data[start - 1 : self._at]
        if several:
            return b'"' + self._sliced(raw, whole=False) + b'"'
        self._found.texts.append(Text(plain, b"".join(begin_of(raw))))
        return b'"' + stand_in("", len(self._found.texts) - 1) + b'"'

    def _text_piece(self) -> tuple[bytes, bool]:
        """Takes a piece of a text, and tells whether the text ends there.

        Raises:
            MalformedError: It has no end.
            UnreadableError: It has something in it that looks like a stand-in.
        """
        data, start = self._data, self._at
        found = INSIDE.match(data, start, start + self._piece_bytes)
        end = start if found is None else found.end()
        last = data[end : end + 1] == b'"'
        if not last:
            end = cut(data, start, self._piece_bytes)
            if end == start:
                raise self._unmatched(b'"')
        self._at = end
        return _plain(data[start:end]), last

    def _plain_text(self, piece: bytes, begin: int, *, last: bool, ends_half: bool) -> str:
        """Reads a piece of a text.

        Args:
            piece: What was taken.
            begin: Its place.
            last: The text ends with it.
            ends_half: The text may begin, and end, within a character (`halves.py`).

        Raises:
            UnreadableError: It can't be read here.
            MalformedError: It is no JSON.
        """
        text = piece
        if ends_half and HALF.search(piece):
            if self._data[begin - 1] == QUOTE and FIRST_IS_HALF.match(piece):
                text = text[ESCAPE_BYTES:]
            half = FIRST.search(text + b'"') if last else None
            text = text if half is None else text[: half.start(1)]
        try:
            return msgspec.json.decode(b'"' + text + b'"', type=str)
        except NOT_JSON as error:
            failure = _failure(error, text, begin - 1)
            raise failure from error


def _failure(error: Exception, piece: bytes, begin: int) -> Exception:
    """Returns what the decoder's refusal of a piece says of the whole event."""
    # in what the reader skips, a number beyond all bounds or a wrong character harms nobody, and
    # the halves of a character may fit
    lenient = isinstance(error, msgspec.ValidationError | RecursionError) or "UTF-8" in str(error)
    if lenient or HALF.search(piece):
        return UnreadableError()
    return MalformedError(PLACE.sub(lambda place: f"(byte {int(place[1]) + begin})", str(error)))


def _is_first(item: object) -> bool:
    return not object_in(item).get("index")


def _is_first_item(item: bytes) -> bool:
    try:
        return not _item.decode(item).index
    except NOT_JSON:
        return False


def _is_even(parts: list[bytes], counts: list[int]) -> bool:
    """Whether all parts but the last have the same number of items, once its end is put to it."""
    if len(parts) > 1 and counts[-2] < PAIRED:
        parts[-2:] = [b",".join(parts[-2:])]
        counts[-2:] = [sum(counts[-2:])]
    return all(count == PAIRED for count in counts[:-1])


def _plain(piece: bytes) -> bytes:
    """Returns what was sent, if nothing in it looks like a stand-in.

    Raises:
        UnreadableError: Something does.
    """
    if b"\xef\xb7\x90" in piece or b"\\ufdd0" in piece.lower():
        raise UnreadableError
    return piece


def cut(data: bytes, start: int, piece_bytes: int) -> int:
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
