"""The journal keeps order, survives its file, and has one hash for equal runs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.chaos import journal as module
from orchestrator.chaos.journal import (
    Event,
    Journal,
    JournalError,
    Kind,
    read_journal,
    trace_hash,
    write_journal,
)

scalars = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=9)
    | st.floats(allow_nan=False, allow_infinity=False)
)  # fmt: skip
names = st.none() | st.text(max_size=9)
numbers = st.none() | st.integers(0, 2**53)
events = st.builds(
    Event,
    t=st.floats(0, 1e6).map(lambda t: round(t, 6)),
    kind=st.sampled_from(Kind),
    request=names,
    attempt=numbers,
    worker=names,
    epoch=numbers,
    value=st.dictionaries(st.text(max_size=9), scalars, max_size=4),
)


def test_an_event_carries_the_time_rounded_to_a_microsecond():
    journal = Journal(lambda: 1.23456789)

    journal.record(Kind.READ, request="r1", index=0)

    assert list(journal.events) == [Event(1.234568, Kind.READ, "r1", value={"index": 0})]
    assert repr(journal) == "<Journal, 1 events>"


@given(written=st.lists(events, max_size=20))
def test_what_is_written_is_read_back_with_the_same_hash(
    written: list[Event], tmp_path_factory: pytest.TempPathFactory
):
    path = tmp_path_factory.mktemp("journal") / "journal.ndjson"
    half = len(written) // 2

    write_journal(path, written[:half])
    write_journal(path, written[half:])

    assert read_journal(path) == written
    assert trace_hash(read_journal(path)) == trace_hash(written)


def test_the_hash_sees_order_and_values_but_not_the_order_of_members():
    first = Event(0.0, Kind.GAUGE, value={"name": "idle", "value": 1})
    second = Event(0.0, Kind.GAUGE, value={"value": 1, "name": "idle"})
    other = Event(0.0, Kind.GAUGE, value={"name": "idle", "value": 2})

    assert trace_hash([first]) == trace_hash([second])
    assert trace_hash([first]) != trace_hash([other])
    assert trace_hash([first, other]) != trace_hash([other, first])


def test_a_torn_last_line_is_left_out(tmp_path: Path):
    path = tmp_path / "journal.ndjson"
    path.write_bytes(b'{"t":0.5,"kind":"cancel","request":"r1"}\n{"t":0.6,"ki')

    assert read_journal(path) == [Event(0.5, Kind.CANCEL, "r1")]


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b'{"t":0,"kind":"cancels"}\n', b'{"t":0,"kind":"cancel","prompt":"x"}\n'],
    ids=["not json", "unknown kind", "unknown field"],
)
def test_a_whole_line_that_is_no_event_is_named(line: bytes, tmp_path: Path):
    path = tmp_path / "journal.ndjson"
    path.write_bytes(b'{"t":0.5,"kind":"cancel","request":"r1"}\n' + line)

    with pytest.raises(JournalError, match="line 2"):
        read_journal(path)


def test_an_event_says_which_member_its_kind_lacks():
    event = Event(2.0, Kind.READ, "r1", value={"index": "first", "done": True})

    with pytest.raises(JournalError, match=r"read at 2\.0 s: index must be a number"):
        event.number("index")
    with pytest.raises(JournalError, match="must be a number"):
        event.number("done")
    with pytest.raises(JournalError, match="must be text"):
        event.text("cause")
    assert event.flag("done")
    assert not event.flag("zombie")


def test_the_table_of_kinds_names_every_kind_once():
    table = module.__doc__ or ""
    rows = [line[4:].split()[0] for line in table.splitlines() if line[:4] == "    " != line[:5]]

    named = [row for row in rows if row in set(Kind)]
    assert sorted(named) == sorted(Kind)
