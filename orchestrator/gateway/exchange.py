"""One request to an API: the hot path, raw ASGI from the request's bytes to the answer's.

    read -> submit -> first chunk or ending -> status -> chunks as they are ready -> the end

No status is sent before the first chunk or the ending, so a failure until then is a real HTTP
error. After it a failure is one error event, and the stream ends without a finish reason. All
chunks that are ready go out in one write; where nothing was for a while, a comment between two
events keeps the connection alive. A caller who goes away ends the request at once; one who stays
but doesn't read loses its connection some time after the request has ended.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import Message, Receive, Scope, Send

from orchestrator.callers.caller import Caller
from orchestrator.callers.door import Door
from orchestrator.channel import Channel
from orchestrator.errors import (
    EngineDrainingError,
    InternalError,
    OrchestratorError,
    RequestCanceledError,
    StreamGoneError,
)
from orchestrator.events import Failed
from orchestrator.gateway.api import Api, Call, Direct, StreamWriter
from orchestrator.gateway.body import BodyRoom, Share, read_body
from orchestrator.gateway.connection import LINE
from orchestrator.gateway.explain import EXPLAIN, Explaining, explain, wants_explanation
from orchestrator.gateway.failure import send_failure, send_json
from orchestrator.gateway.large_body import decode_large, is_large
from orchestrator.gateway.manners import (
    CONTENT_ENCODING,
    ORIGIN,
    check_coding,
    check_origin,
    check_single,
)
from orchestrator.gateway.members import Members, decode
from orchestrator.gateway.repeats.repeats import Asked, Repeats
from orchestrator.gateway.resume import Replay, Resumptions
from orchestrator.gateway.visit import Visit
from orchestrator.request import PriorityRequest
from orchestrator.routing.router import Router
from orchestrator.runners.remote.pace import Pace, at_leisure, at_once

logger = logging.getLogger(__name__)

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the stream back
)
LINGER = 30.0
"""Seconds that a caller has to read what is left once its request has ended."""
KEEP_ALIVE = 15.0
"""Seconds of silence after which a comment goes out."""
SHORT_BODY_BYTES = 16 << 10
"""One that isn't longer is read in one step, whatever it consists of."""
DRAIN_RETRY_AFTER = 1.0
"""Seconds; another instance can serve at once."""
COMMENT = b": keep-alive\n\n"

Line = Mapping[str, Callable[..., Any]]
"""See `connection.LINE`."""


class Exchange:
    """The ASGI callable of one API.

    Args:
        api: What is read and written.
        router: Where requests go.
        max_body: Bytes at most.
        access_log: Whether each request is a line in the log.
        linger: Seconds from a request's end after which a caller who doesn't read is cut off.
        keep_alive: Seconds of silence in a stream after which a comment goes out.
        resumptions: The streams that a client may come back to; None if there are none.
        door: Lets callers in; None lets everybody in.
        repeats: What is kept for requests that come again; None if nothing is.
        reading: Held while a large body is decoded; of the whole gateway, as is the next.
        room: For all large bodies.
        explained: Whether responses tell their attempts; None leaves it to each caller.
        local: Whether it is for this machine's users alone, of whom none is asked for a key.
    """

    def __init__(
        self,
        api: Api,
        router: Router,
        *,
        max_body: int,
        access_log: bool,
        linger: float = LINGER,
        keep_alive: float = KEEP_ALIVE,
        resumptions: Resumptions | None = None,
        door: Door | None = None,
        repeats: Repeats | None = None,
        reading: asyncio.Lock | None = None,
        room: BodyRoom | None = None,
        explained: bool | None = None,
        local: bool = False,
    ) -> None:
        self._api = api
        self._reading = reading or asyncio.Lock()
        self._room = room or BodyRoom()
        self._explained = explained
        self._local = local
        self._repeats = repeats
        self._door = door
        self._router = router
        self._linger = linger
        self._keep_alive = keep_alive
        self._resumptions = resumptions
        self._max_body = max_body
        self._access_log = access_log
        self.draining = False
        """Nothing new is taken."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        visit = Visit.of(scope)
        visit.explained = self._explained
        try:
            await self._serve(visit, scope, receive, send)
        except OrchestratorError as error:
            visit.status = error.status_code
            await self._refuse(visit, send, error)
        except Exception as error:  # outermost frame: whatever broke, the caller is told
            logger.exception("request %s broke the gateway", visit.request_id)
            await self._tell_of_bug(visit, send, error)
        finally:
            if self._access_log:
                visit.log()

    async def _serve(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        if self.draining:
            raise EngineDrainingError(
                "the service is stopping; send the request to another instance",
                retry_after=DRAIN_RETRY_AFTER,
            )
        self._check_headers(visit)
        caller = None if self._door is None else await self._door.enter(visit.headers)
        length, share = visit.header("content-length"), Share(self._room)
        try:
            body = await read_body(receive, self._max_body, length, share)
            await self._answer(visit, caller, body, scope, receive, send)
        finally:
            share.give_back()

    def _check_headers(self, visit: Visit) -> None:
        headers = visit.headers
        if visit.repeated:
            check_single(visit.repeated)
        if CONTENT_ENCODING in headers:
            check_coding(headers[CONTENT_ENCODING])
        if ORIGIN in headers and self._local:
            check_origin(headers[ORIGIN])

    async def _answer(
        self,
        visit: Visit,
        caller: Caller | None,
        body: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        last_event_id = visit.header("last-event-id")
        if self._resumptions is not None and last_event_id is not None:
            name = "" if caller is None else caller.name
            replay, at = self._resumptions.find(last_event_id, name)
            visit.status = 200
            await send(_head(visit))
            await self._come_back(replay, at, scope["extensions"][LINE], send)
            return
        members, call = await self._read(body, visit)
        if isinstance(call, Direct):
            if caller is not None:
                caller.check(call.model)
            answer = await call.answer(self._router)
            visit.status = 200
            await send_json(send, 200, answer, visit.response_headers)
            return
        visit.request = call.request
        call.request.size_bytes = len(body)
        repeats = self._repeats
        if repeats is not None and not repeats.widen(visit, call):
            repeats = None
        channel = call.request.channel
        loop = asyncio.get_running_loop()
        if caller is not None:
            caller.admit(call.request, loop.time())
        line = scope.get("extensions", {}).get(LINE)
        watch: asyncio.Task[None] | None = None
        lingering: list[asyncio.TimerHandle] = []
        try:
            if repeats is None:
                self._router.submit(call.request)
            else:
                await repeats.send(visit, call, Asked(body, members))
            if line is None:  # a server of another kind
                watch = loop.create_task(_end_when_gone(receive, channel))
            else:
                line["watch"](lambda: _end(channel))
                channel.watch(
                    lambda: lingering.append(loop.call_later(self._linger, line["abort"]))
                )
            if call.stream is None:
                await _whole(call, visit, send)
            else:
                await self._stream(call.request, call.stream, visit, send, line)
        finally:
            if watch is not None:
                watch.cancel()
            if line is not None:
                line["watch"](None)
            # the server may cancel this task, and writing may fail: nobody reads any more
            if not self._goes_on(channel):
                _end(channel)
            for timer in lingering:
                timer.cancel()

    async def _read(self, body: bytes, visit: Visit) -> tuple[Members, Call | Direct]:
        read, kind = self._api.read, self._api.body
        if len(body) <= SHORT_BODY_BYTES:
            members = decode(body, kind)
            return members, at_once(read(members, visit))
        pace = Pace()
        if not is_large(body):
            members = decode(body, kind)
            return members, await at_leisure(read(members, visit), pace)
        async with self._reading:
            members = await decode_large(body, kind)
            return members, await at_leisure(read(members, visit), pace)

    async def _stream(
        self,
        request: PriorityRequest,
        make_writer: Callable[[], StreamWriter],
        visit: Visit,
        send: Send,
        line: Line | None,
    ) -> None:
        channel = request.channel
        chunks, ending = await channel.receive()
        while not chunks and ending is None:  # taken back before this task had its turn
            chunks, ending = await channel.receive()
        if not chunks and isinstance(ending, Failed):
            raise ending.error
        visit.status = 200
        writer = make_writer()
        if (visit.explained or EXPLAIN in visit.headers) and wants_explanation(visit):
            writer = Explaining(writer, request)
            explain(visit)
        await send(_head(visit))
        if self._resumptions is not None and line is not None:
            replay = self._resumptions.keep(channel, request.caller, writer, chunks, ending)
            if replay is not None:
                await self._follow(replay, 0, line, send)
                return
        silence = Silence(channel, self._keep_alive)
        try:
            while ending is None:
                await send(_piece(writer.write(chunks) or COMMENT, more=True))
                silence.broken()
                chunks, ending = await channel.receive()
        finally:
            silence.over()
        last = writer.write(chunks)
        if isinstance(ending, Failed):
            visit.status = ending.error.status_code
            last += writer.fail(ending.error)
        else:
            last += writer.finish(ending)
        await send(_piece(last, more=False))

    async def _come_back(self, replay: Replay, at: int, line: Line, send: Send) -> None:
        """Sends the rest of a stream, within the same bound of patience as its begin."""
        loop, lingering = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
        replay.channel.watch(lambda: lingering.append(loop.call_later(self._linger, line["abort"])))
        try:
            await self._follow(replay, at, line, send)
        finally:
            for timer in lingering:
                timer.cancel()

    def _goes_on(self, channel: Channel) -> bool:
        return self._resumptions is not None and self._resumptions.keeps(channel)

    async def _follow(self, replay: Replay, at: int, line: Line, send: Send) -> None:
        """Sends what a stream has from one of its events on, until it ends or the peer is gone."""
        follower = replay.attach()
        line["watch"](follower.leave)
        try:
            while not follower.gone:
                piece = replay.take(at)
                at, over = replay.end, replay.over
                if over:
                    await send(_piece(piece, more=False))
                    return
                if piece:
                    await send(_piece(piece, more=True))
                if at < replay.end or replay.over or follower.gone:
                    continue
                follower.ready.clear()
                try:
                    async with asyncio.timeout(self._keep_alive):
                        await follower.ready.wait()
                except TimeoutError:
                    await send(_piece(COMMENT, more=True))
            line["abort"]()  # it came back on another connection
        except StreamGoneError:
            line["abort"]()  # it reads slower than is kept: it may come back, or be told so then
        finally:
            line["watch"](None)
            replay.detach(follower)

    async def _refuse(self, visit: Visit, send: Send, error: OrchestratorError) -> None:
        body = self._api.failure(error, visit.request_id)
        explain(visit)
        await send_failure(send, error, visit.response_headers, body)

    async def _tell_of_bug(self, visit: Visit, send: Send, cause: Exception) -> None:
        error = InternalError(f"an internal error; the log has more under {visit.request_id}")
        error.__cause__ = cause
        if visit.status:
            event = self._api.failure_event(error, visit.request_id)
            await send(_piece(event, more=False))
        else:
            await self._refuse(visit, send, error)
        visit.status = error.status_code


class Silence:
    """Wakes the reader of a stream in which nothing was sent for a while.

    One timer a stream, which isn't moved with each piece: when it fires it looks how long ago the
    last one went out.

    Args:
        channel: Whose reader is woken.
        limit: Seconds.
    """

    __slots__ = ("_channel", "_last_at", "_limit", "_loop", "_timer")

    def __init__(self, channel: Channel, limit: float) -> None:
        self._channel = channel
        self._limit = limit
        self._loop = asyncio.get_running_loop()
        self._last_at = self._loop.time()
        self._timer = self._loop.call_at(self._last_at + limit, self._look)

    def broken(self) -> None:
        """Something was sent."""
        self._last_at = self._loop.time()

    def over(self) -> None:
        """The stream ends."""
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        due = self._last_at + self._limit
        if now >= due:
            self._channel.nudge()
            due = now + self._limit
        self._timer = self._loop.call_at(due, self._look)


async def _whole(call: Call, visit: Visit, send: Send) -> None:
    chunks, ending = await call.request.channel.receive()
    assert ending is not None  # noqa: S101 - a held channel is read at its end
    if isinstance(ending, Failed):
        raise ending.error
    body = call.whole(chunks, ending)
    visit.status = 200
    explain(visit)
    await send_json(send, 200, body, visit.response_headers)


async def _end_when_gone(receive: Receive, channel: Channel) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _end(channel)


def _end(channel: Channel) -> None:
    if channel.ending is None:
        channel.end(Failed(RequestCanceledError("the client went away")))


def _head(visit: Visit) -> Message:
    headers = [*STREAM_HEADERS, *visit.response_headers]
    return {"type": "http.response.start", "status": 200, "headers": headers}


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}
