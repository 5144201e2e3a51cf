"""The Responses API: what is read, and that OpenAI's own client reads the same."""

import json
from collections.abc import Sequence
from typing import Any

import openai
import pytest

from orchestrator.errors import (
    ContentFilteredError,
    InvalidRequestError,
    OrchestratorError,
    UpstreamProtocolError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.gateway.answer import merge_fields
from orchestrator.runners.remote.reader import take_last
from orchestrator.runners.remote.responses import ResponsesDecoder, factory
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import Close, Reset, SseServer, Step, answer, refusal
from tests.runners.remote.asking import Answer, asking
from tests.runners.remote.cutting import check_every_cut

pytestmark = pytest.mark.live

USAGE = {
    "input_tokens": 37,
    "input_tokens_details": {"cached_tokens": 8, "cache_write_tokens": 0},
    "output_tokens": 11,
    "output_tokens_details": {"reasoning_tokens": 3},
    "total_tokens": 48,
}
COUNTED = Usage(prompt_tokens=37, completion_tokens=11, cached_tokens=8, reasoning_tokens=3)


def response(status: str, **others: Any) -> dict[str, Any]:
    return {
        "id": "resp_67c9",
        "object": "response",
        "created_at": 1741294021,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "model": "gpt-5-mini",
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **others,
    }


def told(kind: str, **others: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **others}


def wire(events: Sequence[dict[str, Any]]) -> list[bytes]:
    return [
        f"event: {event['type']}\ndata: ".encode()
        + json.dumps({"sequence_number": number, **event}, ensure_ascii=False).encode()
        + b"\n\n"
        for number, event in enumerate(events)
    ]


def text_delta(text: str, **others: Any) -> dict[str, Any]:
    place: dict[str, Any] = {
        "item_id": "msg_1",
        "output_index": 1,
        "content_index": 0,
        "logprobs": [],
    }
    return told("output_text.delta", delta=text, **{**place, **others})


def call_delta(place: int, arguments: str) -> dict[str, Any]:
    return told(
        "function_call_arguments.delta",
        delta=arguments,
        item_id=f"fc_{place}",
        output_index=place,
    )


def call_item(place: int, name: str, arguments: str = "") -> dict[str, Any]:
    called = {"id": f"fc_{place}", "call_id": f"call_{place}", "name": name}
    return {"type": "function_call", "status": "completed", **called, "arguments": arguments}


BEGUN = [told("created", response=response("in_progress")),
         told("in_progress", response=response("in_progress"))]  # fmt: skip
TEXT = [
    *BEGUN,
    told("output_item.added", output_index=0,
         item={"id": "rs", "type": "reasoning", "summary": []}),
    told("reasoning_summary_part.added", item_id="rs", output_index=0, summary_index=0,
         part={"type": "summary_text", "text": ""}),
    told("reasoning_summary_text.delta", item_id="rs", output_index=0, summary_index=0,
         delta="Hm."),
    told("reasoning_summary_text.done", item_id="rs", output_index=0, summary_index=0, text="Hm."),
    told("output_item.added", output_index=1, item={
        "id": "msg_1", "type": "message", "status": "in_progress", "role": "assistant",
        "content": []}),
    told("content_part.added", item_id="msg_1", output_index=1, content_index=0,
         part={"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
    text_delta("Once"),
    text_delta(" upon\r\n 你好 \u2028"),
    told("output_text.done", item_id="msg_1", output_index=1, content_index=0, text="all",
         logprobs=[]),
    told("completed", response=response("completed", usage=USAGE)),
]  # fmt: skip
TOOLS = [
    *BEGUN,
    told("output_item.added", output_index=0, item=call_item(0, "f")),
    call_delta(0, '{"a"'),
    told("output_item.added", output_index=1, item=call_item(1, "g")),
    call_delta(1, "{}"),
    call_delta(0, ": 1}"),
    told("function_call_arguments.done", item_id="fc_0", output_index=0, name="f",
         arguments='{"a": 1}'),
    told("output_item.done", output_index=0, item=call_item(0, "f", '{"a": 1}')),
    told("output_item.done", output_index=1, item=call_item(1, "g", "{}")),
    told("completed", response=response("completed", usage=USAGE)),
]  # fmt: skip
REFUSED = [
    *BEGUN,
    *(told("refusal.delta", delta=text, item_id="m", output_index=0, content_index=0)
      for text in ("I", " can't")),
    told("incomplete", response=response(
        "incomplete", incomplete_details={"reason": "content_filter"}, usage=USAGE)),
]  # fmt: skip


async def asked(server: SseServer, **settings: Any) -> Answer:
    async with asking(server, make=factory, **settings) as asker:
        return await asker.ask()


async def by_client(server: SseServer) -> tuple[dict[str, str], list[tuple[str, str, str]], Any]:
    """Texts by the kind of their delta, calls and the last response, as the client has them."""
    texts: dict[str, str] = {}
    calls: list[tuple[str, str, str]] = []
    last: Any = None
    async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        stream = await client.responses.create(model="m", input="hi", stream=True)
        async for event in stream:
            match event.type:
                case "response.output_text.delta":
                    texts["text"] = texts.get("text", "") + event.delta
                case "response.refusal.delta":
                    texts["refusal"] = texts.get("refusal", "") + event.delta
                case "response.reasoning_summary_text.delta":
                    texts["reasoning_content"] = texts.get("reasoning_content", "") + event.delta
                case "response.output_item.done" if event.item.type == "function_call":
                    calls.append((event.item.call_id, event.item.name, event.item.arguments))
                case "response.completed" | "response.incomplete":
                    last = event.response
                case _:
                    pass
    return texts, calls, last


@pytest.mark.parametrize("events", [TEXT, TOOLS, REFUSED], ids=["text", "tools", "refused"])
async def test_the_official_client_and_the_runner_read_the_same(events: list[dict[str, Any]]):
    async with SseServer(answer(*wire(events))) as server:
        texts, calls, last = await by_client(server)
        found = await asked(server)

    fields = merge_fields([chunk.fields for chunk in found.chunks if chunk.fields])
    ours: Any = fields.pop("tool_calls", [])
    assert {**fields, **({"text": found.text} if found.text else {})} == texts
    assert [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in ours
    ] == calls
    assert found.ending is not None
    assert found.ending.usage == COUNTED
    assert last.usage.input_tokens == COUNTED.prompt_tokens
    assert (last.status == "incomplete") == (
        found.ending.finish_reason is FinishReason.CONTENT_FILTER
    )


async def test_an_answer_that_calls_tools_says_so_at_its_end():
    async with SseServer(answer(*wire(TOOLS)), answer(*wire(TEXT))) as server:
        assert (await asked(server)).ending == Finished(FinishReason.TOOL_CALLS, COUNTED)
        assert (await asked(server)).ending == Finished(FinishReason.STOP, COUNTED)


@pytest.mark.parametrize("end", [Close(), Reset()], ids=["fin", "reset"])
async def test_a_stream_cut_at_any_byte_loses_no_token_and_is_never_an_answer(end: Step):
    usage = {"input_tokens": 37, "output_tokens": 11}
    short = [told("output_text.delta", delta=text) for text in ("Once", " 你好 😀")]
    short += [TOOLS[2], told("function_call_arguments.delta", output_index=0, delta="{}")]
    short += [told("completed", response={"status": "completed", "usage": usage}), told("later")]
    events = [
        ServerSentEvent(raw.split(b"data: ")[1].strip(), raw[7:].split(b"\n")[0])
        for raw in wire(short)
    ]

    await check_every_cut(wire(short), events, lambda: ResponsesDecoder("acme"), end, make=factory)


def read(*events: dict[str, Any]) -> tuple[list[TokenChunk], ResponsesDecoder]:
    decoder = ResponsesDecoder("acme")
    sent = [ServerSentEvent(json.dumps(event).encode()) for event in events]
    chunks = [chunk for event in sent if (chunk := decoder.take(event)) is not None]
    return chunks, decoder


def calls_in(chunks: list[TokenChunk]) -> Any:
    return merge_fields([chunk.fields for chunk in chunks if chunk.fields]).get("tool_calls")


def test_arguments_that_come_whole_count_once():
    added = told("output_item.added", output_index=4, item=call_item(4, "f"))
    whole = told("function_call_arguments.done", output_index=4, arguments='{"a": 1}')
    done = told("output_item.done", output_index=4, item=call_item(4, "f", '{"a": 1}'))
    function = {"name": "f", "arguments": '{"a": 1}'}

    for events in ([added, whole, done], [added, done], [done], [done, whole],
                   [added, call_delta(4, '{"a": 1}'), whole, done]):  # fmt: skip
        (call,) = calls_in(read(*events)[0])
        assert call == {"id": "call_4", "type": "function", "function": function}


def test_logprobs_and_annotations_come_in_a_chat_completions_shape():
    logprobs: list[Any] = [{"token": "a", "logprob": -1.0, "top_logprobs": []}]
    cited = {"type": "url_citation", "url": "http://a.test", "start_index": 0}

    chunks, _ = read(
        text_delta("a", logprobs=logprobs), told("output_text.annotation.added", annotation=cited)
    )

    assert chunks == [
        TokenChunk("a", 1, {"logprobs": {"content": logprobs, "refusal": None}}),
        TokenChunk("", 1, {"annotations": [
            {"type": "url_citation",
             "url_citation": {"url": "http://a.test", "start_index": 0}}]}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "meant"),
    [
        (told("completed", response=response("completed")), FinishReason.STOP),
        (told("completed"), FinishReason.STOP),
        (told("incomplete"), FinishReason.LENGTH),
        (told("incomplete", response=response("incomplete", incomplete_details={
            "reason": "max_output_tokens"})), FinishReason.LENGTH),
        (told("incomplete", response=response("incomplete", incomplete_details={
            "reason": "content_filter"})), FinishReason.CONTENT_FILTER),
    ],
)  # fmt: skip
def test_every_way_to_end_has_its_finish_reason(last: dict[str, Any], meant: FinishReason):
    _, decoder = read(text_delta("a"), last)

    assert decoder.done
    assert decoder.end() == Finished(meant, None)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (told("failed", response=response("failed", error={
            "code": "rate_limit_exceeded", "message": "boom"})), UpstreamRateLimitedError),
        (told("failed", response=response("failed", error={
            "code": "server_error", "message": "boom"})), UpstreamServerError),
        (told("failed", response=response("failed", error={
            "code": "image_too_small", "message": "boom"})), InvalidRequestError),
        (told("failed", response=response("failed", error={
            "code": "bio_policy", "message": "boom"})), ContentFilteredError),
        (told("failed"), UpstreamServerError),
        ({"type": "error", "code": "server_error", "message": "boom", "param": None},
         UpstreamServerError),
        ({"type": "error", "error": {"type": "rate_limit_error", "message": "boom"}},
         UpstreamRateLimitedError),
        ({"error": {"message": "boom"}}, UpstreamServerError),
    ],
)  # fmt: skip
def test_every_shape_of_a_failure_is_a_typed_error(
    event: dict[str, Any], error: type[OrchestratorError]
):
    with pytest.raises(error) as caught:
        read(text_delta("a"), event)

    assert type(caught.value) is error
    assert "boom" in str(caught.value) or event == told("failed")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.something.new", "delta": "x"},
        {"type": "response.web_search_call.searching", "item_id": "w"},
        {"type": "keepalive"},
        {},
        told("output_item.added", output_index=0, item={"type": "web_search_call", "id": "w"}),
        told("function_call_arguments.delta", output_index=9, delta="{}"),
        text_delta(""),
        told("output_text.delta", delta=None),
    ],
)
def test_what_has_no_place_in_a_chat_completion_is_ignored(event: dict[str, Any]):
    chunks, decoder = read(event)

    assert chunks == []
    with pytest.raises(UpstreamTruncatedError):
        decoder.end()


async def test_a_whole_answer_in_place_of_a_stream_is_taken_as_it_is():
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]},
        {"type": "message", "content": [{"type": "output_text", "text": "Hello"}]},
        call_item(2, "f", "{}"),
    ]
    failed = response("failed", error={"code": "server_error", "message": "boom"})
    async with SseServer(
        refusal(200, response("completed", output=output, usage=USAGE)), refusal(200, failed),
        refusal(200, response("queued")), refusal(200, [1]),
    ) as server:  # fmt: skip
        found = await asked(server)
        errors = [type((await asked(server)).error) for _ in range(3)]

    assert found.text == "Hello"
    assert found.chunks[0].fields is not None
    assert found.chunks[0].fields["reasoning_content"] == "Hm."
    assert found.ending == Finished(FinishReason.TOOL_CALLS, COUNTED)
    assert errors == [UpstreamServerError, UpstreamTruncatedError, UpstreamProtocolError]


def test_an_event_named_error_is_one_whatever_it_says():
    decoder = ResponsesDecoder("acme")

    with pytest.raises(UpstreamServerError, match="boom"):
        decoder.take(ServerSentEvent(b'{"message": "boom"}', b"error"))


@pytest.mark.parametrize("usage", ["many", {"input_tokens": "x"}, {"input_tokens": 0}, None])
def test_a_usage_that_nobody_counted_stays_absent(usage: object):
    _, decoder = read(told("completed", response={"status": "completed", "usage": usage}))

    assert decoder.end() == Finished(FinishReason.STOP, None)


def test_a_number_that_no_model_can_have_counted_is_left_out():
    usage = {"input_tokens": -7, "output_tokens": 3, "output_tokens_details": {
        "reasoning_tokens": 1 << 60}}  # fmt: skip

    _, decoder = read(told("completed", response={"status": "completed", "usage": usage}))

    assert decoder.end().usage == Usage(prompt_tokens=0, completion_tokens=3)


@pytest.mark.parametrize(
    "kind",
    [
        "output_text.delta",
        "refusal.delta",
        "reasoning_text.delta",
        "function_call_arguments.delta",
    ],
)
def test_a_delta_that_is_no_text_is_a_broken_answer_and_no_silent_loss(kind: str):
    with pytest.raises(UpstreamProtocolError, match="acme sent no delta of a response"):
        read(told(kind, delta=5))


def test_an_annotation_without_content_is_no_chunk():
    assert read(told("output_text.annotation.added", annotation=None))[0] == []


def test_an_event_that_is_no_json_object_is_a_typed_error():
    decoder = ResponsesDecoder("acme")

    for data in (b"{broken", b'{"type": 7, "x": 1}', b'"text of some length"', b"\xff" * 20):
        assert take_last(decoder, ServerSentEvent(data)) is None
        with pytest.raises(UpstreamProtocolError, match="no event of a response"):
            decoder.take(ServerSentEvent(data))
    assert decoder.take(ServerSentEvent(b"")) is None
    assert decoder.take(ServerSentEvent(b"[DONE]")) is None
    assert decoder.done
