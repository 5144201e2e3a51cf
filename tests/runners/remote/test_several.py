"""Several answers to one request: each is read on its own, and the stream until all are whole."""

import gzip
import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import (
    InvalidRequestError,
    UpstreamProtocolError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.request import SamplingParams
from orchestrator.runners.remote import anthropic, ollama, openai, responses
from orchestrator.runners.remote.anthropic_request import AnthropicSettings
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.reader import Reader, pieces_of
from orchestrator.runners.remote.settings import RemoteSettings
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import Close, Reset, Send, SseServer, Step, answer, event, head
from tests.runners.remote import gemini_wire
from tests.runners.remote.asking import a_request, asking
from tests.runners.remote.cutting import check_every_cut

TWO = SamplingParams(n=2)
DONE = ServerSentEvent(b"[DONE]")
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def choice(index: int, content: str | None = None, **members: object) -> dict[str, object]:
    delta = {} if content is None else {"content": content}
    return {"index": index, "delta": delta, "finish_reason": None} | members


def chunk(*choices: object, **members: object) -> ServerSentEvent:
    return ServerSentEvent(json.dumps({"choices": choices, **members}).encode())


def read(reader: Reader, *events: ServerSentEvent) -> list[TokenChunk]:
    return [piece for one in events for piece in pieces_of(reader, reader.take(one))]


def test_pieces_of_answers_that_take_turns_keep_their_places():
    reader = ChatDecoder("acme", answers=2)

    told = read(
        reader,
        chunk(choice(0, "a")),
        chunk(choice(1, "b")),
        chunk(choice(0, finish_reason="stop")),
        chunk(choice(1, "c")),
    )

    assert told == [TokenChunk("a"), TokenChunk("b", index=1), TokenChunk("c", index=1)]
    assert reader.finish_reason is None
    assert read(reader, chunk(choice(1, finish_reason="length"))) == []
    assert reader.end() == Finished(STOP, None, (LENGTH,))
    assert reader.tokens == 3


def test_one_event_may_bring_pieces_of_all_answers_and_their_usage():
    reader = ChatDecoder("acme", answers=3)
    usage = {"prompt_tokens": 3, "completion_tokens": 5}

    told = read(
        reader,
        chunk(choice(2, "c"), choice(0), choice(1, "b")),
        chunk(*(choice(index, finish_reason="stop") for index in range(3)), usage=usage),
        DONE,
    )

    assert told == [TokenChunk("c", index=2), TokenChunk("b", index=1)]
    counted = Usage(prompt_tokens=3, completion_tokens=5)
    assert reader.end() == Finished(STOP, counted, (STOP, STOP))


def test_calls_of_tools_are_numbered_apart_for_each_answer():
    reader = ChatDecoder("acme", answers=2)
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}

    told = read(
        reader,
        chunk(choice(0, delta={"tool_calls": [call]})),
        chunk(choice(1, delta={"tool_calls": [{**call, "id": "d"}]})),
    )

    assert [(piece.index, piece.fields) for piece in told] == [
        (0, {"tool_calls": [{**call, "index": 0}]}),
        (1, {"tool_calls": [{**call, "id": "d", "index": 0}]}),
    ]


def test_answers_that_nobody_asked_for_are_left_out():
    reader = ChatDecoder("acme", answers=2)

    told = read(reader, chunk(choice(2, "x"), choice(-1, "y"), choice(1, "b")))

    assert told == [TokenChunk("b", index=1)]


def test_an_answer_without_its_finish_reason_is_a_truncated_stream():
    reader = ChatDecoder("acme", answers=2)
    read(reader, chunk(choice(0, "a", finish_reason="stop"), choice(1, "b")), DONE)

    with pytest.raises(UpstreamTruncatedError):
        reader.end()


def test_a_provider_that_takes_no_notice_of_n_is_the_requests_fault():
    reader = ChatDecoder("acme", answers=2)
    read(reader, chunk(choice(0, "a", finish_reason="stop")), DONE)

    with pytest.raises(InvalidRequestError, match="1 of 2 answers") as raised:
        reader.end()

    assert raised.value.param == "n"


def test_one_answer_that_broke_off_breaks_them_all():
    reader = ChatDecoder("acme", answers=2)
    read(reader, chunk(choice(0, "a", finish_reason="stop")))

    with pytest.raises(UpstreamServerError):
        read(reader, chunk(choice(1, finish_reason="error")))


def test_a_delta_that_is_none_is_a_broken_answer_wherever_it_stands():
    with pytest.raises(UpstreamProtocolError):
        read(ChatDecoder("acme", answers=2), chunk(choice(1, delta={"content": 5})))


ANSWERS = st.lists(
    st.lists(st.sampled_from(["a", "你", "", "\n"]), max_size=5), min_size=2, max_size=4
)


@given(answers=ANSWERS, turns=st.randoms(use_true_random=False), together=st.booleans())
@settings(deadline=None)
def test_each_of_several_answers_is_what_it_is_alone(
    answers: list[list[str]], turns: random.Random, together: bool
):
    told = [
        (index, [choice(index, text) for text in texts] + [choice(index, finish_reason="stop")])
        for index, texts in enumerate(answers)
    ]
    order = [index for index, choices in told for _ in choices]
    turns.shuffle(order)
    left = {index: iter(choices) for index, choices in told}
    choices = [next(left[index]) for index in order]
    events = [chunk(*choices)] if together else [chunk(one) for one in choices]
    reader = ChatDecoder("acme", answers=len(answers))

    found = read(reader, *events)

    for index, texts in enumerate(answers):
        assert [piece.text for piece in found if piece.index == index] == list(filter(None, texts))
    assert reader.end().finish_reasons == (STOP,) * len(answers)


def gemini(*candidates: dict[str, object], **members: object) -> bytes:
    return event({"candidates": candidates, **members})


def candidate(index: int, text: str, **members: object) -> dict[str, object]:
    return {"index": index, "content": {"parts": [{"text": text}]}, **members}


GEMINI = (
    gemini(candidate(0, "a"), candidate(1, "b")),
    gemini(candidate(1, "c", finishReason="MAX_TOKENS"), **gemini_wire.counted(3)),
    gemini(candidate(0, "d", finishReason="STOP"), **gemini_wire.counted(4)),
)


@pytest.mark.live
async def test_gemini_is_asked_for_candidates_and_each_is_read():
    async with SseServer(answer(*GEMINI)) as server, gemini_wire.asking(server) as asker:
        found = await asker.ask(sampling=TWO)

    sent = server.requests[0].json["generationConfig"]
    assert sent == {"candidateCount": 2}
    assert [(piece.index, piece.text) for piece in found.chunks] == [
        (0, "a"), (1, "b"), (1, "c"), (0, "d")
    ]  # fmt: skip
    usage = Usage(prompt_tokens=11, completion_tokens=4)
    assert found.ending == Finished(STOP, usage, (LENGTH,))


def test_candidates_that_come_as_one_list_stay_apart():
    reader = GeminiDecoder("acme", answers=2)
    body = b"[" + b",".join(one[6:].strip() for one in GEMINI) + b"]"

    found = pieces_of(reader, reader.take_whole(body))

    assert [(piece.index, piece.text) for piece in found] == [(0, "ad"), (1, "bc")]
    assert reader.end().finish_reasons == (STOP, LENGTH)


RECORDED = (
    event({"choices": [choice(0, "Hel"), choice(1, "你")]}),
    event({"choices": [choice(1, "好 😀")]}),
    event({"choices": [choice(0, "lo", finish_reason="stop")]}),
    event({"choices": [choice(1, finish_reason="length")]}),
    event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}),
    b"data: [DONE]\n\n",
)


def said(recorded: Sequence[bytes]) -> list[ServerSentEvent]:
    return [ServerSentEvent(raw[6:].strip()) for raw in recorded]


@pytest.mark.live
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_two_answers_cut_at_every_byte_are_an_answer_only_if_both_are_whole(end: Step):
    def reader() -> Reader:
        return ChatDecoder("acme", answers=2)

    await check_every_cut(RECORDED, said(RECORDED), reader, end, request={"sampling": TWO})


@pytest.mark.live
@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_two_candidates_cut_at_every_byte_are_an_answer_only_if_both_are_whole(end: Step):
    def reader() -> Reader:
        return GeminiDecoder("acme", answers=2)

    await check_every_cut(
        GEMINI, said(GEMINI), reader, end,
        asking=gemini_wire.asking, request={"sampling": TWO},
    )  # fmt: skip


@pytest.mark.live
async def test_a_compressed_stream_of_two_answers_cut_at_every_byte_is_never_a_part_of_them():
    body = gzip.compress(b"".join(RECORDED))
    start = head(framing="connection: close", extra=["content-encoding: gzip"])
    cuts = range(len(body) + 1)
    texts = [(0, "Hel"), (1, "你"), (1, "好 😀"), (0, "lo")]

    async with (
        SseServer(*([Send(start + body[:cut]), Close()] for cut in cuts)) as server,
        asking(server) as asker,
    ):
        for cut in cuts:
            found = await asker.ask(sampling=TWO)

            told = [(piece.index, piece.text) for piece in found.chunks]
            assert told == texts[: len(told)], cut
            assert (found.ending is None) == (found.error is not None)
            assert found.ending is None or told == texts, cut
            assert cut < len(body) or found.ending is not None


@pytest.mark.live
async def test_a_whole_completion_of_two_choices_is_two_answers():
    choices = [
        {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        for index, text in enumerate("ab")
    ]
    body = json.dumps({"choices": choices}).encode()
    length = f"content-length: {len(body)}"
    script = [Send(head(content_type="application/json", framing=length) + body)]

    async with SseServer(script) as server, asking(server) as asker:
        found = await asker.ask(sampling=TWO)

    assert server.requests[0].json["n"] == 2
    assert found.chunks == [TokenChunk("a"), TokenChunk("b", index=1)]
    assert found.ending == Finished(STOP, None, (STOP,))


@pytest.mark.live
async def test_a_large_event_with_pieces_of_two_answers_is_read_whole():
    texts = ["a\n" * 200_000, "你" * 200_000]
    large = event({"choices": [choice(index, text) for index, text in enumerate(texts)]})
    rest = event({"choices": [choice(index, finish_reason="stop") for index in range(2)]})

    async with SseServer(answer(large, rest)) as server, asking(server) as asker:
        found = await asker.ask(sampling=TWO)

    told = ["".join(one.text for one in found.chunks if one.index == place) for place in range(2)]
    assert told == texts


def refusing(kind: Callable[..., Any], make: Callable[..., Any], **given: Any) -> Any:
    return asking("http://127.0.0.1:1/v1", kind=kind, make=make, **given)


SINGLE: dict[str, tuple[Callable[..., Any], Callable[..., Any], dict[str, object]]] = {
    "anthropic": (AnthropicSettings, anthropic.factory, {}),
    "ollama": (RemoteSettings, ollama.factory, {}),
    "openai-responses": (OpenAISettings, responses.factory, {}),
    "a preset that has no n": (OpenAISettings, openai.factory, {"unsupported": ("n",)}),
}


@pytest.mark.parametrize("provider", SINGLE)
async def test_a_provider_that_gives_one_answer_refuses_before_it_is_asked(provider: str):
    kind, make, given = SINGLE[provider]

    async with refusing(kind, make, **given) as asker:
        with pytest.raises(InvalidRequestError) as refusal:
            asker.factory.inspect(a_request(sampling=TWO))

    assert refusal.value.param == "n"


@pytest.mark.parametrize("provider", SINGLE)
async def test_where_fields_may_be_dropped_one_answer_is_asked_for(provider: str):
    kind, make, given = SINGLE[provider]

    async with refusing(kind, make, drop_params=True, **given) as asker:
        assert asker.factory.inspect(a_request(sampling=TWO)) is None


@pytest.mark.live
async def test_one_answer_instead_of_several_is_whole_with_its_own_finish_reason():
    events = (event({"choices": [choice(0, "a", finish_reason="stop")]}), b"data: [DONE]\n\n")

    async with (
        SseServer(answer(*events)) as server,
        asking(server, drop_params=True, unsupported=("n",)) as asker,
    ):
        found = await asker.ask(sampling=TWO)

    assert "n" not in server.requests[0].json
    assert found.ending == Finished(STOP)
