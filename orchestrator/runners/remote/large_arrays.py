"""Long arrays in a large event, read a few items at a time.

Logprobs are the case that matters: three megabytes of them are half a million small texts and
numbers, which take a decoder 100 ms and more. Where an array begins, as many whole items as fit
into a piece are found by one expression and decoded; then others have their turn.
"""

import asyncio
import re

import msgspec

# A text, and values that contain others up to four levels deep, as the likeliest tokens of a token
# do. All repeats are possessive, so nothing is tried twice. The expressions are lenient where the
# decoder is strict.
_PLAIN = r'"(?:[^"\\]++|\\.)*+"|[^\s"\[\]{},:]++'
_SPACE = r"[ \t\r\n]*+"


def _value(levels: int) -> str:
    if not levels:
        return f"(?:{_PLAIN})"
    return rf"(?:{_PLAIN}|[\[{{](?:[\s,:]++|{_value(levels - 1)})*+[\]}}])"


ITEMS = re.compile(rf"(?:{_SPACE}{_value(4)}{_SPACE},)*+".encode(), re.DOTALL)
LAST = re.compile(rf"{_SPACE}{_value(4)}{_SPACE}(?=\])".encode(), re.DOTALL)


async def long_array(data: bytes, start: int, piece_bytes: int) -> tuple[int, list[object]] | None:
    """Reads the array whose items start there, if it is long and has small items only.

    Args:
        data: The event.
        start: The place after the opening bracket.
        piece_bytes: How much is read without a pause; an array must be longer than that.

    Returns:
        The place of the closing bracket, and the items; None if the array is none of that kind.

    Raises:
        msgspec.DecodeError: An item is no JSON.
    """
    items: list[object] = []
    while True:
        found = ITEMS.match(data, start, start + piece_bytes)
        end = start if found is None else found.end()
        if not items and end - start <= piece_bytes // 2:
            return None
        if end == start:
            break
        items += _decoded(data[start : end - 1])
        start = end
        await asyncio.sleep(0)
    last = LAST.match(data, start, start + piece_bytes)
    if last is None:
        return None
    return last.end(), items + _decoded(last[0])


def _decoded(items: bytes) -> list[object]:
    return msgspec.json.decode(b"[" + items + b"]", type=list[object])
