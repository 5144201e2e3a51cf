"""`POST /v1/chat/completions`: the hot path, raw ASGI from the request's bytes to the answer's.

    read -> submit -> first chunk or ending -> status -> chunks as they are ready -> the end

No status is sent before the first chunk or the ending, so a failure until then is a real HTTP
error. After it a failure is one error event, and the stream ends without a finish reason. All
chunks that are ready go out in one write. A caller who goes away ends the request at once; one who
stays but doesn't read loses its connection some time after the request has ended.
"""

import asyncio
import logging
import time

from starlette.types import Message, Receive, Scope, Send

from orchestrator.channel import Channel
from orchestrator.errors import (
    EngineDrainingError,
    InternalError,
    OrchestratorError,
    RequestCanceledError,
)
from orchestrator.events import Failed
from orchestrator.gateway.answer import whole_answer
from orchestrator.gateway.body import read_body
from orchestrator.gateway.chat_request import TIMEOUT_HEADER, ChatCall, read_call
from orchestrator.gateway.chunks import ChunkWriter
from orchestrator.gateway.connection import LINE
from orchestrator.gateway.failure import failure_event, send_failure, send_json
from orchestrator.gateway.visit import Visit
from orchestrator.routing.router import Router

logger = logging.getLogger(__name__)

STREAM_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold the stream back
)
LINGER = 30.0
"""Seconds that a caller has to read what is left once its request has ended."""
DRAIN_RETRY_AFTER = 1.0
"""Seconds; another instance can serve at once."""


class ChatCompletions:
    """The ASGI callable.

    Args:
        router: Where requests go.
        max_body: Bytes at most.
        access_log: Whether each request is a line in the log.
        linger: Seconds from a request's end after which a caller who doesn't read is cut off.
    """

    def __init__(
        self, router: Router, *, max_body: int, access_log: bool, linger: float = LINGER
    ) -> None:
        self._router = router
        self._linger = linger
        self._max_body = max_body
        self._access_log = access_log
        self.draining = False
        """Nothing new is taken."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        visit = Visit.of(scope)
        try:
            await self._serve(visit, scope, receive, send)
        except OrchestratorError as error:
            visit.status = error.status_code
            await send_failure(send, error, visit.response_headers)
        except Exception as error:  # outermost frame: whatever broke, the caller is told
            logger.exception("request %s broke the gateway", visit.request_id)
            await _tell_of_bug(visit, send, error)
        finally:
            if self._access_log:
                visit.log()

    async def _serve(self, visit: Visit, scope: Scope, receive: Receive, send: Send) -> None:
        if self.draining:
            raise EngineDrainingError(
                "the service is stopping; send the request to another instance",
                retry_after=DRAIN_RETRY_AFTER,
            )
        body = await read_body(receive, self._max_body, visit.header("content-length"))
        call = read_call(body, visit.request_id, visit.header(TIMEOUT_HEADER))
        visit.request = call.request
        channel = call.request.channel
        self._router.submit(call.request)
        loop = asyncio.get_running_loop()
        line = scope.get("extensions", {}).get(LINE)
        watch: asyncio.Task[None] | None = None
        lingering: list[asyncio.TimerHandle] = []
        if line is None:  # a server of another kind
            watch = loop.create_task(_end_when_gone(receive, channel))
        else:
            line["watch"](lambda: _end(channel))
            channel.watch(lambda: lingering.append(loop.call_later(self._linger, line["abort"])))
        try:
            if call.stream:
                await _stream(call, visit, send)
            else:
                await _whole(call, visit, send)
        finally:
            if watch is not None:
                watch.cancel()
            if line is not None:
                line["watch"](None)
            # the server may cancel this task, and writing may fail: nobody reads any more
            _end(channel)
            for timer in lingering:
                timer.cancel()


async def _stream(call: ChatCall, visit: Visit, send: Send) -> None:
    channel = call.request.channel
    chunks, ending = await channel.receive()
    if not chunks and isinstance(ending, Failed):
        raise ending.error
    visit.status = 200
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [*STREAM_HEADERS, *visit.response_headers],
        }
    )
    writer = ChunkWriter(
        completion_id=f"chatcmpl-{visit.request_id}",
        model=call.request.model,
        created=_created(),
        include_usage=call.include_usage,
    )
    while ending is None:
        await send(_piece(writer.write(chunks), more=True))
        chunks, ending = await channel.receive()
    last = writer.write(chunks)
    if isinstance(ending, Failed):
        visit.status = ending.error.status_code
        last += failure_event(ending.error)
    else:
        last += writer.finish(ending)
    await send(_piece(last, more=False))


async def _whole(call: ChatCall, visit: Visit, send: Send) -> None:
    chunks, ending = await call.request.channel.receive()
    assert ending is not None  # noqa: S101 - a held channel is read at its end
    if isinstance(ending, Failed):
        raise ending.error
    body = whole_answer(
        chunks,
        ending,
        completion_id=f"chatcmpl-{visit.request_id}",
        model=call.request.model,
        created=_created(),
    )
    visit.status = 200
    await send_json(send, 200, body, visit.response_headers)


async def _end_when_gone(receive: Receive, channel: Channel) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    _end(channel)


def _end(channel: Channel) -> None:
    if channel.ending is None:
        channel.end(Failed(RequestCanceledError("the client went away")))


async def _tell_of_bug(visit: Visit, send: Send, cause: Exception) -> None:
    error = InternalError(f"an internal error; the log has more under {visit.request_id}")
    error.__cause__ = cause
    if visit.status:
        await send(_piece(failure_event(error), more=False))
    else:
        await send_failure(send, error, visit.response_headers)
    visit.status = error.status_code


def _piece(body: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": more}


def _created() -> int:
    return int(time.time())  # noqa: TID251 - OpenAI's `created` is wall time; nothing is measured by it
