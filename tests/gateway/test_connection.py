"""Limits of one connection in time, and of all of them in number."""

import asyncio
import json

import pytest

from orchestrator.gateway.connection import PROBES_ONLY, ConnectionLimits, room_for
from tests.fakes.scripted import DONE
from tests.gateway.serving import plays, serving, until

SLOW = ConnectionLimits(head=0.05, body=0.05, idle=1)
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\n"


@pytest.mark.parametrize(
    ("sent", "what"),
    [
        (b"", "head"),
        (b"GET /li", "head"),
        (HEAD + b"x: ", "head"),
        (HEAD + b"content-length: 9\r\n\r\n{", "body"),
        (HEAD + b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n", "body"),
    ],
)
async def test_half_a_request_is_answered_with_408_and_closed(sent: bytes, what: str) -> None:
    async with asyncio.timeout(5), serving({"m": plays(DONE)}, patience=SLOW) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(sent)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert answer.startswith(b"HTTP/1.1 408 ")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], error["type"]) == ("request_timeout", "invalid_request_error")
    assert what in error["message"]


async def test_empty_lines_after_an_answer_keep_no_connection_open() -> None:
    async with asyncio.timeout(5), serving({"m": plays(DONE)}, patience=SLOW) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        first = await reader.readuntil(b'{"live":true}')
        writer.write(b"\r\n")
        second = await reader.read()
        writer.close()
        await writer.wait_closed()

    assert first.startswith(b"HTTP/1.1 200 ")
    assert second.startswith(b"HTTP/1.1 408 ")


async def test_a_slow_answer_is_no_slow_request() -> None:
    hold = asyncio.Event()
    stage = plays(hold, "a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}, patience=SLOW) as served:
        asking = asyncio.create_task(served.ask())
        await until(lambda: stage.running == 1)
        asyncio.get_running_loop().call_later(0.2, hold.set)
        answer = await asking
        again = await served.client.get("/livez")

    assert (answer.status_code, again.status_code) == (200, 200)


async def test_a_full_gateway_answers_probes_alone_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    limits = ConnectionLimits(connections=2)

    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}, patience=limits) as served:
        opened = [await asyncio.open_connection("127.0.0.1", served.port) for _ in range(2)]
        await until(lambda: served.connections == 2)
        probes = [await served.client.get("/livez") for _ in range(2)]
        refused = await served.ask()
        opened += [
            await asyncio.open_connection("127.0.0.1", served.port) for _ in range(PROBES_ONLY + 1)
        ]
        cut = await opened[-1][0].read()
        for _, writer in opened:
            writer.close()
        await until(lambda: served.connections == 0)
        after = await served.ask()

    assert [probe.status_code for probe in probes] == [200, 200]
    assert probes[0].headers["connection"] == "close"
    assert refused.status_code == 503
    assert refused.json()["error"]["code"] == "too_many_connections"
    assert cut == b""
    assert after.status_code == 200
    assert len([record for record in caplog.records if "are taken" in record.message]) == 1


def test_the_limit_on_open_files_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def soft_and_hard(_: int) -> tuple[int, int]:
        return 1024, 4096

    monkeypatch.setattr("resource.getrlimit", soft_and_hard)

    assert room_for(4096) == 768
    assert room_for(100) == 100
