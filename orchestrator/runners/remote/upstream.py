"""One HTTP exchange with a provider: from the lease's first step to the last byte.

What httpx raises is translated here and nowhere else, into a text made of provider, phase and
tokens seen, for httpx's own text is often empty. A broken connection says nothing about the
answer; whether that is complete is decided by whoever reads it.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import cast

import httpx

from orchestrator.errors import (
    OrchestratorError,
    UpstreamConnectError,
    UpstreamProtocolError,
    UpstreamTruncatedError,
    describe,
)
from orchestrator.runners.classify import ANY_PROVIDER, Refusals, classify, shorten
from orchestrator.runners.lease import Lease, Step
from orchestrator.runners.remote.coding import reads_of
from orchestrator.runners.remote.connection import Incoming
from orchestrator.runners.remote.transport import CONNECTING, SENDING

MAX_BODY_BYTES = 16 << 20
MAX_REFUSAL_BYTES = 1 << 16
REFUSAL_SECONDS = 2.0
NEVER_SENT = (
    httpx.ConnectError,
    httpx.ConnectTimeout,
    httpx.PoolTimeout,
    httpx.ProxyError,
    httpx.UnsupportedProtocol,
)
MAX_SENDS = 3
"""After a restart of the provider more than one pooled connection can be dead."""


class Exchange:
    """Follows one sending of a request, as the transport's `trace` extension.

    Arms the lease: `connect` until a connection stands, `first_token` from then on, so that a
    provider that takes the request and stays silent runs into the limit of the first token.
    """

    __slots__ = ("_connected_anew", "_lease", "sent")

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self._connected_anew = False
        self.sent = False
        """Whether a connection stood, so that the provider may have seen something."""
        lease.arm(Step.CONNECT)

    async def trace(self, event: str, _info: Mapping[str, object]) -> None:
        """Hears from the transport what happens."""
        if event == CONNECTING:
            self._connected_anew = True
        elif event == SENDING:
            self.answering()

    def answering(self) -> None:
        """The request is on its way: now the provider's time runs."""
        if not self.sent:
            self.sent = True
            self._lease.arm(Step.FIRST_TOKEN)

    @property
    def stale(self) -> bool:
        """Whether the request went out on a pooled connection that may have been dead before."""
        return self.sent and not self._connected_anew


async def send(
    transport: httpx.AsyncBaseTransport,
    request: httpx.Request,
    lease: Lease,
    *,
    provider: str,
    again: bool,
) -> httpx.Response:
    """Sends a request and returns the answer as soon as its headers are there.

    Args:
        transport: Whom to send it through.
        request: With its whole body in memory.
        lease: Armed for the step that runs.
        provider: The name for people.
        again: A pooled connection that broke before the first byte of an answer may be replaced
            and the request sent once more: the provider had closed it while it was idle.

    Raises:
        UpstreamConnectError: There is no connection; nothing was sent.
        UpstreamTruncatedError: The connection broke after the request was sent.
    """
    sends = 0
    while True:
        exchange = Exchange(lease)
        request.extensions["trace"] = exchange.trace
        try:
            response = await transport.handle_async_request(request)
        except httpx.RequestError as error:
            sends += 1
            if again and exchange.stale and sends < MAX_SENDS:
                continue
            why = describe(error)
            if isinstance(error, NEVER_SENT):
                raise UpstreamConnectError(f"{provider} can't be reached ({why})") from error
            raise UpstreamTruncatedError(
                f"{provider} broke the connection before it answered ({why})"
            ) from error
        exchange.answering()
        return response


class Body:
    """Reads an answer's bytes, decompressed.

    Args:
        response: Closed with the body.
        provider: The name for people.
    """

    __slots__ = ("_fault", "_head", "_peeked", "_provider", "_reads", "_response")

    def __init__(self, response: httpx.Response, provider: str) -> None:
        self._response = response
        self._provider = provider
        self._reads = reads_of(response)
        self._fault: httpx.RequestError | None = None
        self._head = b""
        self._peeked: bytes | None = None

    async def aclose(self) -> None:
        """Gives the connection back if all was read, else cuts it."""
        if isinstance(self._reads, AsyncGenerator):
            await cast("AsyncGenerator[bytes]", self._reads).aclose()
        await self._response.aclose()

    async def read(self, deadline: float | None = None) -> bytes | None:
        """Returns what has come, or None at the end: of the body, the connection or the time.

        Args:
            deadline: Loop time, for those who can do without what is still to come.
        """
        if self._peeked is not None:
            peeked, self._peeked = self._peeked, None
            return peeked
        try:
            if deadline is None or (isinstance(self._reads, Incoming) and self._reads.ready):
                return await anext(self._reads, None)
            return await self._read_until(deadline)
        except httpx.RequestError as error:
            self._fault = error
            return None

    async def _read_until(self, deadline: float) -> bytes | None:
        try:
            async with asyncio.timeout_at(deadline):
                return await anext(self._reads, None)
        except TimeoutError:
            return None

    def check_end(self, tokens: int) -> None:
        """Tells a body that broke from one that ended.

        Args:
            tokens: How many the caller has seen, for the text of the error.

        Raises:
            UpstreamTruncatedError: The connection broke.
            UpstreamProtocolError: The body can't be decompressed.
        """
        if self._fault is None:
            return
        why = describe(self._fault)
        if isinstance(self._fault, httpx.DecodingError):
            raise UpstreamProtocolError(
                f"{self._provider} sent a body that can't be decompressed ({why})"
            ) from self._fault
        raise UpstreamTruncatedError(
            f"{self._provider} broke the connection after {tokens} tokens ({why})"
        ) from self._fault

    async def first_byte(self) -> bytes:
        """Returns the first byte that isn't blank, without taking it; empty if there is none."""
        blank = b""
        while (read := await self.read()) is not None:
            self._head = read.lstrip()
            if self._head:
                self._peeked = blank + read
                break
            blank += read[-1:]  # a blank body may be long; what follows needs one line end at most
        return self._head[:1]

    def check_kind(self) -> None:
        """Tells a body in which no event was found from an event stream that was cut.

        Raises:
            UpstreamProtocolError: The body is neither empty nor declared an event stream.
        """
        kind = self._response.headers.get("content-type", "no type")
        if self._head and "event-stream" not in kind:
            text = shorten(self._head[:1024].decode(errors="replace"))
            raise UpstreamProtocolError(
                f"{self._provider} answered with {kind} and not with an event stream: {text}"
            )

    async def rest(self) -> bytes:
        """Returns all that is still to come.

        Raises:
            UpstreamProtocolError: It is more than 16 MiB, or can't be decompressed.
            UpstreamTruncatedError: The connection broke.
        """
        body = bytearray()
        while (read := await self.read()) is not None:
            body += read
            if len(body) > MAX_BODY_BYTES:
                raise UpstreamProtocolError(
                    f"{self._provider} sent an answer larger than {MAX_BODY_BYTES} bytes"
                )
        self.check_end(tokens=0)
        return cast("bytes", body)  # not copied: it is read like bytes, and nobody writes to it

    async def refusal(self, secret: str | None, own: Refusals = ANY_PROVIDER) -> OrchestratorError:
        """Returns what an answer other than a success means, whatever becomes of its body.

        Args:
            secret: The key that was sent, masked wherever the provider repeats it.
            own: The provider's own table.
        """
        deadline = asyncio.get_running_loop().time() + REFUSAL_SECONDS
        body = bytearray()
        while len(body) < MAX_REFUSAL_BYTES:
            read = await self.read(deadline)
            if read is None:
                break
            body += read
        response = self._response
        return classify(
            response.status_code,
            response.headers,
            bytes(body),
            self._provider,
            secret=secret,
            own=own,
        )
