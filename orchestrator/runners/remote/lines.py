"""Newline-delimited JSON: a body in lines, cut without I/O.

The same bytes give the same lines, however the reads cut them; every byte is looked at a bounded
number of times, and one line has a greatest size. Blank lines are none. A line without its end is
handed out apart by `flush`, and the caller decides whether it is whole.
"""

from orchestrator.errors import UpstreamProtocolError
from orchestrator.runners.remote.sse import MAX_EVENT_BYTES, ServerSentEvent


class LineDecoder:
    """Turns the reads of one body into events, one a line.

    Args:
        max_line_bytes: Bound of one line.
    """

    __slots__ = ("_held_bytes", "_max_line_bytes", "_open")

    def __init__(self, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._open: list[bytes] = []
        """Pieces of the line whose end hasn't come yet; joined once, so long lines stay linear."""
        self._held_bytes = 0

    def __repr__(self) -> str:
        return f"<LineDecoder, {self._held_bytes} bytes held>"

    def feed(self, read: bytes) -> list[ServerSentEvent]:
        """Takes what was read and returns the lines that it completes.

        Raises:
            UpstreamProtocolError: One line is larger than the bound.
        """
        *lines, rest = read.split(b"\n")
        if lines and self._open:
            self._open.append(lines[0])
            lines[0] = b"".join(self._open)
            self._open.clear()
            self._held_bytes = 0
        if rest:
            self._open.append(rest)
            self._held_bytes += len(rest)
        if max(map(len, lines), default=0) > self._max_line_bytes or (
            self._held_bytes > self._max_line_bytes
        ):
            raise UpstreamProtocolError(
                f"one line of the stream is larger than {self._max_line_bytes} bytes"
            )
        return [ServerSentEvent(line) for line in lines if line.strip()]

    def flush(self) -> ServerSentEvent | None:
        """Ends the body and returns the line that lacks its end, if there is one."""
        line = b"".join(self._open)
        self._open.clear()
        self._held_bytes = 0
        return ServerSentEvent(line) if line.strip() else None
