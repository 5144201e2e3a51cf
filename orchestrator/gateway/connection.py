"""One connection to the gateway: uvicorn's, within limits of size, time and number.

A caller who is slow or sends without end costs its own connection and no other's. Of each
connection it is known what is read from it, head, body or nothing; one timer watches over it.
"""

import asyncio
import logging
import math
import re
import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from orchestrator.gateway.failure import error_object, send_json
from orchestrator.gateway.heads import HeadHolder
from orchestrator.gateway.shape import shaped
from orchestrator.gateway.until_close import HTTP_1_0, until_close
from orchestrator.gateway.visit import PROBES

logger = logging.getLogger(__name__)

LINE = "orchestrator.line"
"""ASGI extension: `abort` ends a connection whose peer reads no more, without waiting for it;
`watch` takes what is called once when the peer is gone, in place of what it took before. A task
that waits for ASGI's disconnect would say the same for a twentieth of a short request's cost."""
MAX_HEAD_BYTES = 64 << 10
"""Also the most of a chunk's size line: whatever says nothing until it is complete."""
MAX_HEADERS = 100
UPGRADE = re.compile(rb"(?<=\r\n)upgrade(?=[ \t]*:)", re.IGNORECASE)
"""A client may offer another protocol, as Java's does with each first request, and a server may
ignore that (RFC 9110, 7.8); the parser would end the request there, without its body."""
BODY_PAUSES = 10
"""A whole body may take this many times as long as one pause in it."""
PROBES_ONLY = 64
"""Connections above the limit, for probes alone."""
PROBE_HEAD_TIMEOUT = 1.0
"""Seconds for a head on one of these."""
OTHER_FILES = 256
"""Files that are no connections of callers: those to providers, hosts of models, logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may take; times in seconds."""

    head: float = 10.0
    """For a whole head, the first one counted from the connection's start."""
    body: float = 60.0
    """Between two pieces of a body; `BODY_PAUSES` times as long for all of it."""
    idle: float = 75.0
    """Between two requests; longer than is usual for load balancers, so that they close first."""
    connections: int = 4096
    """At the same time; see `room_for`."""


def room_for(connections: int) -> int:
    """As many of these connections as the system's limit on open files leaves room for."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(files - OTHER_FILES, files // 2))


def protocol_within(limits: ConnectionLimits) -> "type[BoundedProtocol]":
    """The class of a server's connections, which share what is known of their number."""

    class Protocol(BoundedProtocol):
        door = _Door(limits)

    return Protocol


class _Door:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._told = False

    def is_full(self, connections: int) -> bool:
        if connections <= self.limits.connections:
            return False
        if not self._told:
            self._told = True
            logger.warning(
                "all %d connections are taken: only probes are answered on more",
                self.limits.connections,
            )
        return True


class _Reading(Enum):
    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose head is too large: the parser itself has no limit.

    What is complete is counted as it is told. What isn't, one header without an end, is counted as
    it comes, for the parser joins its pieces anew with each read: the cost of 20 MB were minutes.
    """

    door: ClassVar[_Door]

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(HeadHolder(transport))
        self._gone = False
        self._on_gone: Callable[[], None] | None = None
        self._steps = 0
        self._unfinished_bytes = 0
        limits, connections = self.door.limits, len(self.connections)
        self._head_timeout = limits.head
        self._probes_only = self.door.is_full(connections)
        if self._probes_only:
            self._head_timeout = min(limits.head, PROBE_HEAD_TIMEOUT)
            self.app = _for_probes(self.app)
        self._reading = _Reading.HEAD
        self._due = self.loop.time() + self._head_timeout
        self._body_due = math.inf
        self._timer_due = self._due  # uvloop's handle of a time that has come can't tell it
        self._timer: asyncio.Handle | None = self.loop.call_at(self._due, self._on_time)
        if connections > limits.connections + PROBES_ONLY:
            self.transport.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()
        self._gone = True
        self._watch(self._on_gone)

    @override
    def data_received(self, data: bytes) -> None:
        steps, reading = self._steps, self._reading
        if reading is not _Reading.BODY and (b"pgrade" in data or b"PGRADE" in data):
            data = UPGRADE.sub(b"ignored", data)
        super().data_received(data)
        if self._steps != steps:
            self._unfinished_bytes = 0
        else:
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response("the request's head, or a chunk's, is too large")
            if reading is _Reading.NOTHING:  # empty lines, which have ended the idle time
                self._reading = _Reading.HEAD
        if self._reading is _Reading.NOTHING:
            self._due = math.inf  # the timer finds that out by itself
        else:
            self._arm(begins=reading is not self._reading or self._steps != steps)

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._steps += 1
        self._reading = _Reading.HEAD
        self._head_bytes = 0
        self.scope["extensions"] = {LINE: {"abort": self.transport.abort, "watch": self._watch}}

    @override
    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self._steps += 1
        self._reading = _Reading.BODY
        self._body_due = math.inf
        super().on_headers_complete()
        if self._probes_only:
            self.cycle.keep_alive = False

    @override
    def _start_asgi_task(
        self, cycle: RequestResponseCycle, app: Callable[..., Awaitable[None]]
    ) -> None:
        if cycle.scope["http_version"] == HTTP_1_0:
            app = until_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    @override
    def on_body(self, body: bytes) -> None:
        self._steps += 1
        super().on_body(body)

    @override
    def on_message_complete(self) -> None:
        self._steps += 1
        self._reading = _Reading.NOTHING
        super().on_message_complete()

    @override
    def send_400_response(self, msg: str) -> None:
        self._refuse(400, b"Bad Request", "invalid_http", msg)

    def _refuse(self, status: int, reason: bytes, code: str, text: str) -> None:
        if not (self._is_answering() and self.cycle.response_started):
            told = error_object(text, kind="invalid_request_error", code=code)
            path = self.scope.get("path", "") if self._reading is _Reading.BODY else ""
            body = msgspec.json.encode(shaped(path, told, status, None))
            self.transport.write(
                b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n"
                b"content-length: %d\r\nconnection: close\r\n\r\n%s"
                % (status, reason, len(body), body)
            )
        self.transport.close()

    def _is_answering(self) -> bool:
        return bool(self.cycle) and not self.cycle.response_complete

    def _arm(self, *, begins: bool) -> None:
        now = self.loop.time()
        if self._reading is _Reading.BODY:
            if self._body_due == math.inf:
                self._body_due = now + BODY_PAUSES * self.door.limits.body
            self._due = min(now + self.door.limits.body, self._body_due)
        elif begins:
            self._due = now + self._head_timeout
        if self._timer is not None and self._timer_due > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer_due = self._due
            self._timer = self.loop.call_at(self._due, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        if self._due == math.inf or self.transport.is_closing():
            return
        in_head = self._reading is _Reading.HEAD
        # what was sent ahead of an answer waits for us, not for the caller
        if self.flow.read_paused or (in_head and self._is_answering()):
            self._due = self.loop.time() + self._head_timeout
        if self.loop.time() < self._due:
            self._timer_due = self._due
            self._timer = self.loop.call_at(self._due, self._on_time)
        elif not in_head and not self._is_answering():
            self.transport.close()  # it was answered before all of it had come
        else:
            what = "head" if in_head else "body"
            self._refuse(
                408,
                b"Request Timeout",
                "request_timeout",
                f"the request's {what} came too slowly",
            )

    def _watch(self, on_gone: Callable[[], None] | None) -> None:
        self._on_gone = on_gone
        if self._gone and on_gone is not None:
            self._on_gone = None
            on_gone()

    def _count(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > MAX_HEAD_BYTES or len(self.headers) >= MAX_HEADERS:
            raise ValueError("the request's head is too large")  # the parser makes it a 400


def _for_probes(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in PROBES:
            await app(scope, receive, send)
            return
        body = error_object(
            "all connections are taken", kind="server_error", code="too_many_connections"
        )
        headers = ((b"connection", b"close"), (b"retry-after", b"1"))
        told = shaped(scope["path"], body, 503, None)
        await send_json(send, 503, msgspec.json.encode(told), headers)

    return serve
