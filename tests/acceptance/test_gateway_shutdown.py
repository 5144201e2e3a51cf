"""A stop signal: nothing new is taken, what runs may finish, and the exit code is 0."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.fakes.sse_server import (
    LAST_CHUNK,
    Script,
    Send,
    SseServer,
    Stall,
    Wait,
    delta,
    framed,
    head,
)
from tests.gateway.process import gateway_process
from tests.gateway.serving import CHAT, body, events, text_of

pytestmark = pytest.mark.live

DONE = framed(b"data: [DONE]\n\n")
LIMIT = 20
"""Seconds; a process starts in about two on a busy machine."""


def slow_answer(release: asyncio.Event) -> Script:
    rest = framed(delta(" world")) + framed(delta(finish="stop")) + DONE + LAST_CHUNK
    return [Send(head()), Send(framed(delta("Hello"))), Wait(release), Send(rest)]


ENDLESS: Script = [Send(head()), Send(framed(delta("Hello"))), Stall()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write_config(folder: Path, url: str, drain: str) -> Path:
    path = folder / "gateway.yaml"
    path.write_text(
        f"server: {{drain: {drain}}}\n"
        f"deployments:\n  m:\n    runner: {{kind: openai, base_url: '{url}', model: big}}\n",
        encoding="utf-8",
    )
    return path


class Reading:
    """A stream that is read in the background."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.text = ""
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(client))

    async def _read(self, client: httpx.AsyncClient) -> None:
        async with client.stream("POST", CHAT, json=body(stream=True)) as response:
            async for piece in response.aiter_text():
                self.text += piece
                self.begun.set()


async def test_running_streams_finish_and_new_requests_get_503(folder: Path) -> None:
    release = asyncio.Event()

    async with asyncio.timeout(LIMIT), SseServer(slow_answer(release)) as provider:
        config = write_config(folder, provider.url, "15s")
        async with gateway_process(config) as (gateway, client):
            readings = [Reading(client) for _ in range(4)]
            for reading in readings:
                await reading.begun.wait()
            gateway.send(signal.SIGTERM)
            await gateway.prints("stopping: 4 requests")
            refused = await client.post(CHAT, json=body())
            ready = await client.get("/readyz")
            release.set()
            await asyncio.gather(*(reading.task for reading in readings))
            code = await gateway.ends()

    assert refused.status_code == 503
    assert refused.headers["connection"] == "close"
    assert refused.json()["error"]["code"] == "draining"
    assert ready.status_code == 503
    assert [text_of(reading.text) for reading in readings] == ["Hello world"] * 4
    assert all(events(reading.text)[-1] == "[DONE]" for reading in readings)
    assert code == 0
    assert "Traceback" not in gateway.output


async def test_what_is_left_at_the_drain_limit_gets_an_error_event(folder: Path) -> None:
    async with asyncio.timeout(LIMIT), SseServer(ENDLESS) as provider:
        config = write_config(folder, provider.url, "100ms")
        async with gateway_process(config) as (gateway, client):
            reading = Reading(client)
            await reading.begun.wait()
            gateway.send(signal.SIGTERM)
            await reading.task
            code = await gateway.ends()
            await provider.requests[0].peer_gone.wait()

    last = events(reading.text)[-1]
    assert last["error"]["code"] == "draining"
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_second_signal_ends_the_drain_at_once(folder: Path, number: signal.Signals) -> None:
    async with asyncio.timeout(LIMIT), SseServer(ENDLESS) as provider:
        config = write_config(folder, provider.url, "10m")
        async with gateway_process(config) as (gateway, client):
            reading = Reading(client)
            await reading.begun.wait()
            gateway.send(number)
            await gateway.prints("stopping: 1 requests")
            gateway.send(number)
            await reading.task
            code = await gateway.ends()

    assert "draining" in reading.text
    assert "[DONE]" not in reading.text
    assert code == 0


async def test_an_idle_gateway_stops_at_once(folder: Path) -> None:
    async with asyncio.timeout(LIMIT), SseServer(ENDLESS) as provider:
        config = write_config(folder, provider.url, "10m")
        async with gateway_process(config) as (gateway, _):
            gateway.send(signal.SIGTERM)
            code = await gateway.ends()

    assert code == 0
    assert "stopped" in gateway.output


async def test_a_curl_line_and_a_table_end_the_start(folder: Path) -> None:
    async with asyncio.timeout(LIMIT), SseServer(ENDLESS) as provider:
        config = write_config(folder, provider.url, "1s")
        async with gateway_process(config) as (gateway, _):
            line = (await gateway.prints(r"^curl .*"))[0]
            gateway.send(signal.SIGTERM)
            await gateway.ends()

    assert f"{gateway.url}/v1/chat/completions" in line
    assert "1 of 1 deployments ready" in gateway.output
    assert "8/8" in gateway.output
