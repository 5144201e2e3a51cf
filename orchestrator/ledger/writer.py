"""The thread that takes rows from the spool into SQLite; the loop never waits for a disk.

A segment's rows are added before it is removed, and a row that is added again changes nothing. So
wherever the process dies, each row is in the ledger once, now or after the next start.
"""

import logging
import sqlite3
import threading
from pathlib import Path

from orchestrator import metrics
from orchestrator.ledger.row import rows_in
from orchestrator.ledger.spool import Segment, Spool, leftovers
from orchestrator.ledger.store import Store

logger = logging.getLogger(__name__)

BATCH_BYTES = 256 << 10
GATHER_SECONDS = 0.05
"""Rows of so long a time share a transaction."""
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


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
        self._news = threading.Event()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)

    def start(self, store: Store | None) -> None:
        """Starts the thread; a store that was opened before is the thread's own from now on.

        Raises:
            RuntimeError: The system has no thread left.
        """
        self._store = store
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
        while not self._ending.is_set():
            self._news.wait()
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
            while True:
                # looked at first: what is written before another segment begins is all of it
                followed = len(self._spool.segments) > 1
                if not self._spool.segments:
                    return True
                take(self._spool.segments[0], self._store)
                if not followed:
                    return True
                self._spool.segments.popleft().remove()
        except (sqlite3.Error, OSError) as error:
            metrics.LEDGER_FAILURES.labels("store").inc()
            logger.error(  # noqa: TRY400 - the file's state is the cause, no line of code
                "the ledger %s can't be written, its rows wait in the spool: %s", self._path, error
            )
            if self._store is not None:
                self._store.close()
                self._store = None
            return False


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
