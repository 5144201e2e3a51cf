"""The ledger's SQLite file: rows go in once, sums come out.

SQLite waits for disks and locks, so nothing here is called on a loop that serves.
"""

import contextlib
import sqlite3
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from orchestrator.ledger.row import Row

BUSY_SECONDS = 5.0
HOUR_MS = 3_600_000
LOOK_ROWS = 10_000
"""Rows that are looked at in one go."""
VERSION = 1
By = Literal["caller", "route", "deployment", "model", "outcome", "day", "month"]
GROUPS: dict[By, str] = {
    "caller": "caller",
    "route": "route",
    "deployment": "deployment",
    "model": "model",
    "outcome": "outcome",
    "day": "date(ended_at_ms / 1000, 'unixepoch')",
    "month": "strftime('%Y-%m', ended_at_ms / 1000, 'unixepoch')",
}
_TABLE = """
CREATE TABLE IF NOT EXISTS usage (
    uid TEXT PRIMARY KEY,
    request_id TEXT NOT NULL,
    caller TEXT NOT NULL,
    route TEXT NOT NULL,
    deployment TEXT NOT NULL,
    model TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    prompt_tokens INTEGER,
    cached_tokens INTEGER,
    completion_tokens INTEGER,
    reasoning_tokens INTEGER,
    cost_nano_usd INTEGER,
    estimated INTEGER NOT NULL,
    failed_attempts INTEGER NOT NULL,
    failed_tokens INTEGER NOT NULL,
    failed_cost_nano_usd INTEGER,
    accepted_at_ms INTEGER NOT NULL,
    queued_ms INTEGER NOT NULL,
    first_token_ms INTEGER,
    ended_at_ms INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    finish_reason TEXT
) STRICT
"""
_INDEX = "CREATE INDEX IF NOT EXISTS usage_by_end ON usage (ended_at_ms)"
_INSERT = f"INSERT OR IGNORE INTO usage VALUES ({', '.join('?' * len(Row._fields))})"  # noqa: S608 - question marks alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What requests of one caller, route and deployment cost that ended in one hour."""

    caller: str
    route: str
    deployment: str
    """Empty if none served them."""
    at: float
    """Unix time, seconds, at which the hour begins."""
    nano_usd: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """The rows of one group, added up."""

    name: str
    requests: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    cost_nano_usd: int
    unpriced: int
    """Requests whose cost is unknown and in no sum."""
    failed_attempts: int
    failed_tokens: int
    failed_cost_nano_usd: int


class Store:
    """One connection to the file; of one thread at a time.

    Raises:
        sqlite3.Error: The file can't be opened, isn't a ledger, or is a newer one.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()

    def add(self, rows: Iterable[Row]) -> None:
        """Adds rows in one transaction; those that are there already change nothing.

        Raises:
            sqlite3.Error: None of them was added.
        """
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._connection.executemany(_INSERT, rows)
            self._connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # a full disk has rolled it back already
                self._connection.execute("ROLLBACK")
            raise

    def spent_since(self, by: By, begin_ms: int) -> Iterator[tuple[str, int, int]]:
        """Yields name, 10^-9 USD and tokens of each group that ended since then."""
        yield from self._connection.execute(
            f"SELECT {GROUPS[by]}, coalesce(sum(cost_nano_usd), 0),"  # noqa: S608 - one of a table's expressions
            " coalesce(sum(prompt_tokens), 0) + coalesce(sum(completion_tokens), 0)"
            " FROM usage WHERE ended_at_ms >= ? GROUP BY 1",
            (begin_ms,),
        )

    @contextlib.contextmanager
    def snapshot(self) -> Generator[None]:
        """All that is read meanwhile is of one moment.

        Raises:
            sqlite3.Error: It can't be read.
        """
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("COMMIT")

    def newest(self) -> int:
        """The number of the row that was added last; 0 if there is none."""
        (number,) = self._connection.execute("SELECT coalesce(max(rowid), 0) FROM usage").fetchone()
        return number

    def spent_by_others(self, own: str, after: int) -> tuple[int, list[Spending]]:
        """Adds up rows that were added after one, `LOOK_ROWS` of them at most.

        Args:
            own: How names of rows begin that aren't looked for.
            after: The number of that one.

        Returns:
            The number of the last one that was looked at, and what the others' come to.
        """
        until = min(self.newest(), after + LOOK_ROWS)
        if until <= after:  # or numbers begin anew, since somebody has cleared the file up
            return until, []
        found = self._connection.execute(
            f"SELECT caller, route, deployment, ended_at_ms / {HOUR_MS},"  # noqa: S608 - a number of ours
            " coalesce(sum(cost_nano_usd), 0),"
            " coalesce(sum(prompt_tokens), 0) + coalesce(sum(completion_tokens), 0)"
            " FROM usage WHERE rowid > ? AND rowid <= ? AND substr(uid, 1, ?) != ?"
            " GROUP BY 1, 2, 3, 4",
            (after, until, len(own), own),
        )
        return until, [
            Spending(
                caller=caller,
                route=route,
                deployment=deployment,
                at=hour * HOUR_MS / 1000,
                nano_usd=nano_usd,
                tokens=tokens,
            )
            for caller, route, deployment, hour, nano_usd, tokens in found
        ]

    def sums(self, by: By, since_ms: int = 0) -> list[Sum]:
        """Adds up what ended since then, the dearest group first, days in their order."""
        order = "1" if by in {"day", "month"} else "8 DESC, 2 DESC, 1"
        found = self._connection.execute(
            f"SELECT {GROUPS[by]}, count(*), sum(outcome IN ('finished', 'cached')),"  # noqa: S608 - one of a table's expressions
            " coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0),"
            " coalesce(sum(completion_tokens), 0), coalesce(sum(reasoning_tokens), 0),"
            " coalesce(sum(cost_nano_usd), 0), sum(cost_nano_usd IS NULL),"
            " sum(failed_attempts), sum(failed_tokens), coalesce(sum(failed_cost_nano_usd), 0)"
            f" FROM usage WHERE ended_at_ms >= ? GROUP BY 1 ORDER BY {order}",
            (since_ms,),
        )
        return [_sum(cast("tuple[str, *tuple[int, ...]]", row)) for row in found]

    def _prepare(self) -> None:
        execute = self._connection.execute
        (version,) = execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise sqlite3.DatabaseError(f"the ledger's version is {version}, newer than {VERSION}")
        execute("PRAGMA journal_mode = WAL")  # whoever reads sums holds nobody up
        execute("PRAGMA synchronous = NORMAL")
        if version < VERSION:
            execute(_TABLE)
            execute(_INDEX)
            execute(f"PRAGMA user_version = {VERSION}")


@contextlib.contextmanager
def reading(path: Path) -> Generator[Store]:
    """Opens a ledger for its sums, which a gateway may go on writing.

    Raises:
        OperationalError: There is none, or it can't be read.
    """
    if not path.is_file():
        raise sqlite3.OperationalError("there is no such file")
    store = Store(path)
    try:
        yield store
    finally:
        store.close()


def _sum(row: tuple[str, *tuple[int, ...]]) -> Sum:
    name, *numbers = row
    return Sum(
        name=name,
        requests=numbers[0],
        finished=numbers[1],
        prompt_tokens=numbers[2],
        cached_tokens=numbers[3],
        completion_tokens=numbers[4],
        reasoning_tokens=numbers[5],
        cost_nano_usd=numbers[6],
        unpriced=numbers[7],
        failed_attempts=numbers[8],
        failed_tokens=numbers[9],
        failed_cost_nano_usd=numbers[10],
    )
