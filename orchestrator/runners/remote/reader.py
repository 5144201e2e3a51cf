"""What reads an answer and what cuts it into events, as the exchange with a provider sees them.

Both are without I/O, and one of each is made for every answer.
"""

from collections.abc import Sequence
from typing import Protocol

from orchestrator.errors import UpstreamProtocolError
from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.runners.remote.large_shape import Shape
from orchestrator.runners.remote.sse import ServerSentEvent


class Reader(Protocol):
    """Reads one answer, event by event: what a provider's wire format means."""

    @property
    def finish_reason(self) -> FinishReason | None:
        """Set as soon as every answer is complete; usage may still follow."""
        ...

    @property
    def more(self) -> Sequence[TokenChunk]:
        """What the last event with a piece of an answer brought besides it, of other answers."""
        ...

    @property
    def done(self) -> bool:
        """The provider's own end marker was seen; what follows it is ignored."""
        ...

    @property
    def events(self) -> int:
        """Events seen."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens handed out."""
        ...

    @property
    def shape(self) -> Shape:
        """What the events consist of, for those that are large."""
        ...

    large: bool
    """A large event is read, in parts."""

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        """Reads one event and returns the piece of the answer in it, if there is one.

        Raises:
            UpstreamProtocolError: The event is no part of an answer.
            OrchestratorError: The event is an error, by its kind.
        """
        ...

    def take_whole(self, body: bytes) -> TokenChunk | None:
        """Reads an answer that came at once, as one JSON object, though a stream was asked for.

        Raises:
            UpstreamProtocolError: It is no answer.
            OrchestratorError: It is an error, by its kind.
        """
        ...

    def unreadable(self, data: bytes, error: Exception) -> UpstreamProtocolError:
        """Returns the error of an event that is no JSON.

        Args:
            data: The event.
            error: Why it is none.
        """
        ...

    def end(self) -> Finished:
        """Returns the ending, now that nothing more will be read.

        Raises:
            UpstreamTruncatedError: No finish reason was seen.
        """
        ...


class Framing(Protocol):
    """Cuts a body into events, however the reads cut it."""

    def feed(self, read: bytes) -> list[ServerSentEvent]:
        """Takes what was read and returns the events that it completes.

        Raises:
            UpstreamProtocolError: One event is larger than the bound.
        """
        ...

    def flush(self) -> ServerSentEvent | None:
        """Ends the stream and returns the event that lacks its end, if there is one."""
        ...


def pieces_of(answer: Reader, first: TokenChunk | None) -> Sequence[TokenChunk]:
    """Returns all that the event brought whose first piece that is."""
    return () if first is None else (first, *answer.more)


def take_last(answer: Reader, event: ServerSentEvent) -> TokenChunk | None:
    """Reads an event that the end of the stream cut off; it counts if it is whole.

    Args:
        answer: The reader.
        event: What stood after the last event's end.

    Raises:
        OrchestratorError: The event is an error, by its kind.
    """
    try:
        return answer.take(event)
    except UpstreamProtocolError:
        return None
