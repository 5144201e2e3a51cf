"""A provider that breaks off or dawdles, told in the words of every API that callers speak."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

import httpx
import pytest

from tests.acceptance.test_gateway_providers import KINDS, gateway_to
from tests.fakes.sse_server import (
    Close,
    Reset,
    Script,
    Send,
    SseServer,
    Step,
    Wait,
    answer,
    delta,
    framed,
    head,
)

pytestmark = pytest.mark.live

CHAT = [{"role": "user", "content": "Hi"}]


@dataclass(frozen=True)
class Family:
    """One API of the gateway: what is asked, and what its streams end with."""

    path: str
    body: Mapping[str, object]
    failed: bytes
    """Tells of a failure."""
    ended: tuple[bytes, ...]
    """Whatever says that the answer is whole."""


FAMILIES = {
    "chat": Family(
        "chat/completions", {"messages": CHAT}, b'data: {"error":', (b"[DONE]", b'_reason":"')
    ),
    "completions": Family(
        "completions", {"prompt": "Hi"}, b'data: {"error":', (b"[DONE]", b'_reason":"')
    ),
    "responses": Family(
        "responses",
        {"input": "Hi"},
        b"event: response.failed\n",
        (b"event: response.completed", b"event: response.incomplete"),
    ),
    "messages": Family(
        "messages",
        {"messages": CHAT, "max_tokens": 9},
        b"event: error\n",
        (b"event: message_stop", b'stop_reason":"'),
    ),
}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
async def test_a_stream_without_its_finish_has_one_failed_ending_in_every_family(
    family: Family,
) -> None:
    def cut(script: Callable[[], list[Step]]) -> list[Step]:
        """All up to the first text, then a polite end."""
        begun = list(script())
        text = next(place for place, step in enumerate(begun) if b"Look." in bytes_of(step))
        return [*begun[: text + 1], Send(b"0\r\n\r\n")]

    scripts = [cut(lambda script=script: list(script())) for script in KINDS.values()]
    async with (
        asyncio.timeout(20),
        SseServer(*scripts) as provider,
        gateway_to(provider) as client,
        httpx.AsyncClient(base_url=str(client.base_url)) as caller,
    ):
        for kind in KINDS:
            asked = {"model": kind, "stream": True, **family.body}
            told = (await caller.post(family.path, json=asked)).content

            assert told.count(b"Look.") >= 1, kind
            assert told.count(family.failed) == 1, kind
            assert b"upstream_truncated" in told or family.path == "messages", kind
            assert not any(mark in told for mark in family.ended), kind


def bytes_of(step: Step) -> bytes:
    return step.data if isinstance(step, Send) else b""


@contextlib.asynccontextmanager
async def streamed(
    *scripts: Script, keep_alive: float = 15
) -> AsyncGenerator[tuple[SseServer, httpx.Response]]:
    """A provider, and the answer that a caller is told of it as it comes."""
    asked = {"model": "openai", "messages": CHAT, "stream": True}
    async with (
        asyncio.timeout(10),
        SseServer(*scripts) as provider,
        gateway_to(provider, keep_alive=keep_alive) as client,
        httpx.AsyncClient(base_url=str(client.base_url)) as caller,
        caller.stream("POST", "chat/completions", json=asked) as response,
    ):
        yield provider, response


async def test_comments_never_stand_between_the_lines_of_one_event() -> None:
    dawdling = asyncio.Event()
    first, second = delta("one "), delta("two", finish="stop")
    script = [
        Send(head() + framed(first + b"event: x\n" + second[:30])),
        Wait(dawdling),
        Send(framed(second[30:])),
        Close(),
    ]
    told = b""
    async with streamed(script, keep_alive=0.02) as (_, response):
        async for piece in response.aiter_bytes():
            told += piece
            if told.count(b": keep-alive") >= 2:
                dawdling.set()

    blocks = told.split(b"\n\n")
    assert blocks.pop() == b""
    assert blocks.count(b": keep-alive") >= 2
    assert all(block == b": keep-alive" or block.startswith(b"data: ") for block in blocks)
    assert b'"two"' in told
    assert blocks[-1] == b"data: [DONE]"


async def test_half_a_tool_call_is_never_followed_by_another_attempts() -> None:
    read = asyncio.Event()
    function = {"name": "run", "arguments": '{"code":"pri'}
    half = delta(tool_calls=[{"index": 0, "id": "c", "function": function}])
    whole = answer(half, delta(finish="tool_calls"))
    told = b""
    torn: Script = [Send(head() + framed(half)), Wait(read), Reset()]
    async with streamed(torn, whole) as (provider, response):
        async for piece in response.aiter_bytes():
            told += piece
            read.set()

        assert len(provider.requests) == 1

    assert told.count(b"pri") == 1
    assert b'"upstream_truncated"' in told
    assert b"[DONE]" not in told
