import asyncio
import contextlib
import json
import re
import sys
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from orchestrator.errors import (
    OrchestratorError,
    UpstreamOverloadedError,
    UpstreamProtocolError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.gateway.answer import merge_fields
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.estimate import with_usage
from orchestrator.runners.remote.gemini import factory as gemini_factory
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.gemini_request import GeminiSettings
from orchestrator.runners.remote.large import PIECE_BYTES, take_large
from orchestrator.runners.remote.large_outline import OPEN, SUMMARY_BYTES
from orchestrator.runners.remote.ollama import OllamaDecoder
from orchestrator.runners.remote.reader import Reader, pieces_of
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import Close, Send, SseServer, answer, delta, event, framed, head
from tests.runners.remote.asking import a_request, asking
from tests.runners.remote.large_events import ALL, BROKEN, EVENTS


def sent(delta: object, **members: object) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta}], **members}).encode()


async def one(reader: Reader, event: ServerSentEvent, **how: Any) -> TokenChunk | None:
    """What a large event brings of a single answer, put together."""
    return together(await pieces(reader, event, **how))


async def pieces(reader: Reader, event: ServerSentEvent, **how: Any) -> list[TokenChunk]:
    """What a large event brings."""
    return [chunk async for chunk in take_large(reader, event, **how)]


def together(chunks: Sequence[TokenChunk]) -> TokenChunk | None:
    """The chunks of one answer as one, as the gateway puts them together."""
    if not chunks:
        return None
    fields = merge_fields([chunk.fields for chunk in chunks if chunk.fields])
    text, tokens = "".join(chunk.text for chunk in chunks), sum(chunk.tokens for chunk in chunks)
    return TokenChunk(text, tokens, fields or None, chunks[0].index)


def told(outcome: "Outcome") -> object:
    """What is told, however many pieces it comes in; each of them counts as a token at least."""
    if not isinstance(outcome, TokenChunk):
        return outcome
    return outcome.text, merge_fields([outcome.fields or {}]), outcome.index


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


async def in_pieces(data: bytes, piece_bytes: int, **how: Any) -> Outcome:
    reader = ChatDecoder("acme")
    try:
        async with asyncio.timeout(5):
            return await one(reader, ServerSentEvent(data), piece_bytes=piece_bytes, **how)
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

    chunk: Any = await one(OllamaDecoder("acme"), ServerSentEvent(data), piece_bytes=16)

    assert chunk.text == 'a\n"' * 20
    assert json.loads(chunk.fields["tool_calls"][0]["function"]["arguments"]) == arguments


async def test_what_a_reader_keeps_for_later_is_told_as_it_was_sent():
    # found by the fuzzer: a finish reason of that length came out as what stood in for it
    reader = GeminiDecoder("acme")
    part = {"text": "a" * 100, "thoughtSignature": "c2ln" * 100}
    candidate = {"content": {"parts": [part]}, "finishReason": "NO_SUCH_" * 20}
    data = json.dumps({"candidates": [candidate]}).encode()

    chunk = await one(reader, ServerSentEvent(data), piece_bytes=64)

    other = GeminiDecoder("acme")
    assert told(chunk) == told(other.take(ServerSentEvent(data)))
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

    chunk = await one(OllamaDecoder("acme", new_id=lambda: "made"), data, piece_bytes=64)

    whole = OllamaDecoder("acme", new_id=lambda: "made").take(data)
    assert told(chunk) == told(whole)


MAX_BLOCKS = 6_000
"""Python's own objects that one step may make or free: about a millisecond's worth."""


class Noted:
    """A reader of any kind; notes the sizes of what it reads at once."""

    def __init__(self, reader: Reader):
        self._reader = reader
        self.sizes: list[int] = []
        self.large = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def take(self, event: ServerSentEvent) -> TokenChunk | None:
        self.sizes.append(len(event.data))
        self._reader.large = self.large
        return self._reader.take(event)


@pytest.mark.parametrize("name", ALL)
async def test_no_step_of_a_large_event_reads_much_or_makes_much(name: str):
    large = ALL[name]
    event, noted = large.event(400_000), Noted(large.reader())
    reader: Any = noted
    steps: list[int] = []
    over = False

    async def count() -> None:
        before = sys.getallocatedblocks()
        while not over:
            await asyncio.sleep(0)
            steps.append(abs(sys.getallocatedblocks() - before))
            before = sys.getallocatedblocks()

    async with asyncio.timeout(5):
        counting = asyncio.create_task(count())
        with contextlib.suppress(OrchestratorError):
            async for _ in take_large(reader, event):
                pass
        over = True
        await counting

    assert max(noted.sizes, default=0) < (2 * PIECE_BYTES if name in EVENTS else SUMMARY_BYTES)
    assert max(steps) < MAX_BLOCKS
    if name in EVENTS:
        assert len(steps) >= len(event.data) // PIECE_BYTES


CLOSED = ServerSentEvent(b'{"type":"content_block_stop","index":0}')
"""After which a message's block has been told."""


@pytest.mark.parametrize("name", EVENTS)
async def test_an_event_of_any_kind_in_pieces_is_what_it_is_at_once(name: str):
    large = EVENTS[name]
    event, whole, reader = large.event(80_000), large.reader(), large.reader()

    found = await pieces(reader, event)
    found += pieces_of(reader, reader.take(CLOSED))

    expected = [*pieces_of(whole, whole.take(event)), *pieces_of(whole, whole.take(CLOSED))]
    for index in (0, 1):
        ours, theirs = (
            together([chunk for chunk in chunks if chunk.index == index])
            for chunks in (found, expected)
        )
        assert told(ours) == told(theirs)
    assert (reader.finish_reason, reader.done) == (whole.finish_reason, whole.done)


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_event_has_the_error_in_pieces_that_it_has_at_once(name: str):
    large = BROKEN[name]
    event, reader = large.event(80_000), large.reader()
    with pytest.raises(OrchestratorError) as caught:
        reader.take(event)

    with pytest.raises(type(caught.value)) as found:
        await pieces(large.reader(), event)

    assert str(found.value) == str(caught.value)
    assert found.value.upstream_code == caught.value.upstream_code


@pytest.mark.live
@pytest.mark.parametrize("name", ["chat parts without their end", "chat error with a long text"])
async def test_a_large_event_that_the_end_cut_off_counts_only_if_it_is_an_error(name: str):
    event = BROKEN[name].data(80_000)
    async with (
        SseServer([Send(head() + framed(delta("Hi") + b"data: " + event)), Close()]) as server,
        asking(server) as asker,
    ):
        found = await asker.ask()

    error = UpstreamOverloadedError if "error" in name else UpstreamTruncatedError
    assert found.text == "Hi"
    assert type(found.error) is error


async def test_thinking_that_a_large_block_begins_with_is_told_once_and_signed_whole():
    # it was read at once, for 70 ms, because it is told again when the block ends
    thought, reader = "hm, " * 25_000, MessageDecoder("acme")
    block = {"type": "thinking", "thinking": thought, "signature": "s"}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    more = {"type": "thinking_delta", "thinking": "yes"}
    delta = {"type": "content_block_delta", "index": 0, "delta": more}

    told = await pieces(reader, ServerSentEvent(json.dumps(start).encode()))
    reader.take(ServerSentEvent(json.dumps(delta).encode()))
    closed = reader.take(CLOSED)

    reasoning: list[Any] = [(chunk.fields or {})["reasoning_content"] for chunk in told]
    assert max(map(len, reasoning)) <= PIECE_BYTES
    assert "".join(reasoning) == thought
    whole = {"type": "thinking", "thinking": thought + "yes", "signature": "s"}
    assert closed == TokenChunk("", 0, {"thinking_blocks": [whole]})


async def test_input_that_a_large_block_begins_with_is_told_once_as_its_arguments():
    given, reader = {"a": [1, {"b": 'c"\n'}] * 9_000}, MessageDecoder("acme")
    block = {"type": "tool_use", "id": "t", "name": "f", "input": given}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    again = {"type": "input_json_delta", "partial_json": json.dumps(given)}
    delta = {"type": "content_block_delta", "index": 0, "delta": again}

    told = together(await pieces(reader, ServerSentEvent(json.dumps(start).encode())))

    assert told is not None
    fields: Any = told.fields
    (call,) = fields["tool_calls"]
    assert (call["id"], call["function"]["name"]) == ("t", "f")
    assert json.loads(call["function"]["arguments"]) == given
    assert reader.take(ServerSentEvent(json.dumps(delta).encode())) is None
    assert reader.take(CLOSED) is None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.text('a"\\,[]{}: é', max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("k[,", max_size=3), inner),
    max_leaves=6,
)


PLACES = st.tuples(st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3))


@given(items=st.lists(VALUES, max_size=20), place=PLACES, piece_bytes=st.integers(16, 60))
@settings(deadline=None, max_examples=150)
async def test_an_event_spoilt_anywhere_has_the_same_outcome_when_nobody_reads_it_whole(
    items: list[object], place: tuple[float, int, bytes], piece_bytes: int
):
    delta = {"content": "a" * 90, "x": {"y": items}}
    data = json.dumps({"choices": [{"delta": delta}], "own": items}).encode()
    at, removed, added = int(place[0] * len(data)), place[1], place[2]
    data = data[:at] + added + data[at + removed :]

    expected = at_once(data)
    found = await in_pieces(data, piece_bytes, large_bytes=0)

    if isinstance(expected, tuple):
        assert isinstance(found, tuple)
        assert found[0] is expected[0]
    else:
        assert told(found) == told(expected)


ESTIMATED = [
    name for name in EVENTS if not re.search("of its own|many members|that nobody reads", name)
]
"""All but those whose size is in no text."""


@pytest.mark.parametrize("name", ESTIMATED)
async def test_tokens_that_are_counted_here_are_the_same_however_an_event_is_read(name: str):
    # a piece is a token at least, of a thousand that it may have, and so is a whole event: the
    # length of the texts says more than either, and a provider's own usage more than that
    large = EVENTS[name]
    event, whole, reader = large.event(80_000), large.reader(), large.reader()
    at_once = [*pieces_of(whole, whole.take(event)), *pieces_of(whole, whole.take(CLOSED))]
    in_pieces = [*await pieces(reader, event), *pieces_of(reader, reader.take(CLOSED))]

    assert await estimated(in_pieces) == await estimated(at_once)
    assert sum(chunk.tokens for chunk in in_pieces) >= sum(chunk.tokens for chunk in at_once)


async def estimated(chunks: Sequence[TokenChunk]) -> int:
    """The tokens of an answer that ends without a usage, as they are counted here."""

    async def answer() -> AsyncGenerator[TokenChunk | Finished]:
        for chunk in chunks:
            yield chunk
        yield Finished(FinishReason.STOP)

    events = [event async for event in with_usage(answer(), a_request(), "acme")]
    ending = events[-1]
    assert isinstance(ending, Finished)
    assert ending.usage is not None
    return ending.usage.completion_tokens


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
        called = together((await other.ask()).chunks)

    assert called is not None
    fields: Any = called.fields

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

    assert told(chunk) == told(at_once(data))
    assert isinstance(chunk, TokenChunk)
    assert chunk.tokens == 3000
    assert turns >= len(data) // (16 << 10)
    assert max(reader.sizes) < len(data) // 10


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
