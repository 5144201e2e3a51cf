import asyncio
import gzip
import ssl

import httpx
import pytest

from orchestrator.runners.remote.transport import (
    CONNECTING,
    IDLE_CONNECTION_SECONDS,
    SENDING,
    Http1Transport,
)
from tests.fakes.sse_server import (
    CERTIFICATE,
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


def as_stream(response: httpx.Response) -> httpx.AsyncByteStream:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream


async def test_what_came_before_a_reset_is_read_though_the_reader_comes_late():
    until = asyncio.Event()
    script = [Send(head() + framed(b"first")), Wait(until), Send(framed(b"second")), Reset()]
    transport = Http1Transport()
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

    transport = Http1Transport()
    async with SseServer(answer(delta("a"))) as server, asyncio.timeout(5):
        for _ in range(2):
            response = await transport.handle_async_request(a_post(server, trace=trace))
            await response.aread()
            await response.aclose()
        await transport.aclose()

    assert told == [CONNECTING, SENDING, SENDING]


async def test_a_transport_that_was_never_used_closes_without_a_word():
    await Http1Transport().aclose()


async def test_closing_the_transport_ends_the_streams_that_still_run():
    transport = Http1Transport()
    async with SseServer([Send(head()), Stall()]) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))

        await transport.aclose()

        await server.requests[0].peer_gone.wait()
        await response.aclose()


@pytest.mark.parametrize("script", [[Send(b"SSH-2.0-OpenSSH\r\n\r\n"), Close()], [Close()]])
async def test_what_is_no_http_is_called_a_protocol_error(script: Script):
    transport = Http1Transport()
    async with SseServer(script) as server, asyncio.timeout(5):
        with pytest.raises(httpx.RemoteProtocolError):
            await transport.handle_async_request(a_post(server))
        await transport.aclose()


async def test_headers_beyond_the_usual_size_are_read_all_the_same():
    policy = "content-security-policy: " + "x" * 20_000
    script = [Send(head(extra=[policy]) + framed(b"ok") + b"0\r\n\r\n")]
    transport = Http1Transport()
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


async def test_a_canceled_request_closes_its_connection_at_once():
    transport = Http1Transport()
    async with SseServer([Stall()]) as server, asyncio.timeout(5):
        asking = asyncio.create_task(transport.handle_async_request(a_post(server)))
        await server.arrived()

        asking.cancel()

        await server.requests[0].peer_gone.wait()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await transport.aclose()


async def test_a_response_that_is_left_in_mid_stream_closes_its_connection():
    transport = Http1Transport()
    async with SseServer([Send(head() + framed(b"a")), Stall()]) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))

        await response.aclose()

        await server.requests[0].peer_gone.wait()
        with pytest.raises(httpx.ReadError):
            [_ async for _ in as_stream(response)]
        await transport.aclose()


async def test_a_thousand_slots_have_a_thousand_connections_which_are_kept():
    until = asyncio.Event()
    script = [Wait(until), Send(head(framing="content-length: 1") + b"x")]
    transport = Http1Transport()
    async with SseServer(script) as server, asyncio.timeout(20):
        for _ in range(2):
            asking = [transport.handle_async_request(a_post(server)) for _ in range(1000)]
            answered = asyncio.gather(*asking)
            await server.arrived(1000)
            until.set()
            for response in await answered:
                assert await response.aread() == b"x"

        assert server.connections == 1000
        assert repr(transport) == "<Http1Transport 1000 connections, 1000 free>"
        await transport.aclose()


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again():
    told: list[str] = []

    async def trace(name: str, info: dict[str, object]) -> None:
        told.append(name)

    once = [Send(head(framing="content-length: 1") + b"x"), Close()]
    transport = Http1Transport()
    async with SseServer(once) as server, asyncio.timeout(5):
        for _ in range(2):
            response = await transport.handle_async_request(a_post(server, trace=trace))
            await response.aread()
            await server.ended()
            await asyncio.sleep(0)
        await transport.aclose()

    assert told == [CONNECTING, SENDING, CONNECTING, SENDING]


async def test_a_connection_that_nobody_used_for_a_while_is_closed():
    transport = Http1Transport()
    script = [Send(head(framing="content-length: 1") + b"x")]
    async with SseServer(script) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))
        await response.aread()
        (connection,) = transport._connections
        connection.free_since -= IDLE_CONNECTION_SECONDS

        transport._sweep()

        await server.ended()
        await connection.lost
        assert repr(transport) == "<Http1Transport 0 connections, 0 free>"
        await transport.aclose()


async def test_what_a_provider_says_over_tls_is_read_by_whoever_trusts_it():
    trusting = ssl.create_default_context(cafile=CERTIFICATE)
    transport = Http1Transport(trusting)
    async with SseServer(answer(delta("a")), tls=True) as server, asyncio.timeout(5):
        for _ in range(2):
            response = await transport.handle_async_request(a_post(server))
            assert await response.aread() == delta("a")

        assert server.connections == 1
        await transport.aclose()


async def test_a_certificate_that_nobody_vouches_for_is_no_connection():
    transport = Http1Transport(ssl.create_default_context())
    async with SseServer(answer(delta("a")), tls=True) as server, asyncio.timeout(5):
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await transport.handle_async_request(a_post(server))
        await transport.aclose()


@pytest.mark.parametrize(
    ("method", "url", "error"),
    [
        ("HEAD", "http://127.0.0.1:9", httpx.UnsupportedProtocol),
        ("POST", "ftp://127.0.0.1:9", httpx.UnsupportedProtocol),
        ("POST", "https://127.0.0.1:9", httpx.UnsupportedProtocol),
        ("POST", "http://127.0.0.1:1", httpx.ConnectError),
        ("POST", "http://host.invalid", httpx.ConnectError),
    ],
)
async def test_what_can_not_be_sent_at_all_has_an_error_that_says_so(
    method: str, url: str, error: type[httpx.RequestError]
):
    transport = Http1Transport()
    async with asyncio.timeout(5):
        with pytest.raises(error):
            await transport.handle_async_request(httpx.Request(method, url))
        await transport.aclose()


async def test_a_header_can_not_smuggle_another_one_in():
    request = httpx.Request("POST", "http://127.0.0.1:9", headers={"x-a": "b\r\nx-c: d"})

    with pytest.raises(httpx.LocalProtocolError):
        await Http1Transport().handle_async_request(request)


@pytest.mark.parametrize(
    ("end", "error"), [(Close(), httpx.RemoteProtocolError), (Reset(), httpx.ReadError)]
)
async def test_a_body_that_breaks_off_is_told_from_one_that_ends(
    end: Close | Reset, error: type[httpx.RequestError]
):
    until = asyncio.Event()
    script = [Send(head() + framed(b"a")), Wait(until), end]
    transport = Http1Transport()
    async with SseServer(script) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))
        reads = aiter(as_stream(response))
        assert await anext(reads) == b"a"

        until.set()

        with pytest.raises(error):
            await anext(reads)
        await transport.aclose()


async def test_a_body_without_length_or_chunks_ends_with_its_connection():
    script = [Send(head(framing="") + b"all of it"), Close()]
    transport = Http1Transport()
    async with SseServer(script) as server, asyncio.timeout(5):
        response = await transport.handle_async_request(a_post(server))

        assert await response.aread() == b"all of it"
        await transport.aclose()
