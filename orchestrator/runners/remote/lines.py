"""Newline-delimited JSON: a body in lines, cut without I/O.

The same bytes give the same lines, however the reads cut them; every byte is looked at a bounded
number of times, and one line has a greatest size. Blank lines are none. A line without its end is
handed out apart by `flush`, and the caller decides whether it is whole.
"""

from typing import cast

from orchestrator.errors import UpstreamProtocolError
from orchestrator.runners.remote.sse import LONG_LINE_BYTES, MAX_EVENT_BYTES, ServerSentEvent


class LineDecoder:
    """Turns the reads of one body into events, one a line.

    Args:
        max_line_bytes: Bound of one line.
    """

    __slots__ = ("_max_line_bytes", "_open")

    def __init__(self, max_line_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_line_bytes = max_line_bytes
        self._open = bytearray()
        """The line whose end hasn't come yet; it grows in place, so long lines stay linear."""

    def __repr__(self) -> str:
        return f"<LineDecoder, {len(self._open)} bytes held>"

    def feed(self, read: bytes) -> list[ServerSentEvent]:
        """Takes what was read and returns the lines that it completes.

        Raises:
            UpstreamProtocolError: One line is larger than the bound.
        """
        *lines, rest = read.split(b"\n")
        if lines and self._open:
            self._open += lines[0]
            lines[0] = _handed_out(self._open)
            self._open = bytearray()
        self._open += rest
        if max(map(len, (*lines, self._open))) > self._max_line_bytes:
            raise UpstreamProtocolError(
                f"one line of the stream is larger than {self._max_line_bytes} bytes"
            )
        return [ServerSentEvent(line) for line in lines if line and not line.isspace()]

    def flush(self) -> ServerSentEvent | None:
        """Ends the body and returns the line that lacks its end, if there is one."""
        line, self._open = _handed_out(self._open), bytearray()
        return ServerSentEvent(line) if line and not line.isspace() else None


def _handed_out(line: bytearray) -> bytes:
    # a long one isn't copied: it is read like bytes, and nobody writes to it
    return bytes(line) if len(line) <= LONG_LINE_BYTES else cast("bytes", line)
