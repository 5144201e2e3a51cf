"""What is left of a large event once all that is long in it was taken out, and what that was.

All that is taken out has been read once and is JSON; a stand-in is in its place.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

# Characters that no text may have (Unicode 23.7, "Noncharacters") stand for what was taken out.
OPEN, CLOSE = "\ufdd0", "\ufdd1"
HEAD_BYTES = 4 << 10
"""How much of each value stands in a summary; an error quotes less."""
SUMMARY_BYTES = 64 << 10

STAND_IN = re.compile(f'"{OPEN}([rs]?)([0-9]+){CLOSE}"(:null)?'.encode())


@dataclass(slots=True, kw_only=True)
class Slices:
    """An array, an object or a text that is told in several events."""

    parts: list[bytes]
    """What stands between its brackets, or quotes."""
    whole: bool
    """Whether a part takes the place of the stand-in with its quotes, as items do."""
    members: bool = False
    """They are an object's."""
    object: int | None = None
    """The number of the object that has all of a pair; None if it is none of a pair."""


@dataclass(frozen=True, slots=True)
class Text:
    """A long text."""

    pieces: Sequence[str]
    head: bytes
    """How it begins, as it was written."""


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
    texts: list[Text] = field(default_factory=list[Text])
    runs: list[Run] = field(default_factory=list[Run])
    slices: list[Slices] = field(default_factory=list[Slices])

    def summary(self) -> bytes:
        """Returns a short event that begins, in each of its values, as the large one does."""
        room = SUMMARY_BYTES

        def head(found: re.Match[bytes]) -> bytes:
            nonlocal room
            if room <= 0:
                return b'"":null' if found[3] else b'""'
            value = STAND_IN.sub(head, self._head(found[1], int(found[2])))
            room -= len(value)
            return value

        return STAND_IN.sub(head, self.rest)

    def _head(self, kind: bytes, number: int) -> bytes:
        if not kind:
            return b'"' + self.texts[number].head + b'"'
        if kind == b"r":
            return b",".join(begin_of(self.runs[number].pieces))
        slices = self.slices[number]
        parts = begin_of(slices.parts)
        return b",".join(parts) if slices.whole else b'"' + b"".join(parts) + b'"'


def stand_in(kind: str, number: int) -> bytes:
    """Returns what stands for the text (`""`), run (`"r"`) or slices (`"s"`) of that number."""
    return f"{OPEN}{kind}{number}{CLOSE}".encode()


def begin_of(pieces: Sequence[bytes]) -> Sequence[bytes]:
    """Returns the first pieces, until they are long enough to be quoted."""
    size = 0
    for count, piece in enumerate(pieces, 1):
        size += len(piece)
        if size >= HEAD_BYTES:
            return pieces[:count]
    return pieces
