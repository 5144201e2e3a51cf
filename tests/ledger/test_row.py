"""A row as a line of the spool: what comes out is what went in, or nothing."""

import hypothesis.strategies as st
from hypothesis import given, settings

from orchestrator.ledger.row import Row, line_of, rows_in
from tests.ledger.rows import a_row

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@settings(deadline=None)
@given(texts, st.none() | st.integers(0, 2**62), st.booleans())
def test_a_row_is_read_as_it_was_written(name: str, cost: int | None, estimated: bool) -> None:
    row = a_row("1")._replace(request_id=name, cost_nano_usd=cost, estimated=estimated)

    assert list(rows_in(line_of(row))) == [row]


@settings(deadline=None)
@given(st.integers(1, 200), st.booleans())
def test_a_line_that_was_cut_off_costs_no_other_row(cut: int, mended: bool) -> None:
    whole, torn = line_of(a_row("1")), line_of(a_row("2"))
    piece = torn[: min(cut, len(torn) - 2)] + (b"\n" if mended else b"")

    found: list[Row] = list(rows_in(whole + piece + whole))

    assert found[0] == a_row("1")
    assert len(found) == (2 if mended else 1)
