"""Where the keys and values of all answers stand: rows of a few sizes, those of one size together.

A row holds one answer's past and has room for 64, 128, 256, ... tokens. Rows of one size are cut
from slabs, and the rows in use stand at a slab's beginning: one call attends for all of them, over
views, without a copy. An answer that outgrows its row moves to one of twice the size, so each token
is copied once at most on average.

What an ended answer leaves behind is kept until the room is needed, the least recently used first:
a prompt that begins alike takes a copy of it.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch

SMALLEST = 64
SLAB_TOKENS = 1024


class NoRoomError(Exception):
    """Every token of the memory is held by an answer in the making."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one token leaves behind."""

    layers: int
    heads: int
    """Key heads."""
    width: int
    dtype: torch.dtype
    device: torch.device


class Slab:
    """Rows of one size: those in use, then those that are kept, then free ones."""

    __slots__ = ("capacity", "keys", "rows", "used", "values")

    def __init__(self, capacity: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.capacity = capacity
        """Tokens a row."""
        self.keys = keys
        """(layers, rows, heads, capacity, width)"""
        self.values = values
        self.rows: list[Row | None] = [None] * keys.shape[1]
        self.used = 0
        """Rows in use, all at the beginning."""

    def swap(self, one: int, other: int) -> None:
        """Lets two rows change places."""
        if one == other:
            return
        first, second = self.rows[one], self.rows[other]
        # no more than is there; what lies behind was never read
        length = max(0 if row is None else len(row.tokens) for row in (first, second))
        for part in (self.keys, self.values):
            moved = part[:, one, :, :length].clone()
            part[:, one, :, :length] = part[:, other, :, :length]
            part[:, other, :, :length] = moved
        self.rows[one], self.rows[other] = second, first
        for row, at in ((first, other), (second, one)):
            if row is not None:
                row.at = at


class Row:
    """One answer's past.

    Args:
        slab: Where it stands.
        at: Which row of the slab it is.
    """

    __slots__ = ("at", "slab", "tokens")

    def __init__(self, slab: Slab, at: int) -> None:
        self.slab = slab
        self.at = at
        self.tokens: list[int] = []
        """Those whose keys and values are in it."""


class Memory:
    """All rows of one model.

    Args:
        shape: Of a token.
        tokens: How many there may be room for at once, kept ones included; rounded up to what one
            row of `longest` needs.
        longest: Tokens of the longest answer, its prompt included.
    """

    def __init__(self, shape: Shape, *, tokens: int, longest: int) -> None:
        self._shape = shape
        self._sizes = [SMALLEST]
        while self._sizes[-1] < longest:
            self._sizes.append(self._sizes[-1] * 2)
        self._limit = max(tokens, self._sizes[-1], SLAB_TOKENS)
        self._made = 0
        self._slabs: dict[int, list[Slab]] = {size: [] for size in self._sizes}
        self._spare: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._kept: OrderedDict[Row, None] = OrderedDict()
        self.on_discard: Callable[[Row], None] | None = None
        """Told of each row that is kept no longer."""

    def __repr__(self) -> str:
        used = sum(slab.used for slabs in self._slabs.values() for slab in slabs)
        return f"<Memory of {self._limit} tokens, {used} rows in use, {len(self._kept)} kept>"

    @property
    def kept(self) -> int:
        """Rows that ended answers left behind."""
        return len(self._kept)

    @property
    def used(self) -> int:
        """Rows in use."""
        return sum(slab.used for slabs in self._slabs.values() for slab in slabs)

    def size_for(self, tokens: int) -> int:
        """The smallest size that has room for so many."""
        return max(SMALLEST, 1 << (tokens - 1).bit_length())

    def open(self, tokens: int) -> Row:
        """Returns an empty row with room for so many tokens.

        Raises:
            NoRoomError: There is none, and nothing is kept that could make room.
        """
        size = self.size_for(tokens)
        while (slab := self._with_room(size)) is None:
            if not self._kept:
                raise NoRoomError
            self._discard(next(iter(self._kept)))
        # those that are kept stand behind those in use, so the first of them makes way
        at = slab.used
        if (kept := slab.rows[at]) is not None:
            free = next((other for other, row in enumerate(slab.rows) if row is None), None)
            if free is None:
                self._discard(kept)
            else:
                slab.swap(at, free)
        row = slab.rows[at] = Row(slab, at)
        slab.used += 1
        return row

    def grow(self, row: Row) -> Row:
        """Returns a row of twice the size with the same content; the old one is gone.

        Raises:
            NoRoomError: As for `open`; the old one stays.
        """
        bigger = self.open(row.slab.capacity + 1)
        self.copy(row, bigger, len(row.tokens))
        self.close(row, keep=False)
        return bigger

    def copy(self, source: Row, target: Row, tokens: int) -> None:
        """Gives the target the first tokens of the source."""
        for of in ("keys", "values"):
            part: torch.Tensor = getattr(source.slab, of)
            other: torch.Tensor = getattr(target.slab, of)
            other[:, target.at, :, :tokens] = part[:, source.at, :, :tokens]
        target.tokens = source.tokens[:tokens]

    def touch(self, row: Row) -> None:
        """Says that a row that is kept was of use."""
        if row in self._kept:
            self._kept.move_to_end(row)

    def close(self, row: Row, *, keep: bool) -> None:
        """Takes a row out of use; what it holds may serve a later prompt if it is kept."""
        slab = row.slab
        slab.used -= 1
        slab.swap(row.at, slab.used)
        if keep and row.tokens:
            self._kept[row] = None
            return
        # a value that is no number would spoil every later row, even where nobody looks at it
        slab.keys[:, row.at].nan_to_num_(0.0, 0.0, 0.0)
        slab.values[:, row.at].nan_to_num_(0.0, 0.0, 0.0)
        self._free(row)

    def _discard(self, row: Row) -> None:
        del self._kept[row]
        if self.on_discard is not None:
            self.on_discard(row)
        self._free(row)

    def _free(self, row: Row) -> None:
        slab = row.slab
        slab.rows[row.at] = None
        row.tokens = []
        if any(slab.rows):
            return
        self._slabs[slab.capacity].remove(slab)
        if slab.capacity <= SLAB_TOKENS:
            self._spare.append((slab.keys, slab.values))
        else:
            self._made -= slab.capacity

    def _with_room(self, size: int) -> Slab | None:
        """A slab with a free row, a new one if there is room for it."""
        for slab in self._slabs[size]:
            if slab.used < len(slab.rows) and None in slab.rows:
                return slab
        made = max(size, SLAB_TOKENS)
        if size <= SLAB_TOKENS and self._spare:
            buffers = self._spare.pop()
        else:
            while self._made + made > self._limit and self._spare:
                self._spare.pop()
                self._made -= SLAB_TOKENS
            if self._made + made > self._limit:
                return None
            buffers = (self._buffer(made), self._buffer(made))
            self._made += made
        shape = self._shape
        rows = made // size
        keys, values = (
            buffer.view(shape.layers, rows, shape.heads, size, shape.width) for buffer in buffers
        )
        slab = Slab(size, keys, values)
        self._slabs[size].append(slab)
        return slab

    def _buffer(self, tokens: int) -> torch.Tensor:
        shape = self._shape
        size = shape.layers * tokens * shape.heads * shape.width
        # what isn't there yet is multiplied by nothing, which needs it to be a number
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
