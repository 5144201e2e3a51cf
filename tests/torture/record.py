"""What a model host writes down of its own life, in memory that outlives it.

A file mapped by the host and by its parent: whatever happens to the host, the parent can still read
what it had sent. Each stream has a place with three numbers: a checksum of its prompt, the bytes of
text that the host was about to send, and those that it has sent. What a caller reads must lie
between the two, or something was lost or doubled on its way.
"""

import mmap
import struct
from pathlib import Path
from typing import Self
from zlib import crc32

PLACES = 512
_BEATS = struct.Struct("=q")
_PLACE = struct.Struct("=Qqq")
SIZE = _BEATS.size + PLACES * _PLACE.size


def checksum(prompt: str) -> int:
    """What stands for a prompt in the record; never 0."""
    return crc32(prompt.encode()) or 1


class Record:
    """One host's record."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory

    @classmethod
    def create(cls, path: Path) -> Self:
        """Begins an empty one in the place of whatever was there, which its readers keep."""
        new = path.with_suffix(".new")
        new.write_bytes(bytes(SIZE))
        new.replace(path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Opens the one that is there now."""
        with path.open("r+b") as file:
            return cls(mmap.mmap(file.fileno(), SIZE))

    def close(self) -> None:
        """Lets go of the memory."""
        self._memory.close()

    @property
    def beats(self) -> int:
        """Grows as long as the process is alive, whatever its model does."""
        return _BEATS.unpack_from(self._memory)[0]

    def beat(self) -> None:
        """Shows that the process is alive."""
        _BEATS.pack_into(self._memory, 0, self.beats + 1)

    def begin(self, stream: int, prompt: str) -> None:
        """A stream was admitted."""
        self._write(stream, checksum(prompt), 0, 0)

    def announce(self, stream: int, size_bytes: int) -> None:
        """So many bytes more are about to be sent."""
        known, announced, sent = self._read(stream)
        self._write(stream, known, announced + size_bytes, sent)

    def sent(self, stream: int, size_bytes: int) -> None:
        """So many bytes more were sent."""
        known, announced, sent = self._read(stream)
        self._write(stream, known, announced, sent + size_bytes)

    @property
    def total(self) -> int:
        """Bytes sent in all."""
        return sum(self._read(stream)[2] for stream in range(PLACES))

    def bounds(self, prompt: str) -> tuple[int, int] | None:
        """Bytes sent and announced of the last stream with that prompt; None if there was none."""
        wanted = checksum(prompt)
        for stream in reversed(range(PLACES)):
            known, announced, sent = self._read(stream)
            if known == wanted:
                return sent, announced
        return None

    def _read(self, stream: int) -> tuple[int, int, int]:
        return _PLACE.unpack_from(self._memory, _BEATS.size + stream % PLACES * _PLACE.size)

    def _write(self, stream: int, known: int, announced: int, sent: int) -> None:
        place = _BEATS.size + stream % PLACES * _PLACE.size
        _PLACE.pack_into(self._memory, place, known, announced, sent)
