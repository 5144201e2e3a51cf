"""What a request and a chunk cost, in function calls, which are the same in every run.

Timings never decide a test. Calls don't say how long they take, but a change that makes the hot
path longer shows up here. After a change that was meant, write down the new numbers.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from types import FrameType

import httpx
import pytest
from starlette.types import Message

from orchestrator.gateway.app import Gateway
from orchestrator.gateway.connection import LINE
from orchestrator.plan import DeploymentPlan
from orchestrator.policies.limits.settings import RateLimits
from orchestrator.runners.remote import openai
from orchestrator.runners.remote.connection import Connection
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.wiring import System
from tests.fakes.sse_server import delta, framed, head
from tests.fakes.wire import Wire
from tests.gateway.serving import CHAT

COUNTED = ("/orchestrator/", "/pykka/", "/prometheus_client/", "/aiolimiter/", "/httpx/")
MARGIN = 1.05
REQUESTS = 20
CHUNKS = 64

CALLS_PER_REQUEST = 584.0
"""Through the gateway's application, with every policy, to a provider and back, one chunk."""
CALLS_PER_CHUNK = 19.0
"""The same way, for each further chunk of a read that holds many."""
CALLS_PER_RESPONSE = 44.0
"""Of the HTTP client: one request of one chunk on a connection that stands."""
CALLS_PER_READ = 11.0
"""Of the HTTP client, for each further chunk that comes alone."""


async def calls(work: Callable[[], Awaitable[object]]) -> int:
    """How many functions are called meanwhile, by our own code and what it is built on."""
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event in {"call", "c_call"}:
            counts[frame.f_code.co_filename] += 1

    sys.setprofile(note)
    try:
        await work()
    finally:
        sys.setprofile(None)
    return sum(count for name, count in counts.items() if any(part in name for part in COUNTED))


class Chunks(httpx.AsyncByteStream):
    """An answer of so many chunks, in one read."""

    def __init__(self, count: int) -> None:
        self._body = delta("x") * count + delta(finish="stop") + b"data: [DONE]\n\n"

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        yield self._body


def unwatched(_on_gone: Callable[[], None] | None) -> None:
    """Nobody goes away here."""


async def visit(gateway: Gateway, chunks: int) -> bytes:
    """One request to the application, as the server would call it."""
    body = b'{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'
    headers = [(b"host", b"x"), (b"content-length", b"%d" % len(body))]
    headers.append((b"x-request-id", b"%d" % chunks))
    scope: dict[str, object] = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
    scope["extensions"] = {LINE: {"abort": Wire().abort, "watch": unwatched}}
    sent = b""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        nonlocal sent
        sent += message.get("body", b"")

    await gateway(scope, receive, send)
    return sent


async def calls_per_request(chunks: int) -> float:
    def answer(_request: httpx.Request) -> httpx.Response:
        kind = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=kind, stream=Chunks(chunks))

    settings = OpenAISettings(base_url="http://x/v1", model="m", api_key=lambda: "k")
    factory = openai.factory(settings, httpx.MockTransport(answer))
    limits = RateLimits(requests_per_minute=1e9, tokens_per_minute=1e9)
    system = System(
        [DeploymentPlan(name="m", factory=factory, slots=4, limits=limits)], monitored=False
    )
    system.start()
    await system.settled()
    gateway = Gateway(system, max_body=1 << 20)
    try:
        for _ in range(REQUESTS):  # caches are filled, the first of everything is past
            assert (await visit(gateway, chunks)).count(b'"x"') == chunks

        async def work() -> None:
            for _ in range(REQUESTS):
                await visit(gateway, chunks)

        return await calls(work) / REQUESTS
    finally:
        await system.aclose()


async def calls_per_response(chunks: int) -> float:
    wire = Wire()
    connection = Connection(on_free=lambda _: None, on_lost=lambda _: None)
    connection.connection_made(wire)

    async def work() -> None:
        for _ in range(REQUESTS):
            incoming = connection.send(b"GET / HTTP/1.1\r\n\r\n")
            connection.data_received(head())
            await incoming.head()
            for _ in range(chunks):
                connection.data_received(framed(b"data: x\n\n"))
                await anext(incoming)
            connection.data_received(b"0\r\n\r\n")
            assert [read async for read in incoming] == []

    return await calls(work) / REQUESTS


@pytest.mark.parametrize(
    ("measure", "per_first", "per_further"),
    [
        (calls_per_request, CALLS_PER_REQUEST, CALLS_PER_CHUNK),
        (calls_per_response, CALLS_PER_RESPONSE, CALLS_PER_READ),
    ],
)
async def test_the_hot_path_makes_no_more_calls_than_it_did(
    measure: Callable[[int], Awaitable[float]], per_first: float, per_further: float
):
    async with asyncio.timeout(20):
        first = await measure(1)
        further = (await measure(CHUNKS) - first) / (CHUNKS - 1)

    assert first <= per_first * MARGIN, f"{first} calls"
    assert further <= per_further * MARGIN, f"{further} calls"
