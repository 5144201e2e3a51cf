"""A recorded stream of each provider with a format of its own, cut at every byte."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import UpstreamTruncatedError
from orchestrator.events import TokenChunk
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.reader import Reader
from orchestrator.runners.remote.sse import SseDecoder
from tests.fakes.sse_server import Close, Reset, Send, SseServer, Step, framed, head
from tests.runners.remote import anthropic_wire, gemini_wire
from tests.runners.remote.asking import Answer
from tests.runners.remote.test_cut import CutStream, unframed


@dataclass(frozen=True)
class Recorded:
    """A stream, and who reads it."""

    events: Sequence[bytes]
    finish: int
    """Place of the event with the finish reason."""
    reader: Callable[[], Reader]

    @property
    def stream(self) -> bytes:
        return b"".join(self.events)

    def whole(self, cut: int) -> int:
        """How many events' JSON is whole, though the last one's blank line may be missing."""
        ends = [
            len(b"".join(self.events[: count + 1]).rstrip()) for count in range(len(self.events))
        ]
        return sum(end <= cut for end in ends)


RECORDED = {
    "anthropic": Recorded(
        anthropic_wire.CALLS,
        len(anthropic_wire.CALLS) - 2,
        lambda: MessageDecoder("acme"),
    ),
    "gemini": Recorded(
        # with ids, for those that are made are never the same
        [one.replace(b'{"name":"get', b'{"id":"fc-6","name":"get') for one in gemini_wire.CALLS],
        len(gemini_wire.CALLS) - 1,
        lambda: GeminiDecoder("acme"),
    ),
}
ASKING = {"anthropic": anthropic_wire.asking, "gemini": gemini_wire.asking}


@cache
def expected(provider: str, count: int) -> tuple[list[TokenChunk], Reader]:
    """What the first events bring when they are read one by one."""
    reader = RECORDED[provider].reader()
    events = SseDecoder().feed(b"".join(RECORDED[provider].events[:count]))
    return [chunk for one in events if (chunk := reader.take(one)) is not None], reader


def check(provider: str, answer: Answer, cut: int) -> None:
    recorded = RECORDED[provider]
    whole = recorded.whole(cut)
    chunks, reader = expected(provider, whole)
    assert answer.chunks == chunks
    if whole <= recorded.finish:
        assert answer.ending is None
        assert isinstance(answer.error, UpstreamTruncatedError)
    else:
        assert answer.error is None
        assert answer.ending == reader.end()


@pytest.mark.parametrize("provider", RECORDED)
@pytest.mark.parametrize("error", [None, httpx.ReadError("")], ids=["polite", "broken"])
async def test_a_stream_cut_at_any_byte_loses_no_token_and_is_never_an_answer(
    provider: str, error: Exception | None
):
    recorded, cut = RECORDED[provider], 0

    def handle(request: httpx.Request) -> httpx.Response:
        headers = {"content-type": "text/event-stream"}
        stream = CutStream(recorded.stream[:cut], 509, error)
        return httpx.Response(200, headers=headers, stream=stream)

    async with ASKING[provider]("http://acme.test/v1", httpx.MockTransport(handle)) as asker:
        for cut in range(len(recorded.stream) + 1):
            check(provider, await asker.ask(), cut)


@pytest.mark.live
@pytest.mark.parametrize("provider", RECORDED)
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "until close"])
async def test_a_socket_cut_anywhere_in_the_body_does_the_same(
    provider: str, end: Step, chunked: bool
):
    recorded = RECORDED[provider]
    start = head() if chunked else head(framing="connection: close")
    body = b"".join(map(framed, recorded.events)) if chunked else recorded.stream
    cuts = range(0, len(body), 17)
    server = SseServer(*([Send(start + body[:cut]), end] for cut in cuts))

    async with server, ASKING[provider](server) as asker:
        for cut in cuts:
            answer = await asker.ask()

            check(provider, answer, len(body[:cut] if not chunked else unframed(body[:cut])))


edits = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 40), st.binary(max_size=12)), max_size=4)


@pytest.mark.parametrize("provider", RECORDED)
@given(edits=edits, size=st.integers(1, 400), broken=st.booleans())
@settings(deadline=None, max_examples=100)
async def test_a_stream_spoilt_anyhow_ends_once_and_only_in_a_typed_way(
    provider: str, edits: list[tuple[float, int, bytes]], size: int, broken: bool
):
    data = RECORDED[provider].stream
    for place, removed, added in edits:
        at = int(place * len(data))
        data = data[:at] + added + data[at + removed :]
    error = httpx.ReadError("") if broken else None

    def handle(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, stream=CutStream(data, size, error))

    async with ASKING[provider]("http://acme.test/v1", httpx.MockTransport(handle)) as asker:
        answer = await asker.ask()

    assert (answer.ending is None) == (answer.error is not None)
    if b"inish" not in data and b"stop_reason" not in data:
        assert answer.ending is None
