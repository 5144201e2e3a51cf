"""The callers of a simulated run, each with a channel that tells the journal what comes through it.

The channel is the real one; the journal is told by a subclass, for nothing happens to a request
that its channel doesn't see. A caller reads, dawdles, or goes away, as its plan says.
"""

import asyncio
from collections.abc import Callable, Mapping

from orchestrator.channel import CHUNK_OVERHEAD_BYTES, Channel
from orchestrator.chaos.journal import NOTHING, Journal, Kind, Scalar
from orchestrator.chaos.simulation.plan import Caller
from orchestrator.errors import RequestCanceledError, describe
from orchestrator.events import Ending, Failed, Finished, TokenChunk
from orchestrator.request import Message, Priority, PriorityRequest, SamplingParams

MESSAGES = (Message("user", "count"),)
SLOW_READ_SECONDS = 0.3
READS = {"eager": "at once", "slow": "slowly", "never": "never"}


class JournalChannel(Channel):
    """A channel that writes a journal."""

    __slots__ = ("_by", "_journal", "_noted", "_request", "_told")

    def __init__(self, journal: Journal, *, held: bool, capacity_bytes: int | None) -> None:
        super().__init__(held=held, capacity_bytes=capacity_bytes)
        self._journal = journal
        self._request: PriorityRequest | None = None
        self._by: int | None = None
        self._noted = False
        self._told = False

    def bind(self, request: PriorityRequest) -> None:
        """Says whose channel it is; what ends it is noted before anything else comes of it."""
        self._request = request
        self.watch(self._note_ending)

    def send(self, chunk: TokenChunk, epoch: int) -> bool:
        """As the channel does; a chunk is a token or is late."""
        late = self.late_events
        taken = super().send(chunk, epoch)
        if taken:
            self._journal.record(Kind.TOKEN, request=self._name, epoch=epoch)
        elif self.late_events > late:
            self._journal.record(Kind.LATE, request=self._name, epoch=epoch)
        return taken

    def end(self, ending: Ending, epoch: int | None = None) -> bool:
        """As the channel does; an ending counts or is late."""
        self._by, self._noted = epoch, False
        counts = super().end(ending, epoch)
        if not counts:
            self._journal.record(Kind.LATE, request=self._name, epoch=epoch)
        elif not self._noted:  # another ending counted before: the checks must see both
            self._note_ending()
        return counts

    async def receive(self) -> tuple[list[TokenChunk], Ending | None]:
        """As the channel does; what the reader is given is noted."""
        chunks, ending = await super().receive()
        for chunk in chunks:
            self._journal.record(Kind.READ, request=self._name, index=int(chunk.text))
        if ending is not None and not self._told:
            self._told = True
            outcome = outcome_of(ending)
            self._journal.record(Kind.END_READ, request=self._name, outcome=outcome)
        return chunks, ending

    @property
    def _name(self) -> str:
        return self._request.request_id if self._request is not None else ""

    def _note_ending(self) -> None:
        self._noted = True
        ending, request = self._ending, self._request
        if ending is None or request is None:
            return
        record = self._journal.record
        outcome = outcome_of(ending)
        if isinstance(ending, Finished):
            record(Kind.TERMINAL, request=self._name, epoch=self._by, outcome=outcome)
            return
        error = ending.error
        record(
            Kind.TERMINAL,
            request=self._name,
            epoch=self._by,
            outcome=outcome,
            code=error.code,
            scope=error.scope,
            cause=describe(error.root_cause),
            attempts=len(request.attempts),
        )


def outcome_of(ending: Ending) -> str:
    """`done`, `canceled` or `error`."""
    if isinstance(ending, Finished):
        return "done"
    return "canceled" if isinstance(ending.error, RequestCanceledError) else "error"


def make_request(caller: Caller, journal: Journal) -> PriorityRequest:
    """The request of a caller."""
    bytes_per_token = CHUNK_OVERHEAD_BYTES + 1
    capacity = None if caller.buffer_tokens is None else caller.buffer_tokens * bytes_per_token
    channel = JournalChannel(journal, held=caller.held, capacity_bytes=capacity)
    request = PriorityRequest(
        request_id=caller.name,
        model=caller.route,
        messages=MESSAGES,
        sampling=SamplingParams(max_tokens=caller.tokens),
        channel=channel,
        priority=Priority(caller.priority),
        caller=caller.owner,
        timeout=caller.timeout,
        idempotent=caller.idempotent,
    )
    channel.bind(request)
    return request


def cancel(request: PriorityRequest, journal: Journal) -> None:
    """The caller goes away; nothing if the request has ended."""
    if request.channel.ending is None:
        journal.record(Kind.CANCEL, request=request.request_id)
        request.channel.end(Failed(RequestCanceledError("the caller went away")))


async def ask(
    caller: Caller,
    journal: Journal,
    submit: Callable[[PriorityRequest], None],
    *,
    must_succeed: bool = False,
    route: Mapping[str, Scalar] = NOTHING,
) -> Ending:
    """Sends a caller's request at its time and reads it to its end, or to where it goes away."""
    loop = asyncio.get_running_loop()
    if caller.at > loop.time():
        await asyncio.sleep(caller.at - loop.time())
    request = make_request(caller, journal)
    journal.record(
        Kind.SUBMIT,
        request=caller.name,
        tokens=caller.tokens,
        must_succeed=must_succeed,
        reads=READS[caller.pace],
        more=route,
    )
    submit(request)
    timer = None
    if caller.cancel_after == 0:
        timer = loop.call_later(caller.cancel_delay, cancel, request, journal)
    try:
        return await _read(caller, request, journal)
    finally:
        if timer is not None:
            timer.cancel()


async def _read(caller: Caller, request: PriorityRequest, journal: Journal) -> Ending:
    channel, read = request.channel, 0
    if caller.pace == "never":
        ended = asyncio.Event()
        channel.watch(ended.set)
        await ended.wait()
    while True:
        chunks, ending = await channel.receive()
        read += len(chunks)
        if caller.cancel_after and read >= caller.cancel_after:
            cancel(request, journal)
        if ending is not None:
            return ending
        if caller.pace == "slow":
            await asyncio.sleep(SLOW_READ_SECONDS)
