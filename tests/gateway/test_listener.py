"""Limits of the HTTP server itself."""

import asyncio
import json
import socket
from typing import Any

import pytest

from orchestrator.gateway.connection import MAX_HEAD_BYTES, MAX_HEADERS
from orchestrator.gateway.listener import BindError, bind
from tests.fakes.scripted import DONE
from tests.gateway.serving import plays, serving


async def answer_to(port: int, request: bytes) -> tuple[bytes, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    return head.partition(b"\r\n")[0], json.loads(body)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /livez HTTP/1.1\r\n" + b"x: y\r\n" * (MAX_HEADERS + 1) + b"\r\n",
        b"GET /livez HTTP/1.1\r\nx: " + b"y" * (MAX_HEAD_BYTES + 1) + b"\r\n\r\n",
        b"GET /" + b"y" * (MAX_HEAD_BYTES + 1) + b" HTTP/1.1\r\n\r\n",
        b"no http at all\r\n\r\n",
    ],
)
async def test_a_head_that_is_too_large_or_broken_is_a_400(request_bytes: bytes) -> None:
    async with asyncio.timeout(5), serving({"m": plays(DONE)}) as served:
        status, body = await answer_to(served.port, request_bytes)
        after = await served.client.get("/livez")

    assert status == b"HTTP/1.1 400 Bad Request"
    assert body["error"]["code"] == "invalid_http"
    assert after.status_code == 200


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "opening",
    [b"GET /", HEAD, HEAD + b"x: ", CHUNKED, CHUNKED + b"1;", CHUNKED + b"1\r\na\r\n0\r\nx: "],
)
async def test_what_never_ends_in_a_head_is_refused_long_before_it_costs(opening: bytes) -> None:
    async with asyncio.timeout(5), serving({"m": plays(DONE)}) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(opening)
        for _ in range(10):  # it is read by itself
            await asyncio.sleep(0)
        writer.write(b"0" * (MAX_HEAD_BYTES + 1))
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()

    assert answer == b"HTTP/1.1 400 Bad Request\r\n"


def test_a_port_that_is_taken_is_told_in_one_line() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(BindError, match=f"can't listen on 127.0.0.1:{port}: Address already"):
            bind("127.0.0.1", port)


def test_a_host_that_is_not_this_machine_is_told_in_one_line() -> None:
    with pytest.raises(BindError, match=r"can't listen on 192\.0\.2\.1:0: "):
        bind("192.0.2.1", 0)


def test_an_address_of_the_newer_protocol_can_be_taken() -> None:
    if not socket.has_ipv6:
        pytest.skip("this machine has no IPv6")
    try:
        sock = bind("::1", 0)
    except BindError:
        pytest.skip("this machine has no IPv6 loopback")
    with sock:
        assert sock.family is socket.AF_INET6
