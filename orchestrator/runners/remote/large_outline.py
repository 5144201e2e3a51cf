"""A large event, gone through piece by piece: what is long in it is taken out, the rest stays.

A value that fits into a piece is found by one expression; one that doesn't is entered. So there are
as many steps as pieces, whatever the event consists of, and others have their turn after each. All
that is taken out has been read once and is JSON.

Paths are the names of the members that lead to a value, with dots between; arrays count for
nothing: `choices.delta.content`.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

# Characters that no text may have (Unicode 23.7, "Noncharacters") stand for what was taken out.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
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
ESCAPE_BYTES = len(b"\\u0000")
BACKSLASH = ord("\\")


KEPT = re.compile(
    r"(?:.*\.)?(?:id|index|name|type|status|reason|done_reason|finish\w*|stop\w*|matched_stop|block\w*"
    r"|signature|thought_?[sS]ignature)"
)
"""Short as a rule, or base64, which is read in no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the events of one wire format consist of; each expression must match a whole path."""

    several: re.Pattern[str]
    """Texts and arrays of which an event may bring a part, and the next event more."""
    anything: re.Pattern[str]
    """Values that the reader takes as they are."""
    kept: re.Pattern[str] = KEPT
    """Texts that the reader looks at, or tells with a later event: they stay where they are."""
    pairs: Sequence[bytes] = ()
    """Names of arrays of one object whose items belong together, place by place."""
    written: bool = False
    """Whether the arguments of calls, which come as objects, are told as they were written."""


PLAIN = Shape(several=re.compile(r"(?!)"), anything=re.compile(r"(?!)"))
"""Nothing is known of it: all but long texts is read at once."""


class UnreadableError(Exception):
    """The event can't be gone through: it is no JSON, or of a form that nobody sends."""


@dataclass(slots=True, kw_only=True)
class Slices:
    """An array or text that is told in several events."""

    parts: list[bytes]
    """What stands between its brackets, or quotes."""
    whole: bool
    """Whether a part takes the place of the stand-in with its quotes, as items do."""
    object: int | None = None
    """The number of the object that has all of a pair; None if it is none of a pair."""


@dataclass(frozen=True, slots=True)
class Run:
    """Items or members of what the reader takes as it is."""

    pieces: Sequence[bytes]
    members: bool
    """They are an object's, and not an array's."""


@dataclass(slots=True)
class Outline:
    """An event, and what was taken out of it."""

    rest: bytes = b""
    """The event with a stand-in for all that was taken out."""
    texts: list[Sequence[str]] = field(default_factory=list[Sequence[str]])
    """Long texts, in pieces."""
    runs: list[Run] = field(default_factory=list[Run])
    slices: list[Slices] = field(default_factory=list[Slices])


def stand_in(kind: str, number: int) -> bytes:
    """Returns what stands for the text (`""`), run (`"r"`) or slices (`"s"`) of that number."""
    return f"{OPEN}{kind}{number}{CLOSE}".encode()


async def outline_of(data: bytes, shape: Shape, piece_bytes: int) -> Outline:
    """Goes through an event.

    Args:
        data: The event.
        shape: What it consists of.
        piece_bytes: How much is read without a pause.

    Raises:
        UnreadableError: It can't be done.
        msgspec.DecodeError: The event is no JSON.
        UnicodeDecodeError: A text in it is no UTF-8.
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
        self._space()
        rest = await self._long_value("")
        if self._at < len(self._data):
            raise UnreadableError
        self._found.rest = rest
        return self._found

    async def _paid(self, count: int) -> None:
        self._read_bytes += count
        if self._read_bytes > self._piece_bytes // 2:  # the next piece may be a whole one
            self._read_bytes = 0
            await asyncio.sleep(0)

    def _space(self) -> bytes:
        """Takes blanks, which stay: arguments are told as they were written."""
        found = SPACE.match(self._data, self._at)
        self._at = self._at if found is None else found.end()
        return b"" if found is None else found[0]

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
            UnreadableError: It is no value, or too deep.
        """
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnreadableError
        await self._paid(ENTERING_BYTES)
        shape = self._shape
        # what is within an array is one item of it, and can't be told as several
        several = not (free or within_array) and shape.several.fullmatch(path) is not None
        free = free or shape.anything.fullmatch(path) is not None
        begin = self._data[self._at : self._at + 1]
        self._at += 1
        if begin == b'"':
            value = await self._text(path, several=several)
        elif begin == b"[":
            value = await self._array(path, free=free and not several, several=several)
        elif begin == b"{":
            value = await self._object(path, free=free)
        else:
            raise UnreadableError
        self._depth -= 1
        return value + self._space()

    async def _array(self, path: str, *, free: bool, several: bool) -> bytes:
        paired = several and path.rpartition(".")[2].encode() in self._shape.pairs
        parts: list[bytes] = []
        counts: list[int] = []
        run: list[bytes] = []
        while True:
            items, last = self._match(FEW_ITEMS if paired else ITEMS)[:-1], b""
            if not items:
                last = items = self._match(LAST_ITEM)
            if items:
                counts.append(len(_items(items)))
                (run if free else parts).append(items)
                await self._paid(len(items))
            else:
                space = self._space()
                if self._data[self._at : self._at + 1] == b"]" and not parts and not run:
                    break
                self._end_run(run, parts)
                parts.append(space + await self._long_value(path, free=free, within_array=True))
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

    async def _object(self, path: str, *, free: bool) -> bytes:
        self._objects += 1
        number = self._objects
        parts: list[bytes] = []
        run: list[bytes] = []
        while True:
            members, last = self._match(MEMBERS)[:-1], b""
            if not members:
                last = members = self._match(LAST_MEMBER)
            if members:
                msgspec.json.decode(b"{" + members + b"}")
                (run if free else parts).append(members)
                await self._paid(len(members))
            else:
                space = self._space()
                if self._data[self._at : self._at + 1] == b"}" and not parts and not run:
                    break
                self._end_run(run, parts, members=True)
                parts.append(space + await self._member(path, free=free))
                last = self._separator(b"}")
            if last:
                break
        self._end_run(run, parts, members=True)
        self._at += 1
        return b"{" + self._tied(b",".join(parts), number) + b"}"

    async def _member(self, path: str, *, free: bool) -> bytes:
        named = self._match(NAME)
        if not named:
            raise UnreadableError
        name = msgspec.json.decode(named.rstrip(b" \t\r\n:"), type=str)
        return named + await self._long_value(f"{path}.{name}" if path else name, free=free)

    def _separator(self, end: bytes) -> bytes:
        """Takes the comma after an entered value; returns the end, untaken, if that comes.

        Raises:
            UnreadableError: Neither comes.
        """
        found = self._data[self._at : self._at + 1]
        if found == b",":
            self._at += 1
            return b""
        if found != end:
            raise UnreadableError
        return found

    def _end_run(self, run: list[bytes], parts: list[bytes], *, members: bool = False) -> None:
        """Puts a stand-in for what came of a value that the reader takes as it is."""
        if sum(map(len, run)) > self._piece_bytes // 2:
            name = b'"' + stand_in("r", len(self._found.runs)) + b'"'
            parts.append(name + b":null" if members else name)
            self._found.runs.append(Run(run.copy(), members))
        else:
            parts += run
        run.clear()

    def _sliced(self, parts: list[bytes], *, whole: bool, paired: bool = False) -> bytes:
        mark = stand_in("s", len(self._found.slices))
        # which object it is tied to is known when that ends
        self._found.slices.append(Slices(parts=parts, whole=whole, object=-1 if paired else None))
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
            piece, last = self._text_piece()
            raw.append(piece)
            plain.append(msgspec.json.decode(b'"' + piece + b'"', type=str))
            await self._paid(len(piece))
        self._at += 1
        # a text is entered as well if many blanks follow it, and a reader asks whether it is empty
        if len(raw) == 1 or self._shape.kept.fullmatch(path):
            return self._data[start - 1 : self._at]
        if several:
            return b'"' + self._sliced(raw, whole=False) + b'"'
        self._found.texts.append(plain)
        return b'"' + stand_in("", len(self._found.texts) - 1) + b'"'

    def _text_piece(self) -> tuple[bytes, bool]:
        """Takes a piece of a text, and tells whether the text ends there.

        Raises:
            UnreadableError: It has no end.
        """
        data, start = self._data, self._at
        found = INSIDE.match(data, start, start + self._piece_bytes)
        end = start if found is None else found.end()
        last = data[end : end + 1] == b'"'
        if not last:
            end = cut(data, start, self._piece_bytes)
            if end == start:
                raise UnreadableError
        self._at = end
        return _plain(data[start:end]), last


def _items(items: bytes) -> list[object]:
    return msgspec.json.decode(b"[" + items + b"]", type=list[object])


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
