"""One answer that is made once and read by all who ask for it.

    request -> its own channel -> this recording -> a channel for each reader

A reader that comes late gets what was said before it came, then the rest. The answer is recorded up
to a bound; a larger one goes on for those who read it, but nobody can join it any more.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from orchestrator.channel import CHUNK_OVERHEAD_BYTES, HELD_CAPACITY_BYTES, Channel
from orchestrator.errors import DeadlineExceededError, RequestCanceledError
from orchestrator.events import Ending, Failed, TokenChunk
from orchestrator.request import PriorityRequest

ONLY_EPOCH = 1


class Production:
    """The answer to one request.

    Args:
        asked: The first reader's request; what is sent on its way is a copy with its own channel.
        goes_on: Whether it is made to its end when all readers have gone.
        most: Bytes that are recorded.
    """

    def __init__(self, asked: PriorityRequest, *, goes_on: bool, most: int) -> None:
        self.request = replace(
            asked, channel=Channel(held=asked.channel.held, capacity_bytes=HELD_CAPACITY_BYTES)
        )
        self.chunks: list[TokenChunk] = []
        self.ending: Ending | None = None
        self.joinable = True
        self._goes_on = goes_on
        self._most = most
        self._size = 0
        self._readers: dict[Channel, None] = {}
        self._task: asyncio.Task[None] | None = None

    def suits(self, asked: PriorityRequest) -> bool:
        """Whether another request would be served by it about as it asks to be.

        The deadline and the priority are the first reader's. One who asks for more than twice the
        time that is left, or for a higher priority, would fail or wait for a stranger's reason.
        """
        made = self.request
        if asked.priority > made.priority:
            return False
        if asked.timeout is None and made.timeout is not None:
            return False  # the route's own time is longer, as far as is known here
        wanted = asked.timeout or made.deadline - made.accepted_at
        left = made.deadline - asyncio.get_running_loop().time()
        return left >= wanted / 2

    def start(self, on_end: Callable[[], None]) -> None:
        """Records from now on; calls back when it has ended, whatever the ending is."""
        # the request's channel gets an ending in any case, and with it this task
        self._task = asyncio.get_running_loop().create_task(self._record(on_end))

    async def over(self) -> None:
        """Waits until it has ended and whoever was called back has done its part."""
        if self._task is not None:
            await self._task

    def join(self, asked: PriorityRequest) -> None:
        """Gives another request all that was said, and what will be, within its own time."""
        self.attach(asked.channel)
        if asked.timeout is not None and asked.channel.ending is None:
            late = DeadlineExceededError(f"the deadline passed after {asked.timeout:g} s")
            timer = asyncio.get_running_loop().call_later(
                asked.timeout, asked.channel.end, Failed(late)
            )
            asked.channel.watch(timer.cancel)

    def attach(self, reader: Channel) -> None:
        """Gives a reader all that was said, and what will be."""
        reader.begin(ONLY_EPOCH)
        for chunk in self.chunks:
            reader.send(chunk, ONLY_EPOCH)
        if self.ending is not None:
            reader.end(self.ending)
        else:
            self._readers[reader] = None
            reader.watch(lambda: self._left(reader))

    async def _record(self, on_end: Callable[[], None]) -> None:
        channel, ending = self.request.channel, None
        while ending is None:
            chunks, ending = await channel.receive()
            for reader in list(self._readers):
                for chunk in chunks:
                    reader.send(chunk, ONLY_EPOCH)
            self._keep(chunks)
        self.ending = ending
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.end(ending)
        on_end()

    def _keep(self, chunks: list[TokenChunk]) -> None:
        self._size += sum(_size_of(chunk) for chunk in chunks)
        if self._size > self._most:
            self.joinable = False
            self.chunks.clear()
        elif self.joinable:
            self.chunks += chunks

    def _left(self, reader: Channel) -> None:
        if reader not in self._readers:
            return  # it was told the ending
        del self._readers[reader]
        if not self._readers and not self._goes_on:
            self.joinable = False
            gone = RequestCanceledError("all who asked for the answer went away")
            self.request.channel.end(Failed(gone))


def _size_of(chunk: TokenChunk) -> int:
    fields = 0 if chunk.fields is None else len(repr(chunk.fields))
    return len(chunk.text) + fields + CHUNK_OVERHEAD_BYTES
