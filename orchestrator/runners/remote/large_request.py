"""A large request, encoded in pieces with a rest after each.

An encoder can't be interrupted and keeps the interpreter's lock: 10 MB of text with many escapes
took it 10 to 30 ms, in which no other stream moved. What comes out is the same as of one encoding,
in the pieces in which it is sent: joining 10 MB of them took as long again.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import cast

import msgspec

from orchestrator.runners.remote.pace import PIECE_BYTES, Pace

LARGE_REQUEST_BYTES = 256 << 10
BATCH = 64
"""Items of a list that are encoded together if none of them is large."""
SHORT = 256
"""Characters of a text that is surely not large."""
FLAT = (int, float, bool, type(None))

_encode = msgspec.json.Encoder(order="sorted").encode
_encode_as_it_is = msgspec.json.Encoder().encode


async def encode_large(body: Mapping[str, object], *, order: bool = False) -> list[bytes]:
    """Encodes a body, in pieces of about `PIECE_BYTES`.

    Args:
        body: The body.
        order: Whether the members of objects are brought into order.

    Raises:
        TypeError: Something in it is nothing that JSON can carry.
        RecursionError: It is nested too deeply.
    """
    pieces: list[bytes] = []
    parts: list[bytes] = []
    size, pace = 0, Pace()
    for part in _parts(body, order=order):
        parts.append(part)
        size += len(part)
        if size >= PIECE_BYTES:
            pieces.append(b"".join(parts))
            parts.clear()
            size = 0
        await pace.rest()
    return [*pieces, b"".join(parts)]


def _parts(value: object, *, order: bool) -> Iterator[bytes]:
    if isinstance(value, str):
        yield from _text(value)
    elif isinstance(value, Mapping):
        yield from _members(cast("Mapping[str, object]", value), order=order)
    elif isinstance(value, list | tuple):
        yield from _items(cast("Sequence[object]", value), order=order)
    else:
        yield _encode(value)


def _text(value: str) -> Iterator[bytes]:
    if len(value) <= PIECE_BYTES:
        yield _encode(value)
        return
    yield b'"'
    for start in range(0, len(value), PIECE_BYTES):
        yield _encode(value[start : start + PIECE_BYTES])[1:-1]
    yield b'"'


def _members(value: Mapping[str, object], *, order: bool) -> Iterator[bytes]:
    if len(value) <= BATCH and all(map(_is_flat, value.values())):
        yield (_encode if order else _encode_as_it_is)(value)
        return
    between = b"{"
    for name in sorted(value) if order else value:
        yield between + _encode(name) + b":"
        yield from _parts(value[name], order=order)
        between = b","
    yield b"}"


def _items(value: Sequence[object], *, order: bool) -> Iterator[bytes]:
    between = b""
    items = iter(value)
    yield b"["
    while batch := list(islice(items, BATCH)):
        if all(map(_is_flat, batch)):
            yield between + _encode(batch)[1:-1]
            between = b","
            continue
        for item in batch:
            yield between
            yield from _parts(item, order=order)
            between = b","
    yield b"]"


def _is_flat(value: object) -> bool:
    return (isinstance(value, str) and len(value) <= SHORT) or isinstance(value, FLAT)
