"""Which row begins as a prompt does, found without looking at every row.

The beginning of a row is known by a hash that goes on from block to block, so a prompt is looked up
in as many steps as it has blocks, however many rows there are.
"""

from collections.abc import Sequence

from orchestrator.runners.torch.memory import Row

BLOCK = 32
"""Tokens; what two prompts have in common below it isn't looked for."""


class Prefixes:
    """The beginnings of all rows that hold something."""

    def __init__(self) -> None:
        self._rows: dict[int, Row] = {}
        self._hashes: dict[Row, list[int]] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, row: Row) -> None:
        """Takes in the blocks that were completed since the last time."""
        hashes = self._hashes.setdefault(row, [])
        for start in range(len(hashes) * BLOCK, len(row.tokens) - BLOCK + 1, BLOCK):
            hashes.append(_chain(hashes[-1] if hashes else 0, row.tokens[start : start + BLOCK]))
            self._rows[hashes[-1]] = row

    def forget(self, row: Row) -> None:
        """The row holds something else from now on, or is gone."""
        for one in self._hashes.pop(row, ()):
            if self._rows.get(one) is row:
                del self._rows[one]

    def find(self, tokens: Sequence[int]) -> tuple[Row | None, int]:
        """Returns the row that has most in common with these, and how many tokens that are."""
        found, chain, length = None, 0, 0
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            chain = _chain(chain, tokens[start : start + BLOCK])
            row = self._rows.get(chain)
            # hashes may collide, tokens don't lie
            if row is None or row.tokens[start : start + BLOCK] != tokens[start : start + BLOCK]:
                break
            found, length = row, start + BLOCK
        if found is None or found.tokens[:length] != list(tokens[:length]):
            return None, 0
        for one, other in zip(found.tokens[length:], tokens[length:], strict=False):
            if one != other:
                break
            length += 1
        return found, length


def _chain(before: int, block: Sequence[int]) -> int:
    return hash((before, *block))
