"""A large body, decoded in pieces: whatever it consists of, the loop isn't held up by it.

A decoder can't be interrupted and keeps the interpreter's lock, so no thread helps: 10 MB held all
others up for 20 to 50 ms at a time. Here as many whole items as fit into a piece are found by one
expression and decoded; what is larger is entered, and a long text is decoded in pieces. After each
piece there is a rest, in which others have their turns. What comes out is the same as of one
decoding.
"""

import re
from typing import NoReturn

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.members import (
    MAX_MESSAGES,
    MAX_VALUES,
    Members,
    decode,
    decode_object,
    too_many_messages,
    unreadable,
    wrong,
)
from orchestrator.runners.remote.large_scan import INSIDE, cut
from orchestrator.runners.remote.pace import PIECE_BYTES, Pace

LARGE_BODY_BYTES = 256 << 10
"""A smaller body is decoded at once, unless it consists of very much."""
SMALL_BODY_BYTES = 64 << 10
"""One that isn't larger is decoded at once, whatever it consists of."""
MANY_MARKS = 1 << 14
"""Commas and brackets; 256 KiB of more of them can take a decoder 30 ms."""
ITEMS_SHARE = 4
"""Small items cost more than as many bytes of one text."""
MAX_DEPTH = 128
NAME_BYTES = 16 << 10
COUNTED_FROM_MARKS = 256
"""Commas and brackets of a piece beyond which it is looked which of them stand in texts."""

# A text, and values that contain others up to four levels deep. All repeats are possessive, so
# nothing is tried twice. The expressions are lenient, the decoder is strict.
TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
SPACE = r"[ \t\r\n]*+"


def _value(levels: int) -> str:
    plain = TEXT + r'|[^\s"\[\]{},:]++'
    if not levels:
        return f"(?:{plain})"
    return rf"(?:{plain}|[\[{{](?:[\s,:]++|{_value(levels - 1)})*+[\]}}])"


_MEMBER = rf"{SPACE}({TEXT}){SPACE}:{SPACE}{_value(4)}{SPACE}"
ITEMS = re.compile(rf"(?:{SPACE}{_value(4)}{SPACE},)*+".encode(), re.DOTALL)
LAST = re.compile(rf"{SPACE}{_value(4)}{SPACE}(?=\])".encode(), re.DOTALL)
MEMBER = re.compile(_MEMBER.encode(), re.DOTALL)
MEMBERS = re.compile(rf"(?:{_MEMBER},)*+".encode(), re.DOTALL)
LAST_MEMBER = re.compile(rf"{_MEMBER}(?=\}})".encode(), re.DOTALL)
NAME = re.compile(rf"({TEXT}){SPACE}:".encode(), re.DOTALL)
SCALAR = re.compile(rb'[^\s"\[\]{},:]{1,400}+')
BLANKS = re.compile(SPACE.encode())
TEXTS = re.compile(TEXT.encode(), re.DOTALL)
_BYTE = re.compile(r" \(byte ([0-9]+)\)")
_STRAY = "JSON is malformed: invalid character"

Holder = dict[str, object] | list[object]
_items = msgspec.json.Decoder(list[object])
_texts = msgspec.json.Decoder(str)


def is_large(body: bytes) -> bool:
    """Whether a body is decoded in pieces."""
    if len(body) <= SMALL_BODY_BYTES:
        return False
    return len(body) > LARGE_BODY_BYTES or _marks(body) > MANY_MARKS


async def decode_large(
    body: bytes, kind: type[msgspec.Struct], piece_bytes: int = PIECE_BYTES
) -> Members:
    """Decodes a body.

    Args:
        body: The whole body.
        kind: Its fields that mean something here.
        piece_bytes: How much of a text is decoded at once, and a quarter of it of small items.

    Raises:
        InvalidRequestError: It is no JSON object, or consists of too much.
    """
    walk = _Walk(body, piece_bytes)
    await walk.skip_blanks()
    if body[walk.at : walk.at + 1] != b"{":
        return decode(body, kind)  # which looks no further
    return await walk.read()


class _Walk:
    """The way through a body: what is open, outermost first, and where it goes on."""

    def __init__(self, body: bytes, piece_bytes: int) -> None:
        self.at = 0
        self._piece_bytes = piece_bytes
        self._items_bytes = piece_bytes // ITEMS_SHARE
        self._body = body
        self._pace = Pace()
        self._values = 0
        self._stack: list[Holder] = []
        self._names: list[str] = []
        """Beside each of them, the name of its member that is open."""

    async def read(self) -> dict[str, object]:
        """Reads the object that begins here, which is all of the body."""
        whole: dict[str, object] = {}
        self._open(whole)
        while self._stack:
            await self._read_small(self._stack[-1])
        await self.skip_blanks()
        if self.at < len(self._body):
            self._refuse("JSON is malformed: trailing characters")
        return whole

    async def skip_blanks(self) -> None:
        """Goes on to what is no blank."""
        while True:
            start = self.at
            self.at = _end(BLANKS, self._body, start, self._piece_bytes)
            if self.at - start < self._piece_bytes:
                return
            await self._pace.rest()

    async def _read_small(self, holder: Holder) -> None:
        """Takes all small items that come, then what is no small item, or the holder's end."""
        body, begun = self._body, bool(holder)
        items, last = (MEMBERS, LAST_MEMBER) if isinstance(holder, dict) else (ITEMS, LAST)
        while (end := _end(items, body, self.at, self._items_bytes)) > self.at:
            self._take(holder, self.at, end - 1)
            self.at, begun = end, True
            await self._pace.rest()
        end = _end(last, body, self.at, self._items_bytes)
        if end > self.at:
            self._take(holder, self.at, end)
            self.at = end
            await self._go_on()
            return
        await self._pace.rest()
        await self.skip_blanks()
        if not begun and body[self.at : self.at + 1] == _closing(holder):
            await self._go_on()
        else:
            await self._read_large(holder)

    async def _read_large(self, holder: Holder) -> None:
        body = self._body
        if isinstance(holder, dict):
            name = NAME.match(body, self.at, self.at + NAME_BYTES)
            if name is None:
                self._refuse(f"{_STRAY}, or a name that is too long")
            self._names[-1] = self._text(name[1], self.at)
            self.at = name.end()
            await self.skip_blanks()
        self._count(1)
        first = body[self.at : self.at + 1]
        if first in (b"{", b"["):
            inner: Holder = {} if first == b"{" else []
            self._put(holder, inner)
            self._open(inner)
            return
        if first == b'"':
            self._put(holder, await self._long_text())
        else:
            scalar = SCALAR.match(body, self.at)
            if scalar is None:
                self._refuse(_STRAY if first else "Input data was truncated")
            self._put(holder, self._items(self.at, scalar.end())[0])
            self.at = scalar.end()
        await self._go_on()

    async def _long_text(self) -> str:
        """Reads the text that begins here."""
        body, start = self._body, self.at + 1
        pieces: list[str] = []
        while True:
            end = cut(body, start, self._piece_bytes)
            try:
                pieces.append(_texts.decode(b'"' + body[start:end] + b'"'))
            except msgspec.DecodeError:
                break  # a quote stands there, for nothing else that is whole is no text
            if end in (start, len(body)):
                self._refuse("Input data was truncated")
            start = end
            await self._pace.rest()
        end = _end(INSIDE, body, start, self._piece_bytes)
        pieces.append(self._text(b'"' + body[start : end + 1], start - 1))
        self.at = end + 1
        return "".join(pieces)

    async def _go_on(self) -> None:
        """Goes on to the next item after one, leaving whatever ends here."""
        while self._stack:
            await self.skip_blanks()
            found = self._body[self.at : self.at + 1]
            if found == b",":
                self.at += 1
                return
            if found != _closing(self._stack[-1]):
                self._refuse(_STRAY if found else "Input data was truncated")
            self.at += 1
            self._stack.pop()
            self._names.pop()

    def _open(self, holder: Holder) -> None:
        self._stack.append(holder)
        self._names.append("")
        if len(self._stack) > MAX_DEPTH:
            raise unreadable("it is nested too deeply", self._body)
        self.at += 1

    def _put(self, holder: Holder, item: object) -> None:
        if isinstance(holder, dict):
            holder[self._names[-1]] = item
        else:
            holder.append(item)
            self._check_messages(holder)

    def _take(self, holder: Holder, start: int, end: int) -> None:
        """Takes small items that stand there."""
        piece = self._body[start:end]
        marks = _marks(piece)
        self._count(1 + (_marks(TEXTS.sub(b"", piece)) if marks > COUNTED_FROM_MARKS else marks))
        if isinstance(holder, dict):
            holder.update(self._members(start, end))
        else:
            holder += self._items(start, end)
            self._check_messages(holder)

    def _check_messages(self, holder: list[object]) -> None:
        if len(holder) > MAX_MESSAGES and self._names[:-1] == ["messages"]:
            raise too_many_messages(len(holder))

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise InvalidRequestError(
                f"the body has more than {MAX_VALUES} values, those within lists and objects"
                " included"
            )

    def _members(self, start: int, end: int) -> dict[str, object]:
        piece = self._body[start:end]
        try:
            return decode_object(b"{" + piece + b"}")
        except msgspec.ValidationError:
            self._refuse_number(piece)
        except msgspec.DecodeError as error:
            self._refuse(str(error), start - 1)

    def _items(self, start: int, end: int) -> list[object]:
        try:
            return _items.decode(b"[" + self._body[start:end] + b"]")
        except msgspec.ValidationError:
            self._refuse_number(b"")
        except msgspec.DecodeError as error:
            self._refuse(str(error), start - 1)

    def _text(self, quoted: bytes, at: int) -> str:
        try:
            return _texts.decode(quoted)
        except msgspec.DecodeError as error:
            self._refuse(str(error), at)

    def _refuse_number(self, piece: bytes) -> NoReturn:
        """Names the body's own field in which a number is that nothing can hold."""
        names = self._names[:1]
        if len(self._stack) == 1:
            names = [
                self._text(member[1], 0) for member in MEMBER.finditer(piece) if _is_beyond(member)
            ]
        refusal = wrong(names[0], "number out of range")
        raise refusal

    def _refuse(self, text: str, shift: int | None = None) -> NoReturn:
        """Refuses the body as none that can be read.

        Args:
            text: Of the decoder.
            shift: Where in the body that began what the decoder has seen; None is here and now.
        """
        if shift is None:
            text = f"{text} (byte {self.at})"
        else:
            text = _BYTE.sub(lambda found: f" (byte {int(found[1]) + shift})", text)
        refusal = unreadable(text, self._body)
        raise refusal


def _end(pattern: re.Pattern[bytes], body: bytes, start: int, within_bytes: int) -> int:
    found = pattern.match(body, start, start + within_bytes)
    return start if found is None else found.end()


def _is_beyond(member: re.Match[bytes]) -> bool:
    try:
        decode_object(b"{" + member[0] + b"}")
    except msgspec.ValidationError:
        return True
    return False


def _marks(piece: bytes) -> int:
    return piece.count(b",") + piece.count(b"[") + piece.count(b"{")


def _closing(holder: Holder) -> bytes:
    return b"}" if isinstance(holder, dict) else b"]"
