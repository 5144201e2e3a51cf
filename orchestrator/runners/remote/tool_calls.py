"""One number for each tool call of an answer, whatever its provider says.

Whoever puts the pieces of a call together goes by their `index`, but providers leave it out, send
0 for every call, or send each call whole. Rules for a piece of a call:
    1. An id that was seen before belongs to its call, a new one begins a call.
    2. Without an id, a name begins a call where none is open at that index, or where the open one
       has another name, or where the index was already used in the same delta.
    3. All else goes on with the call that was last open at that index, or was last open at all.

Only `index` is written; every other member stays as it came.
"""

from collections.abc import Sequence
from typing import cast


class ToolCallNumbers:
    """Numbers the tool calls of one answer from 0 in the order in which they begin."""

    __slots__ = ("_by_id", "_last", "_names", "_open")

    def __init__(self) -> None:
        self._by_id: dict[str, int] = {}
        self._names: list[str | None] = []
        """Of each call, None until it is told."""
        self._open: dict[object, int] = {}
        """The call that goes on at an index of the provider's."""
        self._last: int | None = None

    def __repr__(self) -> str:
        return f"<ToolCallNumbers, {len(self._names)} calls>"

    def number(self, pieces: Sequence[dict[str, object]]) -> list[dict[str, object]]:
        """Returns the pieces of one delta with our numbers."""
        seen: set[object] = set()
        return [self._numbered(piece, seen) for piece in pieces]

    def _numbered(self, piece: dict[str, object], seen: set[object]) -> dict[str, object]:
        index, known_as = piece.get("index"), piece.get("id")
        if not isinstance(index, int):
            index = None
        name = _name(piece)
        number = self._find(index, known_as, name, again=index is not None and index in seen)
        if isinstance(known_as, str) and known_as:
            self._by_id[known_as] = number
        self._names[number] = self._names[number] or name
        self._open[index] = self._last = number
        seen.add(index)
        return {**piece, "index": number}

    def _find(self, index: int | None, known_as: object, name: str | None, *, again: bool) -> int:
        if isinstance(known_as, str) and known_as:
            known = self._by_id.get(known_as)
            if known is not None:
                return known
            # a call may begin with its name alone and tell its id later
            unnamed = self._open.get(index)
            if unnamed is not None and name is None and unnamed not in self._by_id.values():
                return unnamed
            return self._begin()
        number = self._last if index is None else self._open.get(index)
        if number is None:
            return self._begin()
        if name is not None and (again or index is None or self._names[number] != name):
            return self._begin() if self._names[number] is not None else number
        return number

    def _begin(self) -> int:
        self._names.append(None)
        return len(self._names) - 1


def _name(piece: dict[str, object]) -> str | None:
    function = piece.get("function")
    if not isinstance(function, dict):
        return None
    name = cast("dict[str, object]", function).get("name")
    return name if isinstance(name, str) and name else None
