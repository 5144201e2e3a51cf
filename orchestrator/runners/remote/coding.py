"""Compressed bodies, decompressed a piece at a time (RFC 9110, 8.4; RFC 8878 for zstd).

Nobody asks for one, but some servers send one all the same, and a few hundred bytes can stand for
gigabytes. So no step makes more than about a megabyte, others have their turn between the steps,
and whoever reads stops when there is too much. A body may have several members or frames one after
the other. A coding that isn't known is left alone, for such a name stands on plain bodies as well.
"""

import asyncio
import importlib
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping

import httpx
import zstandard

brotli = importlib.import_module("brotli")  # no types come with it

PIECE_BYTES = 64 << 10
GZIP = 16 + zlib.MAX_WBITS
GZIP_MAGIC = b"\x1f\x8b"
ZLIB_HEADER_BYTES = 2
ZSTD_INPUT_BYTES = 32
"""A block of four bytes can stand for 128 KiB, and this decoder can't be told to stop earlier."""
ZSTD_WINDOW_BYTES = 8 << 20
"""What a zstd body over HTTP may want at most (RFC 9659)."""
MAX_CODINGS = 4
UNREADABLE: tuple[type[Exception], ...] = (zlib.error, zstandard.ZstdError, brotli.error)


Coding = Callable[[bytes], Iterator[bytes]]
"""Undoes one coding: takes what was read and gives what it stands for, in pieces."""


class Zlib:
    """Undoes gzip and deflate.

    Args:
        window_bits: As of `zlib.decompressobj`; None for a deflate, with its header or without.
    """

    def __init__(self, window_bits: int | None) -> None:
        self._window_bits = window_bits
        self._inner = None if window_bits is None else zlib.decompressobj(window_bits)
        self._head = b""
        self._over = False

    def feed(self, read: bytes) -> Iterator[bytes]:
        """Takes what was read and gives what it stands for, in pieces."""
        read = self._head + read
        self._head = b""
        while not self._over:
            if self._inner is None:
                if len(read) < ZLIB_HEADER_BYTES:
                    self._head = read
                    return
                self._inner = zlib.decompressobj(self._window_bits or _deflate_bits(read))
            piece = self._inner.decompress(read, PIECE_BYTES)
            if piece:
                yield piece
            if self._inner.eof:
                read, self._inner = self._inner.unused_data, None
                self._over = not GZIP_MAGIC.startswith(read[:2]) or self._window_bits is None
            else:
                read = self._inner.unconsumed_tail
                if not read and len(piece) < PIECE_BYTES:
                    return


def _deflate_bits(head: bytes) -> int:
    """Some servers leave the header out; it is a multiple of 31, and its low bits name deflate."""
    is_header = head[0] & 0x0F == zlib.DEFLATED and int.from_bytes(head[:2]) % 31 == 0
    return zlib.MAX_WBITS if is_header else -zlib.MAX_WBITS


class Brotli:
    """Undoes br."""

    def __init__(self) -> None:
        self._inner = brotli.Decompressor()

    def feed(self, read: bytes) -> Iterator[bytes]:
        """Takes what was read and gives what it stands for, in pieces."""
        while not self._inner.is_finished():
            piece: bytes = self._inner.process(read, output_buffer_limit=PIECE_BYTES)
            read = b""
            if piece:
                yield piece
            elif self._inner.can_accept_more_data():
                return


class Zstd:
    """Undoes zstd."""

    def __init__(self) -> None:
        self._inner = _frame()

    def feed(self, read: bytes) -> Iterator[bytes]:
        """Takes what was read and gives what it stands for, in pieces."""
        for start in range(0, len(read), ZSTD_INPUT_BYTES):
            rest = read[start : start + ZSTD_INPUT_BYTES]
            while rest:
                piece = self._inner.decompress(rest)
                if piece:
                    yield piece
                rest = b""
                if self._inner.eof:
                    rest, self._inner = self._inner.unused_data, _frame()


def _frame() -> "zstandard.ZstdDecompressionObj":  # known to its types alone
    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES).decompressobj()


CODINGS: Mapping[str, Callable[[], Coding]] = {
    "gzip": lambda: Zlib(GZIP).feed,
    "x-gzip": lambda: Zlib(GZIP).feed,
    "deflate": lambda: Zlib(None).feed,
    "br": lambda: Brotli().feed,
    "zstd": lambda: Zstd().feed,
}


def codings_of(header: str) -> list[Coding]:
    """Returns what undoes the codings of a `content-encoding`, in the order of undoing.

    Raises:
        httpx.DecodingError: There are too many.
    """
    names = [name.strip().lower() for name in header.split(",")]
    makers = [CODINGS[name] for name in reversed(names) if name in CODINGS]
    if len(makers) > MAX_CODINGS:
        raise httpx.DecodingError(f"compressed {len(makers)} times over")
    return [make() for make in makers]


def reads_of(response: httpx.Response) -> AsyncIterator[bytes]:
    """Gives a body's bytes as they come, decompressed.

    Args:
        response: Not read yet.
    """
    if not isinstance(response.stream, httpx.AsyncByteStream):
        return response.aiter_bytes()
    raw = aiter(response.stream)
    header = response.headers.get("content-encoding")
    return raw if header is None else decompressed(raw, header)


async def decompressed(reads: AsyncIterator[bytes], header: str) -> AsyncGenerator[bytes]:
    """Gives a body's bytes without its codings.

    Args:
        reads: What comes; closed with this.
        header: Its `content-encoding`.

    Raises:
        httpx.DecodingError: It isn't in these codings.
    """
    try:
        codings = codings_of(header)
        async for read in reads:
            pieces: Iterator[bytes] = iter((read,))
            for coding in codings:
                pieces = _each(coding, pieces)
            for piece in pieces:
                yield piece
                await asyncio.sleep(0)
    except UNREADABLE as error:
        raise httpx.DecodingError(str(error)) from error
    finally:
        if isinstance(reads, AsyncGenerator):
            await reads.aclose()


def _each(coding: Coding, pieces: Iterator[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        yield from coding(piece)
