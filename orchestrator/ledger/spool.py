"""Files next to the ledger that rows are appended to before anybody hears of the ending.

    <ledger>.spool-<process>-<random>-<number>

A row is one `write` to the page cache, which survives the process whatever kills it; it costs a few
microseconds and no thread. A segment that is full is followed by another, and is removed once its
rows are in the ledger. Rules:

    1. Every open segment is locked by its process, and the lock ends with it. So whoever finds one
       that it can lock knows that its process has died, and takes it over.
    2. A write that failed half-way is taken back; if even that fails, the next one begins a line.
"""

import contextlib
import errno
import fcntl
import os
import secrets
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from glob import escape
from pathlib import Path

SEGMENT_BYTES = 4 << 20


@dataclass(slots=True, eq=False)
class Segment:
    """One file; `taken` bytes of it are in the ledger."""

    path: Path
    descriptor: int
    taken: int = 0

    def read(self, most: int) -> bytes:
        """Returns lines that are not taken yet, `most` bytes of them at most; none at the end.

        Raises:
            OSError: It can't be read.
        """
        found = os.pread(self.descriptor, most, self.taken)
        end = found.rfind(b"\n") + 1
        if not end and len(found) == most:
            return found  # longer than any row: a hole that a crash has left, and rows behind it
        return found[:end]

    def remove(self) -> None:
        """Removes the file, whose rows are all in the ledger."""
        with contextlib.suppress(OSError):  # it is read again some time, which changes nothing
            self.path.unlink()
        os.close(self.descriptor)

    def leave(self) -> None:
        """Leaves the file to the next start."""
        os.close(self.descriptor)


class Spool:
    """The writing side; all of it on the loop.

    Args:
        ledger: The ledger's own path.
        segment_bytes: Size from which another segment follows.
    """

    def __init__(self, ledger: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._begin = f"{ledger}.spool-{os.getpid()}-{secrets.token_hex(4)}"
        self._segment_bytes = segment_bytes
        self._number = 0
        self._size = 0
        self._rotate_at = segment_bytes
        self._torn = False
        self.segments = deque[Segment]()
        """The oldest first; the reading side takes them from there, but never the last one."""

    def append(self, line: bytes) -> None:
        """Appends a line.

        Raises:
            OSError: It isn't written.
        """
        if not self.segments or self._size >= self._rotate_at:
            self._rotate()
        segment = self.segments[-1]
        if self._torn:
            line = b"\n" + line
        written = os.write(segment.descriptor, line)
        if written != len(line):
            self._take_back(segment)
            raise OSError(errno.ENOSPC, "only a part of a row could be written")
        self._torn = False
        self._size += written

    def _rotate(self) -> None:
        path = Path(f"{self._begin}-{self._number}")
        self._number += 1
        try:
            segment = _locked(path, os.O_CREAT | os.O_EXCL)
        except OSError:
            if not self.segments:
                raise
            self._rotate_at += self._segment_bytes  # this one goes on
            return
        self._size, self._rotate_at, self._torn = 0, self._segment_bytes, False
        self.segments.append(segment)

    def _take_back(self, segment: Segment) -> None:
        try:
            os.ftruncate(segment.descriptor, self._size)
        except OSError:
            self._torn = True


def leftovers(ledger: Path) -> Iterator[Segment]:
    """Finds the segments of processes that have died, and locks them.

    Raises:
        OSError: The folder can't be read.
    """
    for path in sorted(ledger.parent.glob(f"{escape(ledger.name)}.spool-*")):
        try:
            yield _locked(path)
        except (BlockingIOError, FileNotFoundError):
            continue  # its process lives, or somebody else has just taken it over


def _locked(path: Path, flags: int = 0) -> Segment:
    """Opens a segment and locks it.

    Raises:
        BlockingIOError: Its process lives.
        FileNotFoundError: It was removed by whoever had taken it over.
        OSError: It can't be opened.
    """
    # appending, so that what was taken back leaves no hole
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        removed = os.fstat(descriptor).st_nlink == 0  # between the two steps
    except OSError:
        os.close(descriptor)
        raise
    if removed:
        os.close(descriptor)
        raise FileNotFoundError(path)
    return Segment(path, descriptor)
