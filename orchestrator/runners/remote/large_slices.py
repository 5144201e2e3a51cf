"""The events that one large event is told in, one after the other.

Each but the last brings a part of one array or text and, of all else, only what a reader knows
things by: whose part it is. The last one brings the rest, with whatever ends an answer.
"""

import re
from collections.abc import Iterator, Sequence
from typing import cast

import msgspec

from orchestrator.runners.remote.large_outline import CLOSE, OPEN, Outline, stand_in

SLICES = re.compile(f"{OPEN}s([0-9]+){CLOSE}".encode())
BEGIN = f"{OPEN}s".encode()


def events_of(outline: Outline, names: Sequence[str] = ()) -> Iterator[bytes]:
    """Gives the events, with the stand-ins of texts and runs still in them.

    Args:
        outline: Of the large event.
        names: Members that say whose part it is.
    """
    return _events(outline, outline.rest, names)


def _events(outline: Outline, rest: bytes, names: Sequence[str]) -> Iterator[bytes]:
    # `find` is twenty times as fast as `search`, which counts where a name is megabytes long
    while (found := SLICES.match(rest, max(0, rest.find(BEGIN)))) is not None:
        numbers = _together(outline, rest, int(found[1]))
        marks = {stand_in("s", number).decode() for number in numbers}
        last = max(len(outline.slices[number].parts) for number in numbers) - 1
        pruned = _pruned(msgspec.json.decode(rest), marks, names)
        if pruned is not None:  # else a member of the same name comes after it and counts instead
            template = msgspec.json.encode(pruned)
            for place in range(last):
                yield from _events(outline, _filled(outline, template, numbers, place), names)
        rest = _filled(outline, rest, numbers, last)
    yield rest


def _together(outline: Outline, rest: bytes, number: int) -> Sequence[int]:
    """Returns the numbers of all slices that must be told with those."""
    owner = outline.slices[number].object
    if owner is None:
        return (number,)
    numbers = [int(found[1]) for found in SLICES.finditer(rest)]
    return [one for one in numbers if outline.slices[one].object == owner]


def _filled(outline: Outline, event: bytes, numbers: Sequence[int], place: int) -> bytes:
    for number in numbers:
        slices = outline.slices[number]
        mark = stand_in("s", number)
        part = slices.parts[place] if place < len(slices.parts) else b""
        if slices.members:
            mark = b'"' + mark + b'":null'
        elif slices.whole:
            mark = b'"' + mark + b'"'
        event = event.replace(mark, part)
    return event


def _pruned(value: object, marks: set[str], names: Sequence[str]) -> object:
    """The value without all that leads to no mark; None if nothing does."""
    if isinstance(value, str):
        return value if value in marks else None
    if isinstance(value, list):
        items = cast("list[object]", value)
        found = [_pruned(item, marks, names) for item in items]
        # what stands before goes by its names alone: some readers take the first of its kind
        kept = [
            _named(item, names) if told is None else told
            for item, told in zip(items, found, strict=True)
        ]
        last = max((place for place, told in enumerate(found) if told is not None), default=-1)
        return kept[: last + 1] or None
    if not isinstance(value, dict):
        return None
    members = cast("dict[str, object]", value)
    told = {name: _pruned(member, marks, names) for name, member in members.items()}
    kept = {name: member for name, member in told.items() if member is not None}
    kept |= {name: None for name in members if name in marks}
    if not kept:
        return None
    return _named(members, names) | kept


def _named(value: object, names: Sequence[str]) -> dict[str, object]:
    members = cast("dict[str, object]", value) if isinstance(value, dict) else {}
    return {name: members[name] for name in names if isinstance(members.get(name), str | int)}
