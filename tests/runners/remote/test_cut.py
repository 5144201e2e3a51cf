"""One stream of the documented shape, cut at every byte: the promise that is easiest to break."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import (
    OrchestratorError,
    UpstreamOverloadedError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.lease import Lease, StepLimits
from orchestrator.runners.lease import Step as LeaseStep
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.sse import ServerSentEvent, SseDecoder
from tests.fakes.sse_server import (
    LAST_CHUNK,
    Close,
    Reset,
    Send,
    SseServer,
    Stall,
    Step,
    framed,
    head,
)
from tests.runners.remote.asking import Answer, asking
from tests.runners.remote.cutting import check_every_cut


def recorded(choices: list[object], **members: object) -> bytes:
    chunk = {
        "id": "chatcmpl-9lMgfRSWPHcw51s6wxKT1YEO2CKpd",
        "object": "chat.completion.chunk",
        "created": 1721075653,
        "model": "gpt-4o-mini-2024-07-18",
        "choices": choices,
    }
    text = json.dumps(chunk | members, separators=(",", ":"), ensure_ascii=False)
    return b"data: " + text.encode() + b"\n\n"


def piece(delta: dict[str, object], finish: str | None = None) -> bytes:
    return recorded([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


TEXTS = ["Hel", "lo", " 你好", " 😀!"]
EVENTS = [
    piece({"role": "assistant", "content": "", "refusal": None}),
    *(piece({"content": text}) for text in TEXTS),
    piece({}, "stop"),
    recorded([], usage={"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 9}),
    b"data: [DONE]\n\n",
]
STREAM = b"".join(EVENTS)
ENDS = [sum(map(len, EVENTS[: count + 1])) - len(b"\n\n") for count in range(len(EVENTS))]
"""Where each event's JSON is whole, though its blank line is still missing."""


def check(answer: Answer, cut: int) -> None:
    whole = sum(end <= cut for end in ENDS[1:5])
    assert [chunk.text for chunk in answer.chunks] == TEXTS[:whole]
    if cut < ENDS[5]:
        assert answer.ending is None
        assert isinstance(answer.error, UpstreamTruncatedError)
        assert cut == 0 or f"after {whole} tokens" in str(answer.error)
    else:
        assert answer.error is None
        assert answer.ending is not None
        assert answer.ending.finish_reason is FinishReason.STOP
        assert (answer.ending.usage is not None) == (cut >= ENDS[6])


class CutStream(httpx.AsyncByteStream):
    def __init__(self, data: bytes, size: int, error: Exception | None) -> None:
        self.data = data
        self.size = size
        self.error = error

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self.data), self.size):
            yield self.data[start : start + self.size]
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("size", [1 << 16, 61], ids=["one read", "many reads"])
@pytest.mark.parametrize("error", [None, httpx.ReadError("")], ids=["polite", "broken"])
async def test_a_stream_cut_at_any_byte_loses_no_token_and_is_never_an_answer(
    size: int, error: Exception | None
):
    cut = 0

    def handle(request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx.Response(200, headers=headers, stream=CutStream(STREAM[:cut], size, error))

    async with asking("http://acme.test/v1", httpx.MockTransport(handle)) as asker:
        for cut in range(len(STREAM) + 1):
            check(await asker.ask(), cut)


@pytest.mark.live
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "until close"])
async def test_a_socket_cut_at_any_byte_of_the_body_does_the_same(end: Step, chunked: bool):
    start = head() if chunked else head(framing="connection: close")
    body = b"".join(map(framed, EVENTS)) if chunked else STREAM
    cuts = range(0, len(body), 7)
    server = SseServer(*([Send(start + body[:cut]), end] for cut in cuts))

    async with server, asking(server) as asker:
        for cut in cuts:
            answer = await asker.ask()

            sent = body[:cut] if not chunked else unframed(body[:cut])
            check(answer, len(sent))


def unframed(data: bytes) -> bytes:
    """What a chunked body cut here holds."""
    body = b""
    while b"\r\n" in data:
        size, data = data.split(b"\r\n", 1)
        body += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return body


@pytest.mark.live
async def test_tokens_that_came_right_before_a_reset_are_not_lost_while_nobody_reads():
    async with (
        SseServer([Send(head() + framed(b"".join(EVENTS[:5]))), Reset()]) as server,
        asking(server) as asker,
    ):
        answer = await asker.ask()

    assert [chunk.text for chunk in answer.chunks] == TEXTS
    assert isinstance(answer.error, OrchestratorError)


edits = st.lists(
    st.tuples(st.integers(0, len(STREAM)), st.integers(0, 40), st.binary(max_size=12)), max_size=4
)


@given(edits=edits, size=st.integers(1, 400), broken=st.booleans())
@settings(deadline=None, max_examples=150)
async def test_a_stream_spoilt_anyhow_ends_once_and_only_in_a_typed_way(
    edits: list[tuple[int, int, bytes]], size: int, broken: bool
):
    data = STREAM
    for at, removed, added in edits:
        data = data[:at] + added + data[at + removed :]
    error = httpx.ReadError("") if broken else None

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=CutStream(data, size, error))

    async with asking("http://acme.test/v1", httpx.MockTransport(handle)) as asker:
        answer = await asker.ask()

    assert (answer.ending is None) == (answer.error is not None)
    if not re.search(rb'"finish_reason"\s*:\s*"', data):
        assert answer.ending is None


def short(delta: dict[str, object] | None, finish: str | None = None) -> bytes:
    choice = {"delta": delta, "finish_reason": finish} if delta else {"finish_reason": finish}
    return b"data:" + json.dumps({"choices": [choice]}, ensure_ascii=False).encode() + b"\n\n"


@pytest.mark.live
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_calls_of_tools_cut_at_every_byte_lose_nothing_that_had_come(end: Step):
    recorded = [
        short({"reasoning_content": "Hm."}),
        short({"content": " 你好 😀"}),
        short({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f"}}]}),
        short({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
        short(None, "tool_calls"),
        b"data: [DONE]\n\n",
    ]
    events = [ServerSentEvent(raw[5:].strip()) for raw in recorded]

    await check_every_cut(recorded, events, lambda: ChatDecoder("acme"), end)


FIVE = b"".join(piece({"content": text}) for text in "abcde")
ERROR = b'event: error\ndata: {"error": {"message": "boom", "code": "server_overloaded"}}\n\n'
PINGS = [Send(b": keep-alive\n\n")] * 3
ENDS_AFTER_FIVE: dict[str, tuple[Sequence[Step], type[OrchestratorError] | None]] = {
    "fin": ([Close()], UpstreamTruncatedError),
    "reset": ([Reset()], UpstreamTruncatedError),
    "fin within an event": ([Send(b'data: {"choices":[{"del'), Close()], UpstreamTruncatedError),
    "clean end without a marker": ([Send(b""), Close()], UpstreamTruncatedError),
    "error event, then a marker": ([Send(ERROR + b"data: [DONE]\n\n")], UpstreamOverloadedError),
    "stall": ([Stall()], None),
    "nothing but comments": ([*PINGS, Stall()], None),
}
"""How a stream goes on after its fifth token, and what that is; None is the lease's business."""


@pytest.mark.live
@pytest.mark.parametrize("fault", ENDS_AFTER_FIVE)
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "until close"])
async def test_every_way_to_cut_a_stream_after_five_tokens_is_told(fault: str, chunked: bool):
    # of these fourteen an HTTP client says nothing in six, and never ends the last two
    steps, error = ENDS_AFTER_FIVE[fault]
    sent: list[Step] = [Send(head() if chunked else head(framing="connection: close"))]
    for step in (Send(FIVE), *steps):
        match step:
            case Send(data) if chunked and data:
                sent.append(Send(framed(data)))
            case _:
                sent.append(step)
    if fault.startswith("clean") and chunked:
        sent[-1:] = [Send(LAST_CHUNK)]
    loop = asyncio.get_running_loop()
    expired = loop.create_future()
    lease = Lease(StepLimits(first_token=5, inter_token=0.05), expired.set_result)

    async with SseServer(sent) as server, asking(server) as asker, asyncio.timeout(5):
        asked = asyncio.create_task(asker.ask(lease))
        if error is None:
            await expired
            missed = lease.missed
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked
            assert missed is LeaseStep.NEXT_TOKEN
            return
        found = await asked

    assert found.text == "abcde"
    assert type(found.error) is error
    assert error is UpstreamOverloadedError or "after 5 tokens" in str(found.error)
    assert found.ending is None


def read(reads: Sequence[bytes]) -> tuple[list[TokenChunk], Finished]:
    framing, reader = SseDecoder(), ChatDecoder("acme")
    events = [event for data in reads for event in framing.feed(data)]
    return [one for event in events if (one := reader.take(event)) is not None], reader.end()


def test_a_stream_split_at_every_byte_brings_the_same_answer_and_its_usage():
    whole = read([STREAM])

    assert whole[1].usage == Usage(prompt_tokens=5, completion_tokens=4)
    for at in range(len(STREAM)):
        assert read([STREAM[:at], STREAM[at:]]) == whole, at
