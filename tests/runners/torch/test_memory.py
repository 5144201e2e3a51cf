import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator.runners.torch.memory import Memory, NoRoomError, Row, Shape

SHAPE = Shape(layers=2, heads=1, width=1, dtype=torch.float32, device=torch.device("cpu"))
LIMIT = 4096


class Rows(RuleBasedStateMachine):
    """Each row holds its own number in as many places as it has tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory(SHAPE, tokens=LIMIT, longest=2000)
        self.discarded: list[Row] = []
        self.memory.on_discard = self.discarded.append
        self.used: dict[Row, int] = {}
        self.kept: dict[Row, int] = {}
        self.number = 0

    def write(self, row: Row, number: int, tokens: int) -> None:
        row.slab.keys[:, row.at, :, :tokens] = number
        row.slab.values[:, row.at, :, :tokens] = -number
        row.tokens = [number] * tokens

    @rule(tokens=st.integers(1, 2000), share=st.floats(0.1, 1))
    def open(self, tokens: int, share: float) -> None:
        try:
            row = self.memory.open(tokens)
        except NoRoomError:
            assert not self.memory.kept
            assert self.used
            return
        assert row.slab.capacity >= tokens
        self.number += 1
        self.write(row, self.number, max(1, int(tokens * share)))
        self.used[row] = self.number

    @precondition(lambda self: self.used)
    @rule(data=st.data(), keep=st.booleans())
    def close(self, data: st.DataObject, keep: bool) -> None:
        row = data.draw(st.sampled_from(sorted(self.used, key=self.used.__getitem__)))
        number = self.used.pop(row)
        self.memory.close(row, keep=keep)
        if keep:
            self.kept[row] = number

    @precondition(lambda self: any(row.slab.capacity < 1024 for row in self.used))
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        small = [row for row in self.used if row.slab.capacity < 1024]
        row = data.draw(st.sampled_from(sorted(small, key=self.used.__getitem__)))
        size = row.slab.capacity
        try:
            bigger = self.memory.grow(row)
        except NoRoomError:
            return
        assert bigger.slab.capacity == 2 * size
        self.used[bigger] = self.used.pop(row)

    @invariant()
    def every_row_holds_what_was_written(self) -> None:
        for row in self.discarded:
            self.kept.pop(row)
        self.discarded.clear()
        assert self.memory.used == len(self.used)
        assert self.memory.kept == len(self.kept)
        for row, number in (self.used | self.kept).items():
            size = len(row.tokens)
            assert (row.slab.keys[:, row.at, :, :size] == number).all()
            assert (row.slab.values[:, row.at, :, :size] == -number).all()
            assert row.slab.rows[row.at] is row
            assert (row.at < row.slab.used) == (row in self.used)

    @invariant()
    def no_more_is_held_than_allowed(self) -> None:
        slabs = {row.slab for row in self.used | self.kept}
        assert sum(slab.capacity * len(slab.rows) for slab in slabs) <= LIMIT


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)


def test_one_row_of_the_longest_answer_always_has_room() -> None:
    memory = Memory(SHAPE, tokens=1, longest=3000)

    row = memory.open(3000)

    assert row.slab.capacity >= 3000
