"""Results of texts that were read before: a hit costs no pass through the model.

One cache belongs to one model with one purpose. Its key is the exact text, or a query and a text
as a pair, so that no two questions are taken for one. It is bounded in bytes; what was used longest
ago goes first.
"""

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

ENTRY_BYTES = 500
"""What an entry takes besides its text and numbers; about that much by `sys.getsizeof`."""

Key = tuple[str | None, str]
"""Query and text."""


class ResultCache:
    """Results by text.

    Args:
        most_bytes: What it may take; 0 keeps nothing.
    """

    __slots__ = ("_bytes", "_kept", "_most_bytes")

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._kept: OrderedDict[Key, NDArray[np.float32]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def find(self, key: Key) -> NDArray[np.float32] | None:
        """Returns the result, float32, (outputs,); None if it isn't kept."""
        row = self._kept.get(key)
        if row is not None:
            self._kept.move_to_end(key)
        return row

    def keep(self, key: Key, row: NDArray[np.float32]) -> None:
        """Keeps a result, float32, (outputs,), which nobody changes any more."""
        size = _size(key, row)
        if key in self._kept or size > self._most_bytes:
            return
        self._kept[key] = row.copy()  # a row of a batch would keep all of the batch
        self._bytes += size
        while self._bytes > self._most_bytes:
            old, gone = self._kept.popitem(last=False)
            self._bytes -= _size(old, gone)


def _size(key: Key, row: NDArray[np.float32]) -> int:
    query, text = key
    return ENTRY_BYTES + row.nbytes + 4 * (len(text) + len(query or ""))
