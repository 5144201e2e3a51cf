"""A caller who goes away costs only its own request, and its slot is free within 250 ms."""

import asyncio
import json

import pytest

from orchestrator.errors import RequestCanceledError
from orchestrator.events import Failed
from orchestrator.request import PriorityRequest
from tests.fakes.scripted import DONE, Line, Stage
from tests.gateway.serving import body, plays, serving, until

FREE_WITHIN = 0.25


async def send_chat(
    port: int, *, stream: bool
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = json.dumps(body(stream=stream)).encode()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%s"
        % (len(payload), payload)
    )
    return reader, writer


class Play:
    """A script that stalls for its first request and answers every other one."""

    def __init__(self, *first: Line) -> None:
        self.first = first
        self.requests: list[PriorityRequest] = []
        self.asked = asyncio.Event()

    def __call__(self, request: PriorityRequest, call: int) -> list[Line]:
        self.requests.append(request)
        self.asked.set()
        return [*self.first, asyncio.Event()] if call == 0 else ["a", DONE]


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_before_the_first_token_frees_the_slot(stream: bool) -> None:
    play = Play()
    stage = Stage(play)
    loop = asyncio.get_running_loop()

    async with asyncio.timeout(5), serving({"m": stage}, slots=1) as served:
        _, writer = await send_chat(served.port, stream=stream)
        await play.asked.wait()
        left_at = loop.time()
        writer.close()
        await served.idle()
        answer = await served.ask()
        took = loop.time() - left_at

    assert answer.status_code == 200
    assert took < FREE_WITHIN
    ending = play.requests[0].channel.ending
    assert isinstance(ending, Failed)
    assert isinstance(ending.error, RequestCanceledError)
    assert stage.running == 0


async def test_leaving_in_mid_stream_frees_the_slot() -> None:
    play = Play("first")
    stage = Stage(play)
    loop = asyncio.get_running_loop()

    async with asyncio.timeout(5), serving({"m": stage}, slots=1) as served:
        reader, writer = await send_chat(served.port, stream=True)
        await reader.readuntil(b"first")
        left_at = loop.time()
        writer.transport.abort()
        await served.idle()
        answer = await served.ask()
        took = loop.time() - left_at

    assert answer.status_code == 200
    assert took < FREE_WITHIN
    assert stage.running == 0


async def test_leaving_while_queued_never_reaches_a_runner() -> None:
    play = Play()
    stage = Stage(play)

    async with asyncio.timeout(5), serving({"m": stage}, slots=1) as served:
        _, running = await send_chat(served.port, stream=True)
        await play.asked.wait()
        _, queued = await send_chat(served.port, stream=True)
        await until(lambda: bool(served.system.health()[0].queued))
        queued.close()
        await until(lambda: not served.system.health()[0].queued)
        running.close()
        await served.idle()

    assert len(stage.calls) == 1


async def test_leaving_in_the_middle_of_the_body_starts_nothing() -> None:
    stage = plays("a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        answer = await served.ask()

    assert answer.status_code == 200
    assert len(stage.calls) == 1


async def test_two_hundred_callers_leaving_at_once_leave_nothing_behind() -> None:
    stage = plays("a", asyncio.Event())

    async with asyncio.timeout(20), serving({"m": stage}, slots=8) as served:
        writers = [(await send_chat(served.port, stream=True))[1] for _ in range(200)]
        await until(lambda: served.system.health()[0].inflight == 200)
        for writer in writers:
            writer.transport.abort()
        await served.idle()
        health = served.system.health()[0]

    assert (health.inflight, health.queued) == (0, 0)
    assert stage.running == 0


async def test_a_caller_who_stays_but_does_not_read_loses_its_connection() -> None:
    page = "x" * 100_000
    endless: list[Line] = [page, 0.0] * 200  # 0.0: the gateway's turn to write
    stage = Stage(lambda _request, call: endless if call == 0 else ["a", DONE])

    async with asyncio.timeout(5), serving({"m": stage}, slots=1, linger=0.05) as served:
        reader, writer = await send_chat(served.port, stream=True)
        await reader.readuntil(b"\r\n\r\n")
        await served.idle()
        await until(lambda: served.connections == 0)
        answer = await served.ask()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(200 * len(page))
        writer.close()

    assert answer.status_code == 200
    assert stage.running == 0
