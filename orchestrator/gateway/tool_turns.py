"""Calls of tools one after the other, however their pieces come.

Chat completions number the pieces of calls, so those of two calls may alternate; in the events of
other APIs one call ends before the next begins.
A call is told while it is the first that isn't complete; what comes for a later one waits. It is
complete when its arguments are whole JSON and the next one has begun, or at the end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.translation import Object, object_in


@dataclass(slots=True)
class ToolCall:
    """One call of a tool."""

    call_id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list[str])
    """Of its arguments, in order."""
    told: int = 0
    """How many of them were told."""

    def untold(self) -> str:
        """The arguments that were not told yet; from now on they are."""
        new = "".join(self.pieces[self.told :])
        self.told = len(self.pieces)
        return new

    @property
    def whole(self) -> bool:
        """Whether the arguments are JSON."""
        try:
            msgspec.json.decode("".join(self.pieces))
        except NOT_JSON:
            return False
        return True


class ToolTurns:
    """The calls of one answer, in the order of their numbers' first appearance."""

    __slots__ = ("_calls", "_open", "_waiting")

    def __init__(self) -> None:
        self._calls: dict[object, ToolCall] = {}
        self._waiting: list[ToolCall] = []
        self._open: ToolCall | None = None

    @property
    def open(self) -> bool:
        """Whether a call is being told."""
        return self._open is not None

    def take(self, pieces: Sequence[object]) -> Iterator[tuple[str, ToolCall]]:
        """Takes a delta's `tool_calls`; yields `begin`, `go on` or `end` with the call."""
        for place, piece in enumerate(pieces):
            self._note(object_in(piece), place)
        yield from self._go_on(last=False)

    def flush(self) -> Iterator[tuple[str, ToolCall]]:
        """Ends all of them."""
        yield from self._go_on(last=True)

    def _note(self, piece: Object, place: int) -> None:
        index = piece.get("index", place)
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = ToolCall()
            self._waiting.append(call)
        function = object_in(piece.get("function"))
        call.call_id = call.call_id or str(piece.get("id") or "")
        call.name = call.name or str(function.get("name") or "")
        arguments = function.get("arguments")
        if isinstance(arguments, str) and arguments:
            call.pieces.append(arguments)

    def _go_on(self, *, last: bool) -> Iterator[tuple[str, ToolCall]]:
        while True:
            if self._open is not None:
                yield "go on", self._open
                if not last and not (self._waiting and self._open.whole):
                    return
                yield "end", self._open
                self._open = None
            if not self._waiting or not (last or self._waiting[0].name):
                return
            self._open = self._waiting.pop(0)
            yield "begin", self._open
