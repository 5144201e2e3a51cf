import asyncio
import contextlib
import json
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import (
    ContentFilteredError,
    ContextLengthExceededError,
    InvalidRequestError,
    OrchestratorError,
    RequestTooLargeError,
    UpstreamAuthenticationError,
    UpstreamNotFoundError,
    UpstreamOverloadedError,
    UpstreamPermissionError,
    UpstreamProtocolError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTimeoutError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.classify import classify
from orchestrator.runners.lease import Step
from orchestrator.runners.remote.anthropic_answer import REFUSALS, MessageDecoder
from orchestrator.runners.remote.reader import take_last
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import (
    Script,
    Send,
    SseServer,
    Stall,
    Wait,
    answer,
    framed,
    head,
    refusal,
)
from tests.runners.remote.anthropic_wire import (
    CALLS,
    HELLO,
    PING,
    STOP,
    asking,
    block_delta,
    block_start,
    block_stop,
    message_delta,
    message_start,
    named,
)
from tests.runners.remote.asking import Answer, a_lease, a_request


def sent(payload: object, name: bytes = b"") -> ServerSentEvent:
    return ServerSentEvent(json.dumps(payload).encode(), name)


def event(kind: str, **members: object) -> ServerSentEvent:
    return sent({"type": kind, **members}, kind.encode())


def opened(index: int, **block: object) -> ServerSentEvent:
    return event("content_block_start", index=index, content_block=block)


def delta(index: int, **members: object) -> ServerSentEvent:
    return event("content_block_delta", index=index, delta=members)


def closed(index: int) -> ServerSentEvent:
    return event("content_block_stop", index=index)


def finished(reason: str | None = "end_turn", **usage: object) -> ServerSentEvent:
    return event("message_delta", delta={"stop_reason": reason}, usage=usage)


def started(**usage: object) -> ServerSentEvent:
    return event("message_start", message={"content": [], "stop_reason": None, "usage": usage})


def read(*events: ServerSentEvent) -> tuple[list[TokenChunk], Finished]:
    decoder = MessageDecoder("acme")
    chunks = [chunk for one in events if (chunk := decoder.take(one)) is not None]
    return chunks, decoder.end()


def calls(index: int, **members: object) -> dict[str, object]:
    return {"tool_calls": [{"index": index, **members}]}


def test_texts_of_all_blocks_come_as_they_are_told():
    chunks, ending = read(
        started(input_tokens=3, output_tokens=1),
        opened(0, type="text", text=""),
        delta(0, type="text_delta", text="Hel"),
        delta(0, type="text_delta", text="lo"),
        closed(0),
        opened(1, type="text", text="!"),
        closed(1),
        finished(output_tokens=9),
        event("message_stop"),
    )

    assert chunks == [TokenChunk("Hel"), TokenChunk("lo"), TokenChunk("!")]
    assert ending == Finished(FinishReason.STOP, Usage(prompt_tokens=3, completion_tokens=9))


def test_thinking_is_told_as_it_comes_and_once_more_whole_and_signed():
    chunks, _ = read(
        opened(0, type="thinking", thinking="", signature=""),
        delta(0, type="thinking_delta", thinking="Let me "),
        delta(0, type="thinking_delta", thinking="see"),
        delta(0, type="signature_delta", signature="EqQB"),
        closed(0),
        opened(1, type="redacted_thinking", data="Emwk"),
        closed(1),
        opened(2, type="text", text="Yes"),
        finished(),
    )

    thought = {"type": "thinking", "thinking": "Let me see", "signature": "EqQB"}
    assert chunks == [
        TokenChunk("", 1, {"reasoning_content": "Let me "}),
        TokenChunk("", 1, {"reasoning_content": "see"}),
        TokenChunk("", 0, {"thinking_blocks": [thought]}),
        TokenChunk("", 0, {"thinking_blocks": [{"type": "redacted_thinking", "data": "Emwk"}]}),
        TokenChunk("Yes"),
    ]


def test_calls_of_tools_are_numbered_among_themselves_and_may_be_interleaved():
    chunks, ending = read(
        opened(0, type="text", text="So"),
        opened(1, type="tool_use", id="toolu_1", name="f", input={}),
        opened(2, type="tool_use", id="toolu_2", name="g", input={}),
        delta(1, type="input_json_delta", partial_json=""),
        delta(1, type="input_json_delta", partial_json='{"a"'),
        delta(2, type="input_json_delta", partial_json="{}"),
        delta(1, type="input_json_delta", partial_json=": 1}"),
        closed(1),
        closed(2),
        finished("tool_use"),
    )

    f = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": ""}}
    g = {"id": "toolu_2", "type": "function", "function": {"name": "g", "arguments": ""}}
    assert [chunk.fields for chunk in chunks] == [
        None,
        calls(0, **f),
        calls(1, **g),
        calls(0, function={"arguments": '{"a"'}),
        calls(1, function={"arguments": "{}"}),
        calls(0, function={"arguments": ": 1}"}),
    ]
    assert ending.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(("given", "told"), [({}, "{}"), ({"a": 1}, '{"a":1}'), (None, "{}")])
def test_a_call_whose_arguments_never_stream_still_has_some(given: object, told: str):
    chunks, _ = read(opened(0, type="tool_use", id="t", name="f", input=given), closed(0), STOPPED)

    assert chunks[-1].fields == calls(0, function={"arguments": told})


STOPPED = finished("tool_use")


def test_arguments_that_stream_count_and_not_what_the_call_began_with():
    chunks, _ = read(
        opened(0, type="tool_use", id="t", name="f", input={"a": 1}),
        delta(0, type="input_json_delta", partial_json='{"b": 2}'),
        closed(0),
        STOPPED,
    )

    assert [chunk.fields for chunk in chunks[1:]] == [calls(0, function={"arguments": '{"b": 2}'})]


@pytest.mark.parametrize(
    "kind", ["server_tool_use", "mcp_tool_use", "web_search_tool_result", "something_new"]
)
def test_what_the_apis_own_tools_do_is_no_part_of_the_answer(kind: str):
    chunks, _ = read(
        opened(0, type=kind, id="srvtoolu_1", name="web_search", input={}, content=[{"a": 1}]),
        delta(0, type="input_json_delta", partial_json='{"query": "x"}'),
        delta(0, type="something_new", text=None),
        closed(0),
        finished(),
    )

    assert chunks == []


def test_citations_travel_in_the_fields_untouched():
    citation = {"type": "char_location", "cited_text": "sky", "document_index": 0}

    chunks, _ = read(
        opened(0, type="text", text="", citations=[]),
        delta(0, type="citations_delta", citation=citation),
        finished(),
    )

    assert chunks == [TokenChunk("", 0, {"citations": [citation]})]


@pytest.mark.parametrize(
    "quiet",
    [
        event("ping"),
        event("something_new", delta={"text": 7}, index="first", usage=[]),
        event("something_new", delta=7, message=[], content_block=""),
        delta(0, type="something_new", text=["not", "a", "text"]),
        opened(0, type="something_new", text={"parts": []}),
        sent({}),
        started(),
        opened(0, type="text", text=""),
        delta(5, type="input_json_delta", partial_json="{}"),
        delta(5, type="thinking_delta", thinking="of a block that never began"),
        closed(7),
        event("content_block_delta", index=0),
        finished(None),
        ServerSentEvent(b""),
    ],
)
def test_an_event_that_carries_nothing_is_no_chunk(quiet: ServerSentEvent):
    decoder = MessageDecoder("acme")

    assert decoder.take(quiet) is None
    assert decoder.finish_reason is None
    assert decoder.tokens == 0


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("end_turn", FinishReason.STOP),
        ("stop_sequence", FinishReason.STOP),
        ("max_tokens", FinishReason.LENGTH),
        ("model_context_window_exceeded", FinishReason.LENGTH),
        ("pause_turn", FinishReason.LENGTH),
        ("tool_use", FinishReason.TOOL_CALLS),
        ("refusal", FinishReason.CONTENT_FILTER),
        ("something_new", FinishReason.STOP),
    ],
)
def test_every_finish_reason_is_told_in_one_of_four_words(told: str, meant: FinishReason):
    assert read(finished(told), event("message_stop"))[1].finish_reason is meant


def test_the_end_marker_alone_is_no_end_of_an_answer():
    with pytest.raises(UpstreamTruncatedError, match="though it sent its end marker"):
        read(started(input_tokens=3), event("message_stop"))


def test_what_the_cache_took_and_gave_belongs_to_the_prompt_and_counts_only_grow():
    _, ending = read(
        started(
            input_tokens=10,
            cache_creation_input_tokens=100,
            cache_read_input_tokens=1000,
            output_tokens=1,
        ),
        finished(output_tokens=20, output_tokens_details={"thinking_tokens": 7}),
        finished(output_tokens=15, input_tokens=10),
    )

    assert ending.usage == Usage(
        prompt_tokens=1110, completion_tokens=20, cached_tokens=1000, reasoning_tokens=7
    )


def test_a_number_that_no_model_can_have_counted_is_left_out():
    _, ending = read(
        started(input_tokens=-5, cache_read_input_tokens=10),
        finished(output_tokens=1 << 60, output_tokens_details={"thinking_tokens": -1}),
    )

    assert ending.usage == Usage(prompt_tokens=10, completion_tokens=0, cached_tokens=10)


@pytest.mark.parametrize(
    "broken",
    [
        event("content_block_delta", index=0, delta=5),
        event("content_block_delta", index=0, delta={"text": 5}),
        event("content_block_start", index=0, content_block=["text"]),
        event("content_block_stop", index="first"),
    ],
)
def test_a_block_of_the_wrong_shape_is_a_broken_answer_and_no_silent_loss(broken: ServerSentEvent):
    with pytest.raises(UpstreamProtocolError, match="acme sent no event of its API"):
        read(broken)


@pytest.mark.parametrize("usage", [None, {}, 7, {"output_tokens": "many"}, {"output_tokens": None}])
def test_a_usage_that_nobody_counted_stays_absent(usage: object):
    _, ending = read(event("message_delta", delta={"stop_reason": "end_turn"}, usage=usage))

    assert ending.usage is None


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", UpstreamOverloadedError),
        ("api_error", UpstreamServerError),
        ("rate_limit_error", UpstreamRateLimitedError),
        ("timeout_error", UpstreamTimeoutError),
        ("invalid_request_error", InvalidRequestError),
        ("something_new", UpstreamServerError),
    ],
)
@pytest.mark.parametrize("name", [b"error", b""])
def test_an_error_within_the_stream_is_classified_by_its_type(
    kind: str, error: type[OrchestratorError], name: bytes
):
    failure = {"type": "error", "error": {"type": kind, "message": "boom"}}

    with pytest.raises(error, match="boom"):
        read(finished(), sent(failure, name))


@pytest.mark.parametrize(
    ("status", "kind", "message", "error"),
    [
        (400, "invalid_request_error", "max_tokens: Field required", InvalidRequestError),
        (
            400,
            "invalid_request_error",
            "prompt is too long: 208656 tokens > 200000 maximum",
            ContextLengthExceededError,
        ),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 178959 + 64000 > 200000",
            ContextLengthExceededError,
        ),
        (
            400,
            "invalid_request_error",
            "Your credit balance is too low to access the API",
            UpstreamQuotaExceededError,
        ),
        (
            400,
            "invalid_request_error",
            "Output blocked by content filtering policy",
            ContentFilteredError,
        ),
        (401, "authentication_error", "invalid x-api-key", UpstreamAuthenticationError),
        (402, "billing_error", "no", UpstreamQuotaExceededError),
        (403, "permission_error", "no", UpstreamPermissionError),
        (404, "not_found_error", "model: claude-0", UpstreamNotFoundError),
        (413, "request_too_large", "no", RequestTooLargeError),
        (429, "rate_limit_error", "no", UpstreamRateLimitedError),
        (500, "api_error", "no", UpstreamServerError),
        (504, "timeout_error", "no", UpstreamTimeoutError),
        (529, "overloaded_error", "Overloaded", UpstreamOverloadedError),
        (500, "api_error", "this prompt is too long a story", UpstreamServerError),
    ],
)
def test_every_refusal_of_the_api_has_its_own_error(
    status: int, kind: str, message: str, error: type[OrchestratorError]
):
    body = {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}

    found = classify(status, {}, json.dumps(body).encode(), "acme", own=REFUSALS)

    assert type(found) is error
    assert message in str(found)
    assert found.upstream_code == kind


def test_a_message_that_comes_at_once_is_taken_as_it_is():
    decoder = MessageDecoder("acme")
    message = {
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Yes"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 2, "output_tokens": 3},
    }

    chunk = decoder.take_whole(json.dumps(message).encode())

    function = {"name": "f", "arguments": ""}
    assert chunk == TokenChunk(
        "Yes",
        4,
        {
            "reasoning_content": "hm",
            "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
            "tool_calls": [
                {"index": 0, "id": "t1", "type": "function", "function": function},
                {"index": 0, "function": {"arguments": '{"a":1}'}},
            ],
        },
    )
    usage = Usage(prompt_tokens=2, completion_tokens=3)
    assert decoder.end() == Finished(FinishReason.TOOL_CALLS, usage)


@pytest.mark.parametrize(("told", "known"), [("END", "END"), (None, None), (7, None)])
def test_the_stop_text_that_ended_an_answer_is_known(told: object, known: str | None):
    streamed = MessageDecoder("acme")
    streamed.take(
        event("message_delta", delta={"stop_reason": "stop_sequence", "stop_sequence": told})
    )
    whole = MessageDecoder("acme")
    message = {"type": "message", "stop_reason": "stop_sequence", "stop_sequence": told}
    whole.take_whole(json.dumps(message).encode())

    assert streamed.end() == whole.end() == Finished(FinishReason.STOP, stop=known)


def test_a_message_without_content_brings_no_chunk():
    decoder = MessageDecoder("acme")

    assert decoder.take_whole(b'{"type":"message","stop_reason":"refusal"}') is None
    assert decoder.end() == Finished(FinishReason.CONTENT_FILTER)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"type":"error","error":{"type":"overloaded_error"}}', UpstreamOverloadedError),
        (b'{"error":"boom"}', UpstreamServerError),
        (b"<html>", UpstreamProtocolError),
        (b"[1]", UpstreamProtocolError),
    ],
)
def test_a_body_that_is_no_message_is_an_error(body: bytes, error: type[OrchestratorError]):
    with pytest.raises(error):
        MessageDecoder("acme").take_whole(body)


def test_an_event_that_was_cut_counts_only_if_it_is_whole():
    decoder = MessageDecoder("acme")

    assert take_last(decoder, ServerSentEvent(b'{"type":"content_block_del')) is None
    assert take_last(decoder, delta(0, type="text_delta", text="a")) == TokenChunk("a")


def test_what_follows_either_end_marker_is_ignored():
    for marker in (event("message_stop"), ServerSentEvent(b"[DONE]")):
        chunks, _ = read(finished(), marker, ServerSentEvent(b"{broken"))

        assert chunks == []


@given(payload=st.binary(max_size=60))
@settings(deadline=None)
def test_no_bytes_at_all_bring_anything_but_a_typed_error(payload: bytes):
    for take in (
        lambda: MessageDecoder("acme").take(ServerSentEvent(payload)),
        lambda: MessageDecoder("acme").take(ServerSentEvent(payload, b"error")),
        lambda: MessageDecoder("acme").take_whole(payload),
    ):
        try:
            take()
        except OrchestratorError as error:
            assert "acme" in str(error)  # noqa: PT017 - the other outcome is no error at all


indexes = st.integers(0, 2)
kinds = st.sampled_from(["text", "tool_use", "thinking", "server_tool_use"])
reasons = st.sampled_from([None, "end_turn", "tool_use", "max_tokens"])
pieces = st.one_of(
    st.builds(partial(delta, type="text_delta"), index=indexes, text=st.text()),
    st.builds(partial(delta, type="input_json_delta"), index=indexes, partial_json=st.text()),
    st.builds(partial(opened, id="t", name="f", input={}), index=indexes, type=kinds),
    st.builds(closed, indexes),
    st.builds(finished, reasons),
    st.sampled_from([event("ping"), event("message_stop"), started(output_tokens=1)]),
)


@given(events=st.lists(pieces, max_size=12))
@settings(deadline=None)
def test_events_in_any_order_end_only_where_a_finish_reason_was_told(
    events: list[ServerSentEvent],
):
    decoder = MessageDecoder("acme")
    told: list[str | None] = []
    for one in events:
        payload = json.loads(one.data)
        if not decoder.done and payload["type"] == "message_delta":
            told.append(payload["delta"]["stop_reason"])
        decoder.take(one)

    assert (decoder.finish_reason is not None) == any(told)


async def asked_once(script: Script, **given: Any) -> Answer:
    async with SseServer(script) as server, asking(server, **given) as asker:
        return await asker.ask()


@pytest.mark.live
async def test_an_answer_comes_over_the_wire_with_its_usage_and_one_ending():
    found = await asked_once(answer(*HELLO))

    assert found.text == "Hello 你好"
    usage = Usage(prompt_tokens=37, completion_tokens=12, cached_tokens=8)
    assert found.ending == Finished(FinishReason.STOP, usage)


@pytest.mark.live
async def test_a_stream_without_its_stop_reason_is_truncated_though_it_ends_politely():
    script = answer(message_start(), block_start(0, type="text", text=""), block_delta("Hi"))

    found = await asked_once([*script])

    assert found.text == "Hi"
    assert isinstance(found.error, UpstreamTruncatedError)


@pytest.mark.live
@pytest.mark.parametrize("before", [HELLO[:2], HELLO[:5], HELLO[:-1]])
async def test_an_overload_within_the_stream_is_told_as_one(before: tuple[bytes, ...]):
    overload = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    found = await asked_once(answer(*before, named("error", overload)))

    assert isinstance(found.error, UpstreamOverloadedError)
    assert found.ending is None


@pytest.mark.live
async def test_the_status_of_an_overload_is_kept_and_its_pause_too():
    overload = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    found = await asked_once(refusal(529, overload, "retry-after: 3"))

    assert isinstance(found.error, UpstreamOverloadedError)
    assert (found.error.upstream_status, found.error.retry_after) == (529, 3)


@pytest.mark.live
async def test_calls_of_tools_come_over_the_wire_in_pieces():
    found = await asked_once(answer(*CALLS))

    pieces = [chunk.fields for chunk in found.chunks if "tool_calls" in (chunk.fields or {})]
    assert pieces[0] == calls(
        0,
        id="toolu_01T1x1fJ34qAmk2tNTrN7Up6",
        type="function",
        function={"name": "get_weather", "arguments": ""},
    )
    assert len(pieces) == 6
    assert found.ending is not None
    assert found.ending.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.live
async def test_the_stop_event_ends_the_reading_and_keeps_the_connection():
    script = answer(block_start(0, type="text", text="a"), block_stop(0), message_delta(), STOP)
    async with SseServer(script) as server, asking(server) as asker:
        for _ in range(2):
            assert (await asker.ask()).text == "a"

        assert server.connections == 1


@pytest.mark.live
async def test_pings_and_opened_texts_are_no_progress_but_thinking_is():
    said = asyncio.Event()
    quiet = [message_start(), PING, block_start(0, type="text", text=""), PING]
    thought = block_delta("hm", 1, "thinking_delta", "thinking")
    script = [
        Send(head() + framed(b"".join(quiet))),
        Wait(said),
        Send(framed(block_start(1, type="thinking", thinking="") + thought)),
        Stall(),
    ]
    async with SseServer(script) as server, asking(server) as asker, asyncio.timeout(5):
        lease = a_lease()
        async with contextlib.aclosing(asker.runner.generate(a_request(), lease)) as events:
            first = asyncio.create_task(anext(events))
            await server.arrived()
            assert lease.step is Step.FIRST_TOKEN

            said.set()
            await first

            assert lease.step is Step.NEXT_TOKEN
        lease.disarm()


@pytest.mark.live
async def test_a_key_that_the_api_repeats_is_masked_in_every_error():
    failure = {"type": "error", "error": {"type": "api_error", "message": "bad key k-1"}}
    for script in (answer(*HELLO[:3], named("error", failure)), refusal(401, failure)):
        found = await asked_once(script, api_key=lambda: "k-1")

        assert found.error is not None
        assert "bad key ***" in str(found.error)
