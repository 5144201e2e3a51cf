r"""Server-sent events from bytes: the decoder of WHATWG HTML, "Server-sent events", without I/O.

Rules:
    1. The same bytes give the same events, however the reads cut them: within a line end, within
       the byte order mark, within a character.
    2. An event is handed out as soon as its blank line is there; a `\r` ends a line at once.
    3. What stands after the last blank line is no event by the standard; `flush` hands it out
       apart, and the caller decides whether it is whole.
    4. Every byte is looked at a bounded number of times, and one event has a greatest size.

Data stays bytes: its reader is a JSON decoder that checks UTF-8 itself. `id` and `retry` are for
clients that reconnect, which an answer can't; they are dropped.
"""

from typing import cast

import msgspec

from orchestrator.errors import UpstreamProtocolError

MAX_EVENT_BYTES = 16 << 20
LONG_LINE_BYTES = 64 << 10
"""Longer ones are handed out as they were put together: a copy of 3 MB takes 1 to 5 ms."""
LINES_IN_A_BLOCK = 1 << 10
"""Data lines that are joined at once: 400,000 of them, in one event, take 10 ms."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ServerSentEvent(msgspec.Struct, frozen=True, gc=False):
    """One event of a stream."""

    data: bytes
    """The `data` lines, joined by line feeds; a `bytearray` that nobody writes to, if it's long."""
    event: bytes = b""
    """The `event` field; empty if the stream gave none."""


class SseDecoder:
    """Turns the reads of one stream into events.

    Args:
        max_event_bytes: Bound of one event's data together with the line that is still open.
        error_field: A field `error` is the data of an event of that name, as llama.cpp's server
            sent its errors for a year; to the standard it is nothing.
    """

    __slots__ = (
        "_blocks",
        "_data",
        "_data_bytes",
        "_error_field",
        "_event",
        "_head",
        "_max_event_bytes",
        "_open_line",
        "_skip_line_feed",
    )

    def __init__(
        self, max_event_bytes: int = MAX_EVENT_BYTES, *, error_field: bool = False
    ) -> None:
        self._max_event_bytes = max_event_bytes
        self._error_field = error_field
        self._data: list[bytes] = []
        self._blocks: list[bytes] = []
        """Data lines before those, joined."""
        self._event = b""
        self._open_line = bytearray()
        """The line whose end hasn't come yet; it grows in place, so long lines stay linear."""
        self._data_bytes = 0
        self._skip_line_feed = False
        """The last read ended with a carriage return, whose line feed may still follow."""
        self._head: bytes | None = b""
        """The stream's first bytes while they may be a byte order mark; None afterwards."""

    def __repr__(self) -> str:
        within = self._open_line or self._data_bytes or self._event
        state = "within an event" if within else "between events"
        return f"<SseDecoder {state}, {self._data_bytes + len(self._open_line)} bytes held>"

    def feed(self, read: bytes) -> list[ServerSentEvent]:
        """Takes what was read and returns the events that it completes.

        Raises:
            UpstreamProtocolError: One event is larger than the bound.
        """
        if self._head is not None:
            if self._head or not read or read[0] == BYTE_ORDER_MARK[0]:
                read = self._without_mark(read)
            else:  # nearly every stream
                self._head = None
        if self._skip_line_feed and read:
            self._skip_line_feed = False
            read = read.removeprefix(b"\n")
        if b"\r" in read:
            self._skip_line_feed = read.endswith(b"\r")
            read = read.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[ServerSentEvent] = []
        if self._open_line or self._data_bytes or self._event:
            blank = read.find(b"\n\n")
            if blank < 0:
                self._take_lines(read, events)
                return events
            self._take_lines(read[: blank + 2], events)
            read = read[blank + 2 :]
        # Between events, where most reads begin, whole events of one line are cut out at once: one
        # alone, as a paced stream brings it, or all of a read.
        if read.startswith(b"data: ") and len(read) <= self._max_event_bytes:
            if read.endswith(b"\n\n") and read.find(b"\n") == len(read) - 2:
                events.append(ServerSentEvent(read[6:-2]))
                return events
            end = read.rfind(b"\n\n") + 2
            data = read[6 : end - 2].split(b"\n\ndata: ")
            if end > 1 and read.count(b"\n", 0, end) == 2 * len(data):
                events.extend(map(ServerSentEvent, data))
                read = read[end:]
        if read:
            self._take_lines(read, events)
        return events

    def flush(self) -> ServerSentEvent | None:
        """Ends the stream and returns the event that lacks its blank line, if there is one."""
        events: list[ServerSentEvent] = []
        self._take_lines(b"\n\n", events)
        return events[0] if events else None

    def _without_mark(self, read: bytes) -> bytes:
        start = (self._head or b"") + read
        if len(start) < len(BYTE_ORDER_MARK) and BYTE_ORDER_MARK.startswith(start):
            self._head = start
            return b""
        self._head = None
        return start.removeprefix(BYTE_ORDER_MARK)

    def _take_lines(self, text: bytes, events: list[ServerSentEvent]) -> None:
        *lines, rest = text.split(b"\n")
        if lines and self._open_line:
            self._end_line(lines.pop(0))
        for line in lines:
            if line:
                self._take_field(line)
            else:
                self._dispatch(events)
        if rest:
            self._open_line += rest
            self._check()

    def _end_line(self, end: bytes) -> None:
        line = self._open_line
        line += end
        self._open_line = bytearray()
        if len(line) <= LONG_LINE_BYTES or not line.startswith(b"data:"):
            self._take_field(bytes(line))
            return
        del line[: 6 if line.startswith(b"data: ") else 5]  # moves nothing
        self._take_data(cast("bytes", line))  # it is read like one, and nobody writes to it

    def _take_field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._take_data(value)
        elif name == b"event":
            self._event = value
        elif name == b"error" and self._error_field:
            self._event = name
            self._take_data(value)

    def _take_data(self, value: bytes) -> None:
        self._data.append(value)
        if len(self._data) > LINES_IN_A_BLOCK:
            self._blocks.append(b"\n".join(self._data))
            self._data.clear()
        self._data_bytes += len(value) + 1
        self._check()

    def _dispatch(self, events: list[ServerSentEvent]) -> None:
        if self._data or self._blocks:
            lines = [*self._blocks, *self._data] if self._blocks else self._data
            data = lines[0] if len(lines) == 1 else b"\n".join(lines)
            events.append(ServerSentEvent(data, self._event))
            self._data.clear()
            self._blocks.clear()
        self._event = b""
        self._data_bytes = 0

    def _check(self) -> None:
        if self._data_bytes + len(self._open_line) > self._max_event_bytes:
            raise self._too_large()

    def _too_large(self) -> UpstreamProtocolError:
        return UpstreamProtocolError(
            f"one event of the stream is larger than {self._max_event_bytes} bytes"
        )
