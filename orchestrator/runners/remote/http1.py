"""One HTTP/1.1 response, parsed without I/O.

httptools (llhttp) knows the grammar and is strict: folded headers, a lone line feed, two lengths, a
length beside chunks, a chunk size that is no number are errors. This file adds what it leaves open:

    1. A head, trailer or chunk extension has a greatest size, for the parser holds an unfinished
       one in memory.
    2. Interim responses (1xx) are skipped; a switch of protocols was not asked for.
    3. What a body without length or chunks ends with is the end of the connection (RFC 9112, 6.3);
       any other body that ends there was cut.
    4. A head that comes in small reads is handed on line by line, for the parser joins the pieces
       of a header anew with every read, which takes seconds for one that comes byte by byte.
    5. Bytes after the response belong to nobody: the connection can't be used again.
"""

import httptools
import httpx

MAX_HEAD_BYTES = 128 << 10
MAX_TRAILER_BYTES = 16 << 10
"""Bytes in the body that are none of it; those the parser joins anew with every read."""
END_OF_HEAD = b"\r\n\r\n"
FIRST_FINAL_STATUS = 200
LENGTH = b"content-length"
CODING = b"transfer-encoding"
LENGTH_BYTES, CODING_BYTES = len(LENGTH), len(CODING)  # nearly no other name is of their length
CHUNKED = b"chunked"


class ResponseParser:
    """Takes the bytes of one response as they come; the reader takes `pieces`."""

    __slots__ = (
        "_chunked",
        "_coding",
        "_fruitless_bytes",
        "_head_bytes",
        "_length",
        "_line",
        "_parser",
        "_surplus",
        "_why",
        "complete",
        "head_done",
        "headers",
        "keep_alive",
        "pieces",
        "size",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.head_done = False
        """Status and headers are those of the final response."""
        self.pieces: list[bytes] = []
        """Bytes of the body that nobody has taken yet."""
        self.size = 0
        """Bytes in `pieces`."""
        self.complete = False
        self.keep_alive = False
        """Whether the server goes on with this connection after this response."""
        self._length = False
        self._coding = b""
        self._chunked = False
        self._head_bytes = 0
        self._fruitless_bytes = 0
        self._line: list[bytes] | None = None
        """The head's last line as far as it has come; None before the first line has ended, for
        what speaks another protocol shall be found out at once."""
        self._surplus = False
        self._why = ""
        self._parser = httptools.HttpResponseParser(self)

    def __repr__(self) -> str:
        state = "complete" if self.complete else "in its body" if self.head_done else "in its head"
        return f"<ResponseParser {state}, {self.size} bytes ready>"

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request."""
        return self.complete and self.keep_alive and not self._surplus

    def feed(self, data: bytes) -> None:
        """Takes what was read; what stands before a fault in it counts.

        Raises:
            httpx.RemoteProtocolError: That is no response, or its head is too large.
        """
        if not self.head_done and END_OF_HEAD not in data:
            self._feed_lines(data)
        else:
            self._feed(data)

    def _feed_lines(self, data: bytes) -> None:
        """Takes a part of the head."""
        end = data.rfind(b"\n") + 1
        if self._line is None:
            self._feed(data)
            self._line = [] if end else None
        elif end:
            self._feed(data[:end])
            if self.head_done:  # the blank line was cut by the reads, and the body begins here
                self._feed(data[end:])
            elif end < len(data):
                self._hold(data[end:])
        else:
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        """Keeps a part of a line.

        Raises:
            httpx.RemoteProtocolError: It has become too long.
        """
        if self._line is not None:
            self._line.append(data)
        self._count_fruitless(len(data), MAX_HEAD_BYTES)

    def _count_fruitless(self, count: int, most: int) -> None:
        self._fruitless_bytes += count
        if self._fruitless_bytes > most:
            raise httpx.RemoteProtocolError(f"more than {most} bytes without a body's")

    def _feed(self, data: bytes) -> None:
        size, head_done, whole = self.size, self.head_done, data
        if self._line:
            whole = b"".join((*self._line, data))
            self._line.clear()
        try:
            self._parser.feed_data(whole)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if self.complete:  # the fault is in what follows the response
                self._surplus = True
                return
            raise httpx.RemoteProtocolError(self._why or f"no HTTP response: {error}") from error
        if self.size > size or self.complete:
            self._fruitless_bytes = 0
            return
        self._count_fruitless(len(data), MAX_TRAILER_BYTES if head_done else MAX_HEAD_BYTES)
        if self.head_done is not head_done:
            self._fruitless_bytes = 0

    def end(self) -> None:
        """The connection has ended; this completes a body that has no other end.

        Raises:
            httpx.RemoteProtocolError: The response was cut.
        """
        if self.complete:
            return
        if not self.head_done:
            raise httpx.RemoteProtocolError("the server closed the connection without an answer")
        if self._length or self._chunked:
            raise httpx.RemoteProtocolError("the server closed the connection within the body")
        self.complete = True
        self.keep_alive = False

    def take(self) -> bytes:
        """Takes all that is ready of the body."""
        pieces = self.pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        self.size = 0
        return data

    def on_message_begin(self) -> None:
        """httptools: the first byte of a message."""
        self._surplus = self.complete

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header, or one trailer, which nobody wants."""
        length = len(name)
        self._head_bytes += length + len(value)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(f"the head of the response is larger than {MAX_HEAD_BYTES} bytes")
        if self.head_done:
            return
        self.headers.append((name, value))
        if length == LENGTH_BYTES and name.lower() == LENGTH:
            self._length = True
        elif length == CODING_BYTES and name.lower() == CODING:
            self._coding += value if value == CHUNKED else value.strip().lower()

    def on_headers_complete(self) -> None:
        """httptools: the blank line after the headers."""
        if self.complete:
            return
        parser = self._parser
        self.status = parser.get_status_code()
        if not parser.get_http_version().startswith("1."):
            self._refuse(f"the server speaks HTTP/{parser.get_http_version()}")
        if self.status >= FIRST_FINAL_STATUS:
            if self._coding not in (b"", CHUNKED, b"identity"):
                self._refuse(f"the transfer coding {self._coding[:40]!r} was not asked for")
            self._chunked = self._coding == CHUNKED
            self.head_done = True

    def on_body(self, body: bytes) -> None:
        """httptools: bytes of the body, without its framing."""
        if not self.complete:
            self.pieces.append(body)
            self.size += len(body)

    def on_message_complete(self) -> None:
        """httptools: the last byte of a message."""
        if self.head_done:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()
        else:  # an interim response: the next one may be final
            self.headers.clear()
            self._length = False
            self._coding = b""

    def _refuse(self, why: str) -> None:
        self._why = why
        raise ValueError(why)  # stops the parser, which makes an error of its own from it
