"""Streams that a client may come back to: `Last-Event-ID` (WHATWG HTML, "Server-sent events").

Each event has an id. A client whose connection broke sends the request's path again with the id of
the last event that it has, within the window, and gets exactly what follows. Meanwhile the answer
goes on being made. What is kept is bounded, of each stream and of all: the oldest events go first,
and a stream that finds no room can't be come back to, which its events show by having no id.
"""

import asyncio
import logging
import re
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice

from orchestrator import metrics
from orchestrator.channel import Channel
from orchestrator.errors import InternalError, RequestCanceledError, StreamGoneError
from orchestrator.events import Ending, Failed, TokenChunk
from orchestrator.gateway.api import StreamWriter

logger = logging.getLogger(__name__)

MAX_STREAMS = 1024
RESUME_MEMORY = 64 << 20
MAX_KEPT_BYTES = 1 << 20
"""Of one stream."""
MAX_UNREAD_BYTES = 64 << 10
"""Of one stream that is being read, while there is no room for more of any."""
_EVENT_ID = re.compile(r"([0-9a-f]{32})-([0-9]{1,15})")


class Room:
    """The room for what is kept of all streams.

    Args:
        most: Bytes.
    """

    __slots__ = ("_most", "taken")

    def __init__(self, most: int) -> None:
        self._most = most
        self.taken = 0
        """Bytes."""

    @property
    def full(self) -> bool:
        """Whether it is used up, so that each stream gives back what it can do without."""
        return self.taken > self._most

    def take(self, more: int) -> None:
        """Takes some of it, or gives some back."""
        self.taken += more
        metrics.RESUMABLE_BYTES.set(self.taken)


class Follower:
    """One connection that reads a stream."""

    __slots__ = ("gone", "ready")

    def __init__(self) -> None:
        self.gone = False
        """Its peer is gone, or came back on another connection."""
        self.ready = asyncio.Event()

    def leave(self) -> None:
        """Ends its reading."""
        self.gone = True
        self.ready.set()


class Replay:
    """One stream: its events with their ids, and who reads them.

    Args:
        channel: Where the answer comes from.
        caller: Whose stream it is.
        window: Seconds for which a client may stay away.
        on_over: Called when nobody may come back any more.
        room: Of all streams.
    """

    def __init__(
        self,
        channel: Channel,
        caller: str,
        window: float,
        on_over: Callable[["Replay"], None],
        room: Room,
    ) -> None:
        self.stream_id = secrets.token_hex(16)
        self.channel = channel
        self.caller = caller
        self.over = False
        """Whether all events are there."""
        self._window = window
        self._on_over = on_over
        self._events: deque[bytes] = deque()
        self._first = 0
        """Number of the oldest event that is kept."""
        self._size_bytes = 0
        self._room = room
        self._read = 0
        """Number of the event that its reader takes next."""
        self._follower: Follower | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def end(self) -> int:
        """The number of the event that comes next."""
        return self._first + len(self._events)

    def add(self, piece: bytes) -> None:
        """Takes a piece of the stream, which is whole events."""
        for event in piece.split(b"\n\n")[:-1]:
            told = b"id: %s-%d\n%s\n\n" % (self.stream_id.encode(), self.end, event)
            self._events.append(told)
            self._size_bytes += len(told)
            self._room.take(len(told))
            while len(self._events) > 1 and self._is_too_much():
                gone = len(self._events.popleft())
                self._size_bytes -= gone
                self._room.take(-gone)
                self._first += 1
        if self._follower is not None:
            self._follower.ready.set()

    def _is_too_much(self) -> bool:
        if self._size_bytes > MAX_KEPT_BYTES:
            return True
        if not self._room.full:
            return False
        unread = self._follower is not None and self._first >= self._read
        return not unread or self._size_bytes > MAX_UNREAD_BYTES

    def drop(self) -> None:
        """Keeps nothing any more."""
        self._room.take(-self._size_bytes)
        self._size_bytes = 0
        self._first = self.end
        self._events.clear()

    def take(self, at: int) -> bytes:
        """All events from that number on.

        Raises:
            StreamGoneError: The oldest of them isn't kept any more.
        """
        if not self._first <= at <= self.end:
            raise StreamGoneError("what follows that event is not kept any more; ask anew")
        # from the end, where a reader that keeps up is, whatever is kept before
        newest = list(islice(reversed(self._events), self.end - at))
        self._read = self.end
        return b"".join(reversed(newest))

    def attach(self) -> Follower:
        """A connection begins to read, in place of the one that did before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._follower is not None:
            self._follower.leave()
        self._follower = Follower()
        return self._follower

    def detach(self, follower: Follower) -> None:
        """A connection reads no more; the window begins if it was the newest."""
        if self._follower is follower:
            self._follower = None
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._window, self._expire)

    def _expire(self) -> None:
        self._on_over(self)
        if self.channel.ending is None:
            self.channel.end(Failed(RequestCanceledError("the client did not come back")))

    async def pump(
        self, writer: StreamWriter, chunks: Sequence[TokenChunk], ending: Ending | None
    ) -> None:
        """Moves the answer from the channel into the events, whoever reads them."""
        try:
            while ending is None:
                self.add(writer.write(chunks))
                chunks, ending = await self.channel.receive()
            last = writer.write(chunks)
            if isinstance(ending, Failed):
                last += writer.fail(ending.error)
            else:
                last += writer.finish(ending)
        except Exception as error:  # outermost frame: whatever broke, who reads is told
            logger.exception("the stream %s can't be written", self.stream_id)
            told = InternalError(f"an internal error; the log has more under {self.stream_id}")
            told.__cause__ = error
            self.channel.end(Failed(told))
            last = writer.fail(told)
        self.over = True
        self.add(last)


class Resumptions:
    """All streams of the gateway that a client may come back to.

    Args:
        window: Seconds for which a client may stay away.
        memory: Bytes of all of them.
    """

    def __init__(self, window: float, memory: int = RESUME_MEMORY) -> None:
        self._window = window
        self._room = Room(memory)
        self._streams: dict[str, Replay] = {}
        self._channels: set[Channel] = set()
        self._pumps: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Resumptions, {len(self._streams)} streams>"

    def keep(
        self,
        channel: Channel,
        caller: str,
        writer: StreamWriter,
        chunks: Sequence[TokenChunk],
        ending: Ending | None,
    ) -> Replay | None:
        """Makes a stream one that its client may come back to; None if there are too many.

        Args:
            channel: Where the rest of the answer comes from.
            caller: Whose stream it is.
            writer: Writes it.
            chunks: What has come already.
            ending: The ending, if it has.
        """
        if len(self._streams) >= MAX_STREAMS or self._room.full:
            return None
        replay = Replay(channel, caller, self._window, self._forget, self._room)
        self._streams[replay.stream_id] = replay
        self._channels.add(channel)
        pump = asyncio.get_running_loop().create_task(replay.pump(writer, chunks, ending))
        self._pumps.add(pump)
        pump.add_done_callback(self._pumps.discard)
        return replay

    def keeps(self, channel: Channel) -> bool:
        """Whether somebody may come back to what comes from that channel."""
        return channel in self._channels

    def find(self, last_event_id: str, caller: str) -> tuple[Replay, int]:
        """Returns the stream and the number of the event that the client lacks.

        Raises:
            StreamGoneError: There is no such stream, not for this caller, or not any more.
        """
        told = _EVENT_ID.fullmatch(last_event_id)
        replay = None if told is None else self._streams.get(told[1])
        if told is None or replay is None or replay.caller != caller:
            raise StreamGoneError("no stream has that event, or not any more; ask anew")
        replay.take(int(told[2]) + 1)
        return replay, int(told[2]) + 1

    def _forget(self, replay: Replay) -> None:
        self._streams.pop(replay.stream_id, None)
        replay.drop()
        self._channels.discard(replay.channel)
