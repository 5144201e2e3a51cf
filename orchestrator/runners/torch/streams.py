"""One stream of a model host as its reader sees it: what came, then why nothing more comes."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from orchestrator.errors import OrchestratorError
from orchestrator.runners.torch.wire import Completed, Counted, Produced, Refused, StreamEvent

LAST_EVENTS = (Completed, Counted, Refused)
"""Those that end a stream in the host."""


class HostStream:
    """The events of one request's streams; leaving its `with` block frees their place in the host.

    Args:
        forget: Tells the host that nobody reads a stream any more, if it hasn't ended.
    """

    __slots__ = ("_error", "_events", "_forget", "_reader", "numbers", "writing")

    def __init__(self, forget: Callable[[int], None]) -> None:
        self.numbers: list[int] = []
        """Of its streams, one for each answer."""
        self._forget = forget
        self._events: list[StreamEvent] = []
        self._error: OrchestratorError | None = None
        self._reader: asyncio.Future[None] | None = None
        self.writing = False
        """Whether the prompt was read and tokens come."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number in self.numbers:
            self._forget(number)

    def push(self, event: StreamEvent) -> None:
        """Takes what the host said."""
        self._events.append(event)
        self.writing = self.writing or isinstance(event, Produced)
        self.wake()

    def fail(self, error: OrchestratorError) -> None:
        """Nothing more will come, for this reason; what came before is still read first."""
        self._error = error
        self.wake()

    async def receive(self) -> list[StreamEvent]:
        """Waits until something came and returns all of it; one reader at a time.

        Nothing, if only the host's first step was done: whoever waits may ask less of the next.

        Raises:
            WorkerCrashedError: The host died, and all that it said has been read.
        """
        if not self._events and self._error is None:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        events, self._events = self._events, []
        if not events and self._error is not None:
            raise self._error
        return events

    def wake(self) -> None:
        """Lets the reader look around, whether anything came or not."""
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
