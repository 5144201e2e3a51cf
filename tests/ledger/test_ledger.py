"""The ledger from the loop's side: what was appended is in the file once, whatever happens."""

import asyncio
import errno
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator.ledger import ledger as ledger_module
from orchestrator.ledger.ledger import Ledger, LedgerSettings
from orchestrator.ledger.row import line_of
from orchestrator.ledger.spool import SEGMENT_BYTES, Spool, leftovers
from orchestrator.ledger.store import LOOK_ROWS, Spending, Store, reading
from orchestrator.ledger.writer import BATCH_BYTES
from orchestrator.metrics import REGISTRY
from tests.ledger.rows import a_row

LOST = "orchestrator_ledger_lost_rows_total"


def uids(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        found = [uid for (uid,) in connection.execute("SELECT uid FROM usage ORDER BY rowid")]
    connection.close()
    return found


def spools(path: Path) -> list[Path]:
    return list(path.parent.glob("*.spool-*"))


def opened(path: Path, *, segment_bytes: int = SEGMENT_BYTES) -> Ledger:
    ledger = Ledger(LedgerSettings(path=path, segment_bytes=segment_bytes))
    ledger.open()
    return ledger


def test_what_was_appended_is_in_the_file_after_the_close(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "u.db")

    for number in range(100):
        ledger.append(a_row(str(number)))
    ledger.close()

    assert uids(tmp_path / "u.db") == [str(number) for number in range(100)]
    assert spools(tmp_path / "u.db") == []


def checked(text: bytes) -> bytes:
    return b"%08x%b\n" % (zlib.crc32(text), text)


def test_segments_follow_each_other_and_are_removed(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "u.db", segment_bytes=500)

    for number in range(50):
        ledger.append(a_row(str(number)))
    ledger.close()

    assert len(uids(tmp_path / "u.db")) == 50
    assert spools(tmp_path / "u.db") == []


def test_what_a_dead_process_left_is_taken_over_once(tmp_path: Path) -> None:
    path = tmp_path / "u.db"
    dead = Spool(path)
    for number in range(3):
        dead.append(line_of(a_row(str(number))))
    dead.append(line_of(a_row("cut off"))[:-10])
    store = Store(path)  # one row was taken before the death, but the spool not removed
    store.add([a_row("1")])
    store.close()
    os.close(dead.segments[0].descriptor)  # as the end of a process does

    opened(path).close()
    opened(path).close()

    assert sorted(uids(path)) == ["0", "1", "2"]
    assert spools(path) == []


@pytest.mark.parametrize(
    ("foreign", "lost"),
    [
        (checked(b'["of another version"]'), 1),
        (checked(b"no json"), 1),
        (line_of(a_row("1")._replace(cost_nano_usd=1 << 63)), 1),
        (b"\0" * (3 * BATCH_BYTES) + b"\n", 0),
    ],
)
def test_what_is_no_row_keeps_no_other_row_and_no_gateway_back(
    tmp_path: Path, foreign: bytes, lost: int
) -> None:
    path = tmp_path / "u.db"
    before = REGISTRY.get_sample_value(LOST) or 0.0
    content = line_of(a_row("a")) + foreign + line_of(a_row("b"))
    (tmp_path / "u.db.spool-1-dead-0").write_bytes(content)

    ledger = opened(path)
    ledger.append(a_row("c"))
    ledger.close()

    assert sorted(uids(path)) == ["a", "b", "c"]
    assert spools(path) == []
    assert (REGISTRY.get_sample_value(LOST) or 0.0) - before == lost


def test_the_spool_of_a_process_that_lives_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "u.db"
    living = Spool(path)
    living.append(line_of(a_row("1")))

    assert list(leftovers(path)) == []
    opened(path).close()

    assert len(spools(path)) == 1
    assert uids(path) == []
    living.segments[0].remove()


def test_what_was_spent_before_is_told_at_the_start(tmp_path: Path) -> None:
    first = opened(tmp_path / "u.db")
    first.append(a_row("1"))
    first.append(a_row("2")._replace(caller="bob", cost_nano_usd=None))
    first.append(a_row("3")._replace(ended_at_ms=5))
    first.close()

    second = Ledger(LedgerSettings(path=tmp_path / "u.db"))
    found = second.open([("caller", 1_000), ("route", 0)])
    second.close()

    assert found == [[("ann", 100, 15), ("bob", 0, 15)], [("chat", 200, 45)]]


async def test_a_full_disk_loses_nothing_and_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ledger_module, "RETRY_SECONDS", 0.001)
    real, full = os.write, asyncio.Event()

    def write(descriptor: int, data: bytes) -> int:
        if not full.is_set():
            return real(descriptor, data)
        if len(data) > 100:  # a disk fills up in the middle of a row
            return real(descriptor, data[:50])
        raise OSError(errno.ENOSPC, "No space left on device")

    ledger = Ledger(LedgerSettings(path=tmp_path / "u.db", on_failure="refuse"))
    ledger.open()
    ledger.append(a_row("1"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write)
        full.set()
        ledger.append(a_row("2"))
        ledger.append(a_row("3"))
        assert not ledger.available
    async with asyncio.timeout(5):
        while not ledger.available:  # noqa: ASYNC110 - its timer has no event
            await asyncio.sleep(0)
    ledger.close()

    assert uids(tmp_path / "u.db") == ["1", "2", "3"]
    assert any("can't be spooled" in message for message in caplog.messages)
    assert any("can be spooled again" in message for message in caplog.messages)


async def test_a_folder_that_is_not_there_breaks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = Ledger(LedgerSettings(path=tmp_path / "none" / "u.db"))

    assert ledger.open([("caller", 0)]) == []
    ledger.append(a_row("1"))

    assert ledger.available
    ledger.close()
    assert any("can't be opened" in message for message in caplog.messages)
    assert any("1 rows" in message or "2 rows" in message for message in caplog.messages)


def test_a_file_that_is_no_ledger_keeps_rows_in_the_spool(tmp_path: Path) -> None:
    path = tmp_path / "u.db"
    path.write_text("something else, and long enough to be looked at" * 30, encoding="utf-8")

    ledger = opened(path)
    ledger.append(a_row("1"))
    ledger.close()
    path.unlink()
    opened(path).close()

    assert uids(path) == ["1"]


def test_sums_are_by_group_with_the_dearest_first(tmp_path: Path) -> None:
    ledger = opened(tmp_path / "u.db")
    ledger.append(a_row("1"))
    ledger.append(a_row("2")._replace(caller="bob", cost_nano_usd=900))
    ledger.append(a_row("3")._replace(cost_nano_usd=None, outcome="canceled"))
    ledger.close()

    with reading(tmp_path / "u.db") as store:
        by_caller = store.sums("caller")
        by_day = store.sums("day")
        later = store.sums("caller", 3_000)

    assert [(s.name, s.requests, s.finished, s.cost_nano_usd, s.unpriced) for s in by_caller] == [
        ("bob", 1, 1, 900, 0),
        ("ann", 2, 1, 100, 1),
    ]
    assert [s.name for s in by_day] == ["1970-01-01"]
    assert later == []


def test_a_ledger_of_a_newer_version_is_not_touched(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "u.db")
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    with pytest.raises(sqlite3.DatabaseError, match="newer"):
        Store(tmp_path / "u.db")


def test_two_gateways_on_one_file_lose_and_double_no_row_though_one_starts_anew(
    tmp_path: Path,
) -> None:
    path = tmp_path / "u.db"
    first, second = opened(path, segment_bytes=2000), opened(path, segment_bytes=2000)
    expected: list[str] = []

    for number in range(120):
        if number == 60:  # the other one goes on meanwhile
            first.close()
            first = opened(path, segment_bytes=2000)
        for ledger in (first, second):
            expected.append(ledger.next_uid())
            ledger.append(a_row(expected[-1]))
    first.close()
    second.close()

    assert len(set(expected)) == 240
    assert sorted(uids(path)) == sorted(expected)
    assert spools(path) == []


async def test_what_others_add_is_told_once_and_what_is_ones_own_never(tmp_path: Path) -> None:
    path, hour = tmp_path / "u.db", 3_600_000
    opened(path).close()
    told: asyncio.Queue[Sequence[Spending]] = asyncio.Queue()
    before = opened(path)
    before.append(a_row(before.next_uid()))
    before.close()
    settings = LedgerSettings(path=path, look_seconds=0.01)
    one, other = Ledger(settings), Ledger(settings)
    found = one.open([("caller", 0)], told.put_nowait)
    other.open()

    for number in range(3):
        one.append(a_row(one.next_uid()))
        ended_at_ms = (7 + number // 2) * hour + number
        other.append(a_row(other.next_uid())._replace(ended_at_ms=ended_at_ms))
    other.close()
    learnt: list[Spending] = []
    async with asyncio.timeout(5):
        while sum(group.tokens for group in learnt) < 45:
            learnt += await told.get()
    one.close()

    assert found == [[("ann", 100, 15)]]
    assert {(group.caller, group.route, group.deployment) for group in learnt} == {
        ("ann", "chat", "d")
    }
    sums = Counter[float]()
    for group in learnt:
        sums[group.at] += group.tokens
    assert sums == {7 * 3600.0: 30, 8 * 3600.0: 15}
    assert told.empty()


def test_others_rows_are_looked_at_in_bounded_steps_also_when_numbers_begin_anew(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path / "u.db")
    store.add(a_row(f"other-{number}") for number in range(LOOK_ROWS + 2))

    until, found = store.spent_by_others("own-", 1)
    rest, more = store.spent_by_others("own-", until)
    again = store.spent_by_others("own-", 10 * LOOK_ROWS)
    store.close()

    assert (until, sum(group.tokens for group in found)) == (LOOK_ROWS + 1, 15 * LOOK_ROWS)
    assert (rest, sum(group.tokens for group in more)) == (LOOK_ROWS + 2, 15)
    assert again == (LOOK_ROWS + 2, [])


def test_rows_of_a_clock_that_went_back_are_kept_and_still_count_as_spent(tmp_path: Path) -> None:
    path, hour = tmp_path / "u.db", 3_600_000
    ledger = opened(path)
    for number, ended_at_ms in enumerate([5 * hour, 4 * hour, 5 * hour - 1]):
        ledger.append(a_row(str(number))._replace(ended_at_ms=ended_at_ms))
    ledger.close()

    again = Ledger(LedgerSettings(path=path))
    found = again.open([("caller", 4 * hour)])  # it is four o'clock once more
    again.close()

    assert found == [[("ann", 300, 45)]]
    assert uids(path) == ["0", "1", "2"]
