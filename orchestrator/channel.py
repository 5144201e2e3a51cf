"""The per-request channel: many chunks, one ending.

Rules:
    1. The first ending wins; whatever comes after it is dropped and counted as late.
    2. The ending has a place of its own outside the bounded buffer, so it never waits for room.
    3. Only the newest attempt may write: `begin(epoch)` shuts out every older one.
    4. The reader gets all that is ready in one go, and the ending after the last chunk.
    5. A reader that doesn't read ends its own request with `SlowConsumerError`, nobody else's.
    6. What nobody has read yet can be taken back (`retract`); what was read is never sent again.
       An answer that is kept can be gone on with after its last chunk (`suspend`).

All methods are called on the event loop of the engine that writes, as long as it runs; none but
`receive` waits.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from orchestrator.errors import SlowConsumerError
from orchestrator.events import Ending, Failed, TokenChunk
from orchestrator.metrics import LATE

STREAM_CAPACITY_BYTES = 1 << 20
HELD_CAPACITY_BYTES = 64 << 20
CHUNK_OVERHEAD_BYTES = 64
VALUE_BYTES = 16
"""What a number or a name is taken for."""
LOOKED_AT = 16
"""Items of a long list that are looked at; thousands of logprobs would take 80 ms."""


def weight(value: object) -> int:
    """About how many bytes a chunk's fields hold; a long list is weighed by samples."""
    if isinstance(value, str):
        return VALUE_BYTES + len(value)
    if isinstance(value, dict):
        members = cast("dict[str, object]", value)
        return VALUE_BYTES * len(members) + sum(map(weight, members.values()))
    if isinstance(value, list):
        items = cast("list[object]", value)
        if len(items) <= LOOKED_AT:
            return sum(map(weight, items))
        samples = items[:: len(items) // LOOKED_AT]
        return len(items) * sum(map(weight, samples)) // len(samples)
    return VALUE_BYTES


class Channel:
    """One request's output, written by the engine's side and read by the caller's.

    Args:
        held: The reader wants the whole answer at once (a non-streaming caller): nothing counts
            as read before the ending, so everything before it may be tried again.
        capacity_bytes: Bound of the unread text, each chunk counted with 64 bytes besides its
            characters.
    """

    __slots__ = (
        "_capacity_bytes",
        "_chunks",
        "_ending",
        "_epoch",
        "_reader",
        "_size_bytes",
        "_watchers",
        "delivered",
        "held",
        "kept",
        "late_events",
    )

    def __init__(self, *, held: bool = False, capacity_bytes: int | None = None) -> None:
        self.held = held
        self.delivered = 0
        """Chunks that the reader has taken."""
        self.late_events = 0
        """Chunks and endings that came after the ending or from a replaced attempt."""
        self.kept: list[TokenChunk] | None = None
        """All that was sent, if the answer may go on after a break; None keeps nothing."""
        self._capacity_bytes = capacity_bytes or (
            HELD_CAPACITY_BYTES if held else STREAM_CAPACITY_BYTES
        )
        self._chunks: list[TokenChunk] = []
        self._size_bytes = 0
        self._ending: Ending | None = None
        self._epoch = 0
        self._reader: asyncio.Future[None] | None = None
        self._watchers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "open" if self._ending is None else type(self._ending).__name__.lower()
        return f"<Channel {state}, {self.delivered} read, {len(self._chunks)} ready>"

    @property
    def ending(self) -> Ending | None:
        """The ending, as soon as it is decided; the reader may still have chunks to read."""
        return self._ending

    @property
    def committed(self) -> bool:
        """Whether the reader has been given something, so that nothing may be restarted."""
        return self.delivered > 0

    def watch(self, callback: Callable[[], None]) -> None:
        """Calls back once, synchronously, when the channel ends; at once if it has ended."""
        if self._ending is None:
            self._watchers.append(callback)
        else:
            callback()

    def begin(self, epoch: int) -> None:
        """Gives the pen to the attempt with this number, from 1, and takes it from every other."""
        self._epoch = epoch

    def is_written_by(self, epoch: int) -> bool:
        """Whether that attempt has the pen."""
        return epoch == self._epoch

    def send(self, chunk: TokenChunk, epoch: int) -> bool:
        """Hands over one chunk; False tells the attempt to stop, for nobody will read it."""
        if self._ending is not None or epoch != self._epoch:
            self._late()
            return False
        self._size_bytes += len(chunk.text) + CHUNK_OVERHEAD_BYTES
        if chunk.fields is not None:
            self._size_bytes += weight(chunk.fields)
        if self._size_bytes > self._capacity_bytes and self._chunks:
            # a chunk that alone is larger was never left unread by anybody
            self.end(Failed(self._overflow()))
            return False
        self._chunks.append(chunk)
        if self.kept is not None:
            self.kept.append(chunk)
        if not self.held:
            self._wake()
        return True

    def end(self, ending: Ending, epoch: int | None = None) -> bool:
        """Ends the request; returns whether this ending is the one that counts.

        Args:
            ending: What the reader gets after the chunks that are ready.
            epoch: The attempt that ends it; None for everybody else (cancel, deadline, poison).
        """
        if self._ending is not None or (epoch is not None and epoch != self._epoch):
            self._late()
            return False
        self._ending = ending
        self._wake()
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher()
        return True

    def retract(self) -> bool:
        """Drops what nobody has read yet and takes the pen from the attempt that wrote it.

        False if something was read or the request has ended: then nothing may be restarted.
        """
        if self.delivered or self._ending is not None:
            return False
        self._epoch = 0  # a straggler's chunk must not become the first of another attempt
        self._chunks.clear()
        if self.kept is not None:
            self.kept.clear()
        self._size_bytes = 0
        return True

    def suspend(self) -> Sequence[TokenChunk]:
        """Takes the pen and leaves all that was sent: another attempt goes on after it.

        Returns:
            What was sent, read or not; nothing if it isn't kept.
        """
        self._epoch = 0
        return tuple(self.kept or ())

    def nudge(self) -> None:
        """Wakes a reader that waits; it gets no chunks, and is free to do something else."""
        if not self.held:
            self._wake()

    async def receive(self) -> tuple[list[TokenChunk], Ending | None]:
        """Waits until something is ready and takes all of it; the ending is None until it is due.

        After the ending it returns no chunks and the same ending. One reader at a time.
        """
        if self._ending is None and (self.held or not self._chunks):
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        return self.take()

    def take(self) -> tuple[list[TokenChunk], Ending | None]:
        """Takes all that is ready without waiting; the ending is None if it isn't due.

        Besides `receive` it serves a reader whose engine's loop is closed.
        """
        chunks, self._chunks = self._chunks, []
        self._size_bytes = 0
        self.delivered += len(chunks)
        return chunks, self._ending

    def _late(self) -> None:
        self.late_events += 1
        LATE.inc()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _overflow(self) -> SlowConsumerError:
        if self.held:
            return SlowConsumerError(
                f"the answer grew beyond {self._capacity_bytes} bytes; use stream=true"
            )
        return SlowConsumerError(
            f"the caller left {self._capacity_bytes} bytes of its stream unread; read faster"
        )
