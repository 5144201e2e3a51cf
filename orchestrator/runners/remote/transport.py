"""The wire to a provider: httpx's transport interface over aiohttp's connections.

httpx's own pool costs more with every connection it holds (encode/httpx#3215), aiohttp's costs the
same at 1 and at 512. The package httpx-aiohttp joins the two as well, but calls every lost
connection a connect timeout, stops at 100 connections even when told not to, and neither says
whether a connection was used before nor hands out what came before a reset. So this file does.

There are no timeouts here: the lease of an attempt measures each of its steps.
"""

import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import aiohttp
import httpx

from orchestrator.errors import describe

IDLE_CONNECTION_SECONDS = 15.0
MAX_HEADER_BYTES = 1 << 16

# httpcore's names, so that a runner's `trace` extension hears the same from both transports
CONNECTING = "connection.connect_tcp.started"
SENDING = "http11.send_request_headers.started"

Trace = Callable[[str, dict[str, object]], Awaitable[None]]
"""httpx's `trace` extension: told what happens to a request, by name."""

UNREAD = "_buffer"
"""aiohttp's StreamReader refuses to hand out what it holds once its connection broke."""


class AiohttpTransport(httpx.AsyncBaseTransport):
    """One pool of connections without an upper bound: the slots are the bound.

    Args:
        ssl_context: Whom to trust for `https`; None where only `http` is spoken.
    """

    def __init__(self, ssl_context: ssl.SSLContext | None = None) -> None:
        self._ssl_context = ssl_context
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Sends a request whose body is in memory and returns when the answer's headers are there.

        Raises:
            httpx.RequestError: No connection, or it broke, or what came isn't HTTP.
        """
        if self._session is None:
            self._session = self._new_session()
        try:
            response = await self._session.request(
                request.method,
                str(request.url),
                headers=[(name.decode(), value.decode()) for name, value in request.headers.raw],
                data=request.content or None,
                allow_redirects=False,
                trace_request_ctx=request.extensions.get("trace"),
            )
        except (aiohttp.ClientError, OSError) as error:
            translated = translate(error)
            raise translated from error
        return httpx.Response(
            response.status,
            headers=list(response.raw_headers),
            stream=_Body(response),
            request=request,
        )

    async def aclose(self) -> None:
        """Closes every connection."""
        if self._session is not None:
            await self._session.close()

    def _new_session(self) -> aiohttp.ClientSession:
        """Made on the first request, for it belongs to the loop that runs then."""
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_create_start.append(_tell_connecting)
        tracing.on_connection_create_end.append(_tell_sending)
        tracing.on_connection_reuseconn.append(_tell_sending)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                ssl=self._ssl_context or True,
                keepalive_timeout=IDLE_CONNECTION_SECONDS,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),  # requests of different callers share nothing
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            auto_decompress=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding"),
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            trace_configs=[tracing],
        )


class _Body(httpx.AsyncByteStream):
    """The answer's bytes, each read as large as what has come since the last."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        try:
            read = await self._response.content.readany()
        except (aiohttp.ClientError, OSError) as error:
            # What came before the break is part of the answer; the next read raises again.
            read = self._take_unread()
            if not read:
                translated = translate(error)
                raise translated from error
        if not read:
            raise StopAsyncIteration
        return read

    async def aclose(self) -> None:
        """Gives the connection back if all was read, else cuts it."""
        self._response.close()

    def _take_unread(self) -> bytes:
        unread = cast("deque[bytes]", getattr(self._response.content, UNREAD, deque[bytes]()))
        read = b"".join(unread)
        unread.clear()
        return read


def translate(error: aiohttp.ClientError | OSError) -> httpx.RequestError:
    """Returns httpx's word for what aiohttp or the system says."""
    text = describe(error)
    match error:
        case aiohttp.ClientConnectorError():
            return httpx.ConnectError(text)
        case aiohttp.ConnectionTimeoutError():
            return httpx.ConnectTimeout(text)
        case aiohttp.InvalidURL():
            return httpx.UnsupportedProtocol(text)
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return httpx.RemoteProtocolError(text)
        case aiohttp.ClientConnectionError() | OSError():
            return httpx.ReadError(text)
        case _:
            return httpx.RemoteProtocolError(text)


async def _tell_connecting(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: object
) -> None:
    await _tell(context, CONNECTING)


async def _tell_sending(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: object
) -> None:
    await _tell(context, SENDING)


async def _tell(context: SimpleNamespace, event: str) -> None:
    trace = cast("Trace | None", context.trace_request_ctx)
    if trace is not None:
        await trace(event, {})
