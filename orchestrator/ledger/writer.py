"""The thread that takes rows from the spool into SQLite, and looks what others have added there.

The loop never waits for a disk.

A segment's rows are added before it is removed, and a row that is added again changes nothing. So
wherever the process dies, each row is in the ledger once, now or after the next start.
"""

import logging
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator import metrics
from orchestrator.ledger.row import rows_in
from orchestrator.ledger.spool import Segment, Spool, leftovers
from orchestrator.ledger.store import Spending, Store

logger = logging.getLogger(__name__)

BATCH_BYTES = 256 << 10
GATHER_SECONDS = 0.05
"""Rows of so long a time share a transaction."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


@dataclass(slots=True, kw_only=True)
class Lookout:
    """Who wants to know what other processes add to the ledger."""

    own: str
    """How names of rows begin that this process adds."""
    after: int | None
    """The number of the last row that it knows of; None if it knows of none."""
    tell: Callable[[Sequence[Spending]], None]
    """Told, on the thread."""
    every: float
    """Seconds between two looks, if nothing is to be written meanwhile."""

    def look(self, store: Store) -> None:
        """Looks what has come since the last time.

        Raises:
            sqlite3.Error: The ledger can't be read.
        """
        if self.after is None:
            self.after = store.newest()
            return
        self.after, found = store.spent_by_others(self.own, self.after)
        if found:
            self.tell(found)


class Writer:
    """The thread.

    Args:
        path: The ledger.
        spool: Where rows come from.
    """

    def __init__(self, path: Path, spool: Spool) -> None:
        self._path = path
        self._spool = spool
        self._store: Store | None = None
        self._lookout: Lookout | None = None
        self._news = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)

    def start(self, store: Store | None, lookout: Lookout | None = None) -> None:
        """Starts the thread; a store that was opened before is the thread's own from now on.

        Args:
            store: It; None if it couldn't be opened.
            lookout: Whom others' rows concern, if anybody.

        Raises:
            RuntimeError: The system has no thread left.
        """
        self._store = store
        self._lookout = lookout
        self._thread.start()

    def wake(self) -> None:
        """There is something in the spool."""
        if not self._news.is_set():
            self._news.set()

    def stop(self) -> None:
        """Writes what is there, once, and ends; what can't be written waits for the next start."""
        self._ending.set()
        self._news.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        pause = 0.0
        every = None if self._lookout is None else self._lookout.every
        while not self._ending.is_set():
            if self._news.wait(every):
                self._ending.wait(pause or GATHER_SECONDS)
            self._news.clear()
            if self._take_all():
                pause = 0.0
            else:
                pause = min(LONGEST_PAUSE, 2 * pause or FIRST_PAUSE)
                self._news.set()
        written = self._take_all()
        for segment in self._spool.segments:
            if written:
                segment.remove()
            else:
                segment.leave()
        if self._store is not None:
            self._store.close()

    def _take_all(self) -> bool:
        try:
            if self._store is None:
                self._store = Store(self._path)
                take_leftovers(self._path, self._store)
            self._take_segments(self._store)
            if self._lookout is not None:
                self._lookout.look(self._store)
        except (sqlite3.Error, OSError) as error:
            metrics.LEDGER_FAILURES.labels("store").inc()
            logger.error(  # noqa: TRY400 - the file's state is the cause, no line of code
                "the ledger %s can't be written, its rows wait in the spool: %s", self._path, error
            )
            if self._store is not None:
                self._store.close()
                self._store = None
            return False
        return True

    def _take_segments(self, store: Store) -> None:
        # looked at first: what is written before another segment begins is all of it
        followed = True
        while followed and self._spool.segments:
            followed = len(self._spool.segments) > 1
            take(self._spool.segments[0], store)
            if followed:
                self._spool.segments.popleft().remove()


def take(segment: Segment, store: Store) -> None:
    """Adds all rows of a segment that were not taken yet.

    Raises:
        sqlite3.Error: The ledger can't be written.
        OSError: The segment can't be read.
    """
    while lines := segment.read(BATCH_BYTES):
        rows = list(rows_in(lines))
        store.add(rows)
        segment.taken += len(lines)
        metrics.LEDGER_ROWS.inc(len(rows))


def take_leftovers(path: Path, store: Store) -> None:
    """Adds what processes that have died left in their spools.

    Raises:
        sqlite3.Error: The ledger can't be written.
        OSError: A segment can't be read.
    """
    for segment in leftovers(path):
        try:
            take(segment, store)
        except BaseException:
            segment.leave()
            raise
        segment.remove()
        logger.info("rows of a process that died were taken from %s", segment.path.name)
