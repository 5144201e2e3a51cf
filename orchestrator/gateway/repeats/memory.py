"""Whole answers kept in memory: bounded in bytes and in time, the least used ones go first."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from orchestrator.events import Finished, TokenChunk

ENTRY_OVERHEAD_BYTES = 256
Answer = tuple[Sequence[TokenChunk], Finished]
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(tuple[list[TokenChunk], Finished])


def packed(answer: Answer) -> bytes:
    """An answer as bytes."""
    return _encoder.encode(answer)


def unpacked(content: bytes) -> Answer:
    """The answer in the bytes that `packed` made."""
    return _decoder.decode(content)


def is_answer(content: bytes) -> bool:
    """Whether `packed` of this very version has made the bytes."""
    try:
        unpacked(content)
    except msgspec.DecodeError:
        return False
    return True


class Memory:
    """Answers by key.

    Args:
        most: Bytes of all together.
        ttl: Seconds that one is kept.
        clock: Tells the time in seconds.
    """

    def __init__(self, *, most: int, ttl: float, clock: Callable[[], float]) -> None:
        self._most = most
        self._ttl = ttl
        self._clock = clock
        self._entries = OrderedDict[bytes, tuple[float, bytes]]()
        self.size = 0
        """Bytes of all together."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> bytes | None:
        """Finds an answer that isn't too old."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires_at, content = entry
        if self._clock() >= expires_at:
            self._drop(key)
            return None
        self._entries.move_to_end(key)
        return content

    def put(self, key: bytes, content: bytes) -> None:
        """Keeps an answer, in place of others if there is no room."""
        if key in self._entries:
            self._drop(key)
        if _size(content) > self._most:
            return
        self._entries[key] = (self._clock() + self._ttl, content)
        self.size += _size(content)
        while self.size > self._most:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: bytes) -> None:
        _, content = self._entries.pop(key)
        self.size -= _size(content)


def _size(content: bytes) -> int:
    return len(content) + ENTRY_OVERHEAD_BYTES
