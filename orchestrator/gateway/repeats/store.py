"""Whole answers kept in an SQLite file, for a cache that outlives the process.

SQLite waits for disks, so all of it runs on threads. A file that can't be used is a cache that
holds nothing: requests are answered as if there were none, and the log says so.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable, Generator
from pathlib import Path

from orchestrator import metrics

logger = logging.getLogger(__name__)

BUSY_SECONDS = 1.0
_TABLE = """
CREATE TABLE IF NOT EXISTS answers (
    key BLOB PRIMARY KEY, expires_at REAL NOT NULL, content BLOB NOT NULL
) STRICT
"""
_INDEX = "CREATE INDEX IF NOT EXISTS answers_by_age ON answers (expires_at)"
_OLDEST = "SELECT key FROM answers ORDER BY expires_at LIMIT 1"


class AnswerStore:
    """Answers by key; the oldest go first.

    Args:
        path: The file.
        most: Bytes of all answers together.
        ttl: Seconds that one is kept.
        clock: Tells the Unix time.
    """

    def __init__(self, path: Path, *, most: int, ttl: float, clock: Callable[[], float]) -> None:
        self._path = path
        self._most = most
        self._ttl = ttl
        self._clock = clock
        self._size: int | None = None
        """Bytes of all answers, as far as this process knows; None before the first one."""
        self._keeping: set[asyncio.Task[None]] = set()

    async def get(self, key: bytes, is_answer: Callable[[bytes], bool]) -> bytes | None:
        """Finds an answer that isn't too old.

        Args:
            key: What it was kept under.
            is_answer: Tells whether it can be read; another version may have written the file.
        """
        try:
            content = await asyncio.to_thread(self._read, key)
        except sqlite3.Error as error:
            self._failed(error)
            return None
        return content if content is not None and is_answer(content) else None

    def put_later(self, key: bytes, content: bytes) -> None:
        """Keeps an answer, in place of others if there is no room; nobody waits for it."""
        task = asyncio.get_running_loop().create_task(self._put(key, content))
        self._keeping.add(task)
        task.add_done_callback(self._keeping.discard)

    async def settled(self) -> None:
        """Waits until all answers are kept."""
        while self._keeping:
            await asyncio.wait(self._keeping)

    async def _put(self, key: bytes, content: bytes) -> None:
        try:
            self._size = await asyncio.to_thread(self._write, key, content, self._size)
        except sqlite3.Error as error:
            self._failed(error)

    def _failed(self, error: sqlite3.Error) -> None:
        metrics.CACHE_FAILURES.inc()
        logger.error("the cache %s can't be used: %s", self._path, error)

    def _read(self, key: bytes) -> bytes | None:
        with self._open() as file:
            found = file.execute(
                "SELECT content FROM answers WHERE key = ? AND expires_at > ?",
                (key, self._clock()),
            ).fetchone()
        return None if found is None else bytes(found[0])

    def _write(self, key: bytes, content: bytes, size: int | None) -> int:
        """Returns the bytes of all answers afterwards."""
        now = self._clock()
        with self._open() as file:
            if size is None:  # counted once; from then on what comes and goes is added up
                (size,) = file.execute("SELECT total(length(content)) FROM answers").fetchone()
            gone = file.execute(
                "DELETE FROM answers WHERE expires_at <= ? OR key = ? RETURNING length(content)",
                (now, key),
            ).fetchall()
            left = int(size or 0) - sum(length for (length,) in gone) + len(content)
            file.execute("INSERT INTO answers VALUES (?, ?, ?)", (key, now + self._ttl, content))
            while left > self._most:
                gone = file.execute(
                    f"DELETE FROM answers WHERE key = ({_OLDEST}) RETURNING length(content)"  # noqa: S608 - a constant of this file
                ).fetchall()
                if not gone:  # another process has made room
                    return 0
                left -= gone[0][0]
        return left

    @contextlib.contextmanager
    def _open(self) -> Generator[sqlite3.Connection]:
        connection = sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)
        with contextlib.closing(connection) as file:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute(_TABLE)
            file.execute(_INDEX)
            yield file
