import asyncio
import gzip

import aiohttp
import httpx
import pytest

from orchestrator.runners.remote.transport import CONNECTING, SENDING, AiohttpTransport, translate
from tests.fakes.sse_server import (
    Close,
    Reset,
    Script,
    Send,
    SseServer,
    Stall,
    Wait,
    answer,
    delta,
    framed,
    head,
)
from tests.runners.remote.asking import asking

pytestmark = pytest.mark.live


def a_post(server: SseServer, **extensions: object) -> httpx.Request:
    return httpx.Request("POST", server.url, content=b"{}", extensions=extensions)


async def test_what_came_before_a_reset_is_read_though_the_reader_comes_late():
    until = asyncio.Event()
    script = [Send(head() + framed(b"first")), Wait(until), Send(framed(b"second")), Reset()]
    transport = AiohttpTransport()
    async with SseServer(script, answer(delta("x"))) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))
        assert isinstance(response.stream, httpx.AsyncByteStream)
        reads = aiter(response.stream)
        assert await anext(reads) == b"first"

        until.set()
        await server.ended()
        # Nobody reads meanwhile: after a whole other exchange the reset has been noticed, too.
        other = await transport.handle_async_request(a_post(server))
        await other.aread()

        assert await anext(reads) == b"second"
        with pytest.raises(httpx.RequestError):
            await anext(reads)
        await response.aclose()
        await other.aclose()
        await transport.aclose()


async def test_a_trace_tells_a_fresh_connection_from_one_of_the_pool():
    told: list[str] = []

    async def trace(name: str, info: dict[str, object]) -> None:
        told.append(name)

    transport = AiohttpTransport()
    async with SseServer(answer(delta("a"))) as server, asyncio.timeout(5):
        for _ in range(2):
            response = await transport.handle_async_request(a_post(server, trace=trace))
            await response.aread()
            await response.aclose()
        await transport.aclose()

    assert told == [CONNECTING, SENDING, SENDING]


async def test_a_transport_that_was_never_used_closes_without_a_word():
    await AiohttpTransport().aclose()


async def test_closing_the_transport_ends_the_streams_that_still_run():
    transport = AiohttpTransport()
    async with SseServer([Send(head()), Stall()]) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))

        await transport.aclose()

        await server.requests[0].peer_gone.wait()
        await response.aclose()


@pytest.mark.parametrize("script", [[Send(b"SSH-2.0-OpenSSH\r\n\r\n"), Close()], [Close()]])
async def test_what_is_no_http_is_called_a_protocol_error(script: Script):
    transport = AiohttpTransport()
    async with SseServer(script) as server, asyncio.timeout(5):
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(a_post(server))
        await transport.aclose()


async def test_headers_beyond_the_usual_size_are_read_all_the_same():
    policy = "content-security-policy: " + "x" * 20_000
    script = [Send(head(extra=[policy]) + framed(b"ok") + b"0\r\n\r\n")]
    transport = AiohttpTransport()
    async with SseServer(script) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))

        assert len(response.headers["content-security-policy"]) == 20_000
        await response.aclose()
        await transport.aclose()


async def test_a_cookie_of_one_answer_is_not_sent_with_the_next_request():
    script = [Send(head(extra=["set-cookie: session=1"]) + framed(delta("a")) + b"0\r\n\r\n")]
    async with SseServer(script) as server, asking(server) as asker:
        await asker.ask()
        await asker.ask()

        assert "cookie" not in server.requests[1].headers


async def test_a_body_that_was_compressed_all_the_same_is_read():
    body = gzip.compress(delta("a") + delta(finish="stop"))
    script = [Send(head(extra=["content-encoding: gzip"]) + framed(body) + b"0\r\n\r\n")]

    async with SseServer(script) as server, asking(server) as asker:
        found = await asker.ask()

    assert found.text == "a"
    assert found.ending is not None


async def test_a_body_that_only_claims_to_be_compressed_is_a_typed_error():
    script = [Send(head(extra=["content-encoding: gzip"]) + framed(delta("a")) + b"0\r\n\r\n")]

    async with SseServer(script) as server, asking(server) as asker:
        found = await asker.ask()

    assert found.error is not None
    assert found.error.code == "upstream_protocol_error"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (aiohttp.ConnectionTimeoutError(), httpx.ConnectTimeout),
        (aiohttp.InvalidURL("x"), httpx.UnsupportedProtocol),
        (aiohttp.ServerDisconnectedError(), httpx.RemoteProtocolError),
        (aiohttp.ClientPayloadError("x"), httpx.RemoteProtocolError),
        (aiohttp.ClientOSError(104, "reset"), httpx.ReadError),
        (ConnectionResetError(), httpx.ReadError),
        (aiohttp.ClientError("x"), httpx.RemoteProtocolError),
    ],
)
def test_every_error_of_the_library_has_one_word_of_httpx(
    error: aiohttp.ClientError | OSError, word: type[httpx.RequestError]
):
    translated = translate(error)

    assert type(translated) is word
    assert type(error).__name__ in str(translated)
