import asyncio
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from orchestrator.errors import OrchestratorError, UpstreamProtocolError
from orchestrator.events import TokenChunk
from orchestrator.runners.remote import gemini_answer, ollama
from orchestrator.runners.remote.answer import joined
from orchestrator.runners.remote.chat import SHAPE, ChatDecoder
from orchestrator.runners.remote.gemini import factory as gemini_factory
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.gemini_request import GeminiSettings
from orchestrator.runners.remote.large import PIECE_BYTES, take_large
from orchestrator.runners.remote.large_outline import OPEN, Shape
from orchestrator.runners.remote.ollama import OllamaDecoder
from orchestrator.runners.remote.provider import Reader, pieces_of
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import SseServer, answer, event
from tests.runners.remote.asking import asking
from tests.runners.remote.large_events import EVENTS


def sent(delta: object, **members: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta}], **members}).encode()


async def one(
    reader: Reader, event: ServerSentEvent, shape: Shape = SHAPE, **how: Any
) -> TokenChunk | None:
    """What a large event brings of a single answer, put together."""
    return joined(await pieces(reader, event, shape, **how))


async def pieces(
    reader: Reader, event: ServerSentEvent, shape: Shape = SHAPE, **how: Any
) -> list[TokenChunk]:
    """What a large event brings."""

    def take(event: ServerSentEvent) -> Sequence[TokenChunk]:
        return pieces_of(reader, reader.take(event))

    return [chunk async for chunk in take_large(take, event, shape, **how)]


def told(outcome: "Outcome") -> object:
    """What is told, however many pieces it comes in; each of them counts as a token at least."""
    if not isinstance(outcome, TokenChunk):
        return outcome
    return outcome.text, outcome.fields, outcome.index


class Measured(ChatDecoder):
    """Notes the sizes of what it reads at once."""

    def __init__(self, provider: str) -> None:
        super().__init__(provider)
        self.sizes: list[int] = []

    @override
    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        self.sizes.append(len(event.data))
        return super().take(event)


Outcome = TokenChunk | None | tuple[type[OrchestratorError], str]


def at_once(data: bytes) -> Outcome:
    try:
        return ChatDecoder("acme").take(ServerSentEvent(data))
    except OrchestratorError as error:
        return type(error), str(error)


async def in_pieces(data: bytes, piece_bytes: int) -> Outcome:
    reader = ChatDecoder("acme")
    try:
        async with asyncio.timeout(5):
            return await one(reader, ServerSentEvent(data), piece_bytes=piece_bytes)
    except OrchestratorError as error:
        return type(error), str(error)


ESCAPED = st.lists(
    st.sampled_from(
        ["\\n", '\\"', "\\\\", "\\/", "\\u00e9", "\\ud83d\\ude00", "a", "é", "你", "😀", "u",
         "d83d", "\\", "\\u12", "\\ud83d", "\\ude00",
         "\x01", "\\x", '"', ",", "\ufdd00\ufdd1", "\\uFDD0"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(text=ESCAPED, piece_bytes=st.integers(16, 40))
@settings(deadline=None, max_examples=200)
async def test_any_text_in_pieces_is_what_it_is_at_once(text: str, piece_bytes: int):
    data = f'{{"choices":[{{"delta":{{"content":"{text}","x":["{text}",1]}}}}]}}'.encode()

    assert told(await in_pieces(data, piece_bytes)) == told(at_once(data))


@given(
    delta=st.dictionaries(
        st.text(max_size=60), st.recursive(st.none() | st.text(), st.lists, max_leaves=4)
    ),
    ascii_only=st.booleans(),
    piece_bytes=st.integers(16, 40),
    cut=st.integers(0, 3),
)
@settings(deadline=None, max_examples=100)
async def test_any_event_in_pieces_is_what_it_is_at_once(
    delta: dict[str, object], ascii_only: bool, piece_bytes: int, cut: int
):
    text = json.dumps({"choices": [{"delta": delta}]}, ensure_ascii=ascii_only)
    data = text.encode(errors="surrogatepass")[: -cut or None]

    assert told(await in_pieces(data, piece_bytes)) == told(at_once(data))


@pytest.mark.parametrize(
    "text",
    ["a" * 3_000_000, "ab\n" * 1_000_000, '"a' * 1_500_000, "\\" * 3_000_000, "é" * 500_000],
    ids=["plain", "line feeds", "quotes", "backslashes", "escaped"],
)
async def test_others_have_their_turn_after_every_piece_of_a_large_event(text: str):
    data = sent({"content": text})
    reader = Measured("acme")
    turns = 0
    over = asyncio.Event()

    async def count() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        counting = asyncio.create_task(count())
        chunk = await one(reader, ServerSentEvent(data), piece_bytes=16 << 10)
        over.set()
        await counting

    assert chunk is not None
    assert (chunk.text, chunk.fields) == (text, None)
    assert turns >= len(data) // (16 << 10)
    assert max(reader.sizes) < 17 << 10


def test_a_text_that_looks_like_a_stand_in_is_left_alone():
    data = sent({"content": "a" * 100, "x": f"{OPEN}0"})

    found = asyncio.run(in_pieces(data, 16))

    assert told(found) == told(at_once(data))


async def test_arguments_that_come_as_an_object_stay_json():
    arguments = {"code": 'if x:\n\t"é\\' * 20, "n": 1}
    call = {"function": {"name": "f", "arguments": arguments}, "id": "c"}
    data = json.dumps({"message": {"content": 'a\n"' * 20, "tool_calls": [call]}}).encode()

    chunk: Any = await one(
        OllamaDecoder("acme"), ServerSentEvent(data), ollama.SHAPE, piece_bytes=16
    )

    assert chunk.text == 'a\n"' * 20
    assert json.loads(chunk.fields["tool_calls"][0]["function"]["arguments"]) == arguments


async def test_what_a_reader_keeps_for_later_is_told_as_it_was_sent():
    # found by the fuzzer: a finish reason of that length came out as what stood in for it
    reader = GeminiDecoder("acme")
    part = {"text": "a" * 100, "thoughtSignature": "c2ln" * 100}
    candidate = {"content": {"parts": [part]}, "finishReason": "NO_SUCH_" * 20}
    data = json.dumps({"candidates": [candidate]}).encode()

    chunk = await one(reader, ServerSentEvent(data), gemini_answer.SHAPE, piece_bytes=64)

    other = GeminiDecoder("acme")
    assert chunk == other.take(ServerSentEvent(data))
    with pytest.raises(OrchestratorError, match="NO_SUCH_NO_SUCH_"):
        reader.end()


async def test_an_error_in_a_large_event_quotes_what_came():
    failed = sent({}, error={"message": "boom " * 20})
    broken = sent({"content": "a" * 100})[:-1]

    assert (await in_pieces(failed, 16)) == at_once(failed)
    assert isinstance(at_once(failed), tuple)
    assert "boom boom" in str(at_once(failed))
    assert (await in_pieces(broken, 16)) == at_once(broken)
    found = at_once(broken)
    assert isinstance(found, tuple)
    assert found[0] is UpstreamProtocolError


def called(arguments: object) -> bytes:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    message = {"content": "a", "tool_calls": [call]}
    likely: list[dict[str, object]] = [{"token": "a", "logprob": -0.5, "top_logprobs": []}] * 20
    return json.dumps({"message": message, "logprobs": likely}, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": "' + 'x\\"\\n' * 50 + '"}',
        {"a": [1.50, 20000000000000000000000] * 30, "b": [[{"c": 'd"'}]] * 20, "e": "f" * 99},
        {"a": ["x", None, None] * 30},
        {"a": ["\ufdd00\ufdd1", '"\ufdd0a0\ufdd1"'] * 30, "e": "f" * 99},
    ],
    ids=["a text", "an object with arrays", "an array with nulls", "what looks like a stand-in"],
)
async def test_arguments_in_pieces_are_what_they_are_at_once(arguments: object):
    # a text came escaped a second time
    data = ServerSentEvent(called(arguments))

    chunk = await one(OllamaDecoder("acme"), data, ollama.SHAPE, piece_bytes=64)

    assert chunk == OllamaDecoder("acme").take(data)


MAX_BLOCKS = 6_000
"""Python's own objects that one step may make or free: about a millisecond's worth."""


@pytest.mark.parametrize("name", EVENTS)
async def test_no_step_of_a_large_event_reads_much_or_makes_much(name: str):
    large = EVENTS[name]
    data, reader = large.data(400_000), large.kind.reader()
    sizes: list[int] = []
    steps: list[int] = []
    over = False

    def take(event: ServerSentEvent) -> Sequence[TokenChunk]:
        sizes.append(len(event.data))
        return pieces_of(reader, reader.take(event))

    async def count() -> None:
        before = sys.getallocatedblocks()
        while not over:
            await asyncio.sleep(0)
            steps.append(abs(sys.getallocatedblocks() - before))
            before = sys.getallocatedblocks()

    async with asyncio.timeout(5):
        counting = asyncio.create_task(count())
        async for _ in take_large(take, ServerSentEvent(data), large.kind.shape):
            pass
        over = True
        await counting

    assert max(sizes) < 2 * PIECE_BYTES
    assert len(steps) >= len(data) // PIECE_BYTES
    assert max(steps) < MAX_BLOCKS


@pytest.mark.parametrize("name", EVENTS)
async def test_an_event_of_any_kind_in_pieces_is_what_it_is_at_once(name: str):
    large = EVENTS[name]
    data, whole = large.data(40_000), large.kind.reader()
    reader = large.kind.reader()

    chunk = await one(reader, ServerSentEvent(data), large.kind.shape)

    assert told(chunk) == told(whole.take(ServerSentEvent(data)))
    assert (reader.finish_reason, reader.done) == (whole.finish_reason, whole.done)


@pytest.mark.live
async def test_a_large_event_comes_through_a_slot_as_it_was_sent():
    text = 'line\n"quoted"\t' * 40_000
    chat = answer(
        event({"choices": [{"delta": {"content": text}}]}),
        event({"choices": [{"finish_reason": "stop"}]}),
    )
    call = {"functionCall": {"name": "f", "args": {"text": text}}}
    gemini = answer(event({"candidates": [{"content": {"parts": [call]}, "finishReason": "STOP"}]}))
    async with (
        SseServer(chat, gemini) as server,
        asking(server) as asker,
        asking(server, kind=GeminiSettings, make=gemini_factory) as other,
    ):
        assert (await asker.ask()).text == text
        fields: Any = (await other.ask()).chunks[0].fields

    assert json.loads(fields["tool_calls"][0]["function"]["arguments"]) == {"text": text}


def many(count: int, token: str = "a") -> dict[str, Any]:
    """Logprobs as they come, with likely tokens and bytes below each one."""
    likely = {"token": token, "logprob": -1.5, "bytes": [97]}
    one = {"token": token, "logprob": -0.5, "bytes": [97, 98], "top_logprobs": [likely] * 5}
    return {"content": [one | {"logprob": -float(place)} for place in range(count)]}


def with_logprobs(logprobs: object, content: str = "ab") -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "logprobs": logprobs}
    return json.dumps({"choices": [choice]}).encode()


async def test_others_have_their_turn_while_many_small_texts_are_read():
    data = with_logprobs(many(3000))
    reader = Measured("acme")
    turns = 0
    over = asyncio.Event()

    async def count() -> None:
        nonlocal turns
        while not over.is_set():
            turns += 1
            await asyncio.sleep(0)

    async with asyncio.timeout(30):
        counting = asyncio.create_task(count())
        chunk = await one(reader, ServerSentEvent(data), piece_bytes=16 << 10)
        over.set()
        await counting

    assert chunk == at_once(data)
    assert isinstance(chunk, TokenChunk)
    assert chunk.tokens == 3000
    assert turns >= len(data) // (16 << 10)
    assert max(reader.sizes) < len(data) // 10


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text('a"\\,[]{}: é', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("k[,", max_size=3), inner),
    max_leaves=6,
)


@given(
    items=st.lists(VALUES, max_size=30),
    beside=VALUES,
    piece_bytes=st.integers(16, 60),
    cut=st.integers(0, 3),
    spaced=st.booleans(),
)
@settings(deadline=None, max_examples=200)
async def test_any_array_in_pieces_is_what_it_is_at_once(
    items: list[object], beside: object, piece_bytes: int, cut: int, spaced: bool
):
    separators = (" , ", " : ") if spaced else (",", ":")
    delta = {"content": "a", "x": {"y": items, "z": beside}}
    text = json.dumps({"choices": [{"delta": delta}]}, separators=separators)
    data = text.encode()[: -cut or None]

    assert told(await in_pieces(data, piece_bytes)) == told(at_once(data))


@pytest.mark.parametrize("depth", [5, 50, 5000])
async def test_what_is_nested_deeply_is_looked_at_a_bounded_number_of_times(depth: int):
    data = b'{"choices":[{"delta":{"x":' + b'["a",' * depth + b"1" + b"]" * depth + b"}}]}"

    assert await in_pieces(data, 16 << 10) == at_once(data)
