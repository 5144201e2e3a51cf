"""The ledger as the loop sees it: a row is appended in microseconds, and nothing waits.

When a row can't be spooled (a full disk, a store that may only be read) it is kept in memory and
tried again every second; that, too, is bounded. Whether requests are served meanwhile is for
whoever asks `available`.
"""

import asyncio
import contextlib
import logging
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from orchestrator import metrics
from orchestrator.ledger.row import Row, line_of
from orchestrator.ledger.spool import SEGMENT_BYTES, Spool
from orchestrator.ledger.store import By, Spending, Store
from orchestrator.ledger.writer import Lookout, Writer, take_leftovers

logger = logging.getLogger(__name__)

KEPT_ROWS = 10_000
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerSettings:
    """Where the ledger is and what happens when it can't be written."""

    path: Path
    on_failure: Literal["serve", "refuse"] = "serve"
    segment_bytes: int = SEGMENT_BYTES
    look_seconds: float = 1.0
    """Between two looks at what other processes have added, if anybody wants to know."""


class Ledger:
    """The ledger.

    Args:
        settings: See there.
    """

    def __init__(self, settings: LedgerSettings) -> None:
        self._settings = settings
        self._spool = Spool(settings.path, segment_bytes=settings.segment_bytes)
        self._writer = Writer(settings.path, self._spool)
        self._kept = deque[bytes]()
        self._retry: asyncio.TimerHandle | None = None
        self._boot = secrets.token_hex(8)
        self._number = 0

    @property
    def available(self) -> bool:
        """False while rows can't be written and the settings say to serve nothing then."""
        return not self._kept or self._settings.on_failure == "serve"

    def open(
        self,
        sums: Iterable[tuple[By, int]] = (),
        on_others: Callable[[Sequence[Spending]], None] | None = None,
    ) -> list[list[tuple[str, int, int]]]:
        """Takes over what a process that died has left, and starts the writing thread.

        It blocks as long as that takes, so it comes before anything is served. A store that can't
        be used is told and tried again later; it never keeps the engines from starting.

        Args:
            sums: What is to be added up, and from which Unix time in milliseconds.
            on_others: Told, on the running loop, what other processes have added since.

        Returns:
            For each of them name, 10^-9 USD and tokens of each group.
        """
        store: Store | None = None
        found: list[list[tuple[str, int, int]]] = []
        newest: int | None = None
        try:
            store = Store(self._settings.path)
            take_leftovers(self._settings.path, store)
            with store.snapshot():  # each row is in the sums, or newer
                found = [list(store.spent_since(by, begin_ms)) for by, begin_ms in sums]
                newest = store.newest()
        except (sqlite3.Error, OSError) as error:
            metrics.LEDGER_FAILURES.labels("open").inc()
            logger.error(  # noqa: TRY400 - the file's state is the cause, no line of code
                "the ledger %s can't be opened; what budgets were spent isn't known: %s",
                self._settings.path,
                error,
            )
            if store is not None:
                store.close()
                store = None
        self._writer.start(store, self._lookout(newest, on_others) if on_others else None)
        self._append(b"\n")  # tells at once whether the spool can be written
        return found

    def next_uid(self) -> str:
        """A name for a row that no row had before, in any process."""
        self._number += 1
        return f"{self._boot}-{self._number}"

    def append(self, row: Row) -> None:
        """Makes a row last; when this returns, a death of the process can't lose it."""
        self._append(line_of(row))

    def close(self) -> None:
        """Writes what is left and ends the thread."""
        if self._retry is not None:
            self._retry.cancel()
        self._write_kept()
        if self._kept:
            metrics.LEDGER_LOST.inc(len(self._kept))
            logger.error("%d rows of the ledger could not be written and are lost", len(self._kept))
            self._kept.clear()
        self._writer.stop()

    def _lookout(
        self, newest: int | None, on_others: Callable[[Sequence[Spending]], None]
    ) -> Lookout:
        loop = asyncio.get_running_loop()

        def tell(found: Sequence[Spending]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody spends any more
                loop.call_soon_threadsafe(on_others, found)

        every = self._settings.look_seconds
        return Lookout(own=f"{self._boot}-", after=newest, tell=tell, every=every)

    def _append(self, line: bytes) -> None:
        if self._kept:
            self._keep(line)  # in their order, and without an attempt for each
            return
        try:
            self._spool.append(line)
        except OSError as error:
            metrics.LEDGER_FAILURES.labels("spool").inc()
            logger.error(  # noqa: TRY400 - the disk's state is the cause, no line of code
                "rows of the ledger %s can't be spooled (on_failure is %s): %s",
                *(self._settings.path, self._settings.on_failure, error),
            )
            self._keep(line)
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._try_again)
        else:
            self._writer.wake()

    def _keep(self, line: bytes) -> None:
        if len(self._kept) == KEPT_ROWS:
            self._kept.popleft()
            metrics.LEDGER_LOST.inc()
        self._kept.append(line)

    def _try_again(self) -> None:
        self._write_kept()
        if self._kept:
            self._retry = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._try_again)
        else:
            self._retry = None
            logger.warning("rows of the ledger %s can be spooled again", self._settings.path)

    def _write_kept(self) -> None:
        try:
            while self._kept:
                self._spool.append(self._kept[0])
                self._kept.popleft()
        except OSError:
            metrics.LEDGER_FAILURES.labels("spool").inc()
        self._writer.wake()
