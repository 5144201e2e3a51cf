"""Clients of HTTP/1.0: no chunks, and the end of an answer is the connection's."""

import asyncio
import json

import pytest

from orchestrator.errors import UpstreamTruncatedError
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, Served, body, events, plays, serving, text_of


async def say(served: Served, head: str, content: bytes = b"") -> tuple[str, str]:
    """The head and the body of what comes until the connection's end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(f"{head}\r\ncontent-length: {len(content)}\r\n\r\n".encode() + content)
    told = (await reader.read()).decode()
    writer.close()
    await writer.wait_closed()
    answered, _, rest = told.partition("\r\n\r\n")
    return answered.lower(), rest


def asked(**members: object) -> bytes:
    return json.dumps(body(**members)).encode()


@pytest.mark.parametrize("more", ["", "\r\nconnection: keep-alive"])
async def test_a_stream_to_http_1_0_is_plain_until_the_connection_closes(more: str) -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", "b", DONE)}) as served:
        head, stream = await say(served, f"POST {CHAT} HTTP/1.0{more}", asked(stream=True))

    assert "transfer-encoding" not in head
    assert "connection: close" in head
    assert text_of(stream) == "ab"
    assert events(stream)[-1] == "[DONE]"


async def test_a_stream_that_breaks_tells_http_1_0_so_before_its_end() -> None:
    stage = plays("a", UpstreamTruncatedError("cut"))

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        _, stream = await say(served, f"POST {CHAT} HTTP/1.0", asked(stream=True))

    assert events(stream)[-1]["error"]["code"] == "upstream_truncated"


async def test_an_answer_of_a_known_length_keeps_it_in_http_1_0() -> None:
    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        told = [
            await say(served, f"GET {path} HTTP/1.0")
            for path in ("/livez", "/v1/models", "/no/such/path")
        ]

    assert all(f"content-length: {len(found)}" in head for head, found in told)
    assert all(json.loads(found) for _, found in told)


async def test_a_second_request_of_http_1_0_on_its_connection_is_left_unread() -> None:
    twice = f"GET /livez HTTP/1.0\r\n\r\nPOST {CHAT} HTTP/1.0"

    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        head, found = await say(served, twice, asked(stream=True))

    assert head.startswith("http/1.1 200 ")
    assert json.loads(found) == {"live": True}
