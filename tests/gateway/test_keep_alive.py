"""Comments in a silent stream: between events, and never before the first token."""

import asyncio

import httpx

from orchestrator.channel import Channel
from orchestrator.events import TokenChunk
from orchestrator.gateway.exchange import Silence
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, body, plays, serving, text_of, until


async def test_a_silent_stream_gets_comments_between_its_events() -> None:
    hold = asyncio.Event()
    stage = plays("a", hold, "b", DONE)
    text = ""

    async with (
        asyncio.timeout(5),
        serving({"m": stage}, keep_alive=0.02) as served,
        served.client.stream("POST", CHAT, json=body(stream=True)) as response,
    ):
        async for piece in response.aiter_text():
            text += piece
            if text.count(": keep-alive") == 2:
                hold.set()

    blocks = text.split("\n\n")
    assert blocks.count(": keep-alive") >= 2
    assert all(block.startswith(("data: ", ": keep-alive")) for block in blocks[:-1])
    assert text_of("\n\n".join(block for block in blocks if block[:1] != ":")) == "ab"


async def test_before_the_first_token_there_is_neither_status_nor_comment() -> None:
    hold = asyncio.Event()
    stage = plays(hold, "a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}, keep_alive=0.02) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        request = served.client.build_request("POST", CHAT, json=body(stream=True))
        await send(writer, request)
        await until(lambda: bool(stage.calls))
        quiet = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, quiet.set)
        await quiet.wait()
        hold.set()
        head = await reader.readuntil(b"\r\n\r\n")
        first = await reader.readuntil(b"\n\n")
        writer.close()

    assert head.startswith(b"HTTP/1.1 200")
    assert b"keep-alive" not in first


async def send(writer: asyncio.StreamWriter, request: httpx.Request) -> None:
    lines = [f"POST {request.url.raw_path.decode()} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode() + await request.aread())


async def test_what_is_sent_in_time_moves_the_next_comment() -> None:
    channel = Channel()
    silence = Silence(channel, 1000)

    silence.broken()
    silence._look()

    assert silence._timer.when() > asyncio.get_running_loop().time() + 990
    silence.over()


async def test_a_nudge_wakes_the_reader_with_nothing() -> None:
    channel = Channel()
    channel.begin(1)
    async with asyncio.timeout(5):
        reading = asyncio.create_task(channel.receive())
        await asyncio.sleep(0)
        channel.nudge()

        assert await reading == ([], None)

        channel.nudge()  # nobody waits
        channel.send(TokenChunk("a"), 1)
        chunks, _ = await channel.receive()
        assert [chunk.text for chunk in chunks] == ["a"]
