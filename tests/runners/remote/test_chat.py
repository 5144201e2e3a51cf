import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import (
    OrchestratorError,
    UpstreamOverloadedError,
    UpstreamProtocolError,
    UpstreamServerError,
    UpstreamTruncatedError,
)
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.reader import take_last
from orchestrator.runners.remote.sse import ServerSentEvent


def sent(payload: object) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(payload).encode())


def choice(delta: object = None, **members: object) -> ServerSentEvent:
    return sent({"choices": [{"index": 0, "delta": delta, **members}]})


def usage(prompt: int, completion: int, **members: object) -> ServerSentEvent:
    counted = {"prompt_tokens": prompt, "completion_tokens": completion, **members}
    return sent({"choices": [], "usage": counted})


def read(*events: ServerSentEvent) -> tuple[list[TokenChunk], Finished]:
    decoder = ChatDecoder("acme")
    chunks = [chunk for event in events if (chunk := decoder.take(event)) is not None]
    return chunks, decoder.end()


STOP = choice({}, finish_reason="stop")


def test_members_of_a_delta_besides_role_and_content_pass_untouched():
    call = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": '{"a'}}

    chunks, _ = read(
        choice({"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}),
        choice({"reasoning_content": "hm", "content": ""}),
        choice({"content": "x", "vendor": {"deep": [1]}}),
        STOP,
    )

    assert chunks == [
        TokenChunk("", 1, {"tool_calls": [call]}),
        TokenChunk("", 1, {"reasoning_content": "hm"}),
        TokenChunk("x", 1, {"vendor": {"deep": [1]}}),
    ]


def test_logprobs_of_a_choice_travel_in_the_fields_and_count_its_tokens():
    logprobs = {"content": [{"token": "a"}, {"token": "b"}], "refusal": None}

    chunks, _ = read(choice({"content": "ab"}, logprobs=logprobs), STOP)

    assert chunks == [TokenChunk("ab", 2, {"logprobs": logprobs})]


def test_a_logprob_that_is_a_number_is_no_broken_answer():
    # Together's: a number for the token, and nothing in place of the object
    event = ServerSentEvent(b'{"choices":[{"delta":{"content":"a"},"logprobs":-0.5}]}')

    assert ChatDecoder("acme").take(event) == TokenChunk("a", 1, {"logprobs": -0.5})


@pytest.mark.parametrize(
    "event",
    [
        choice({"role": "assistant"}),
        choice({"role": "assistant", "content": "", "refusal": None, "tool_calls": []}),
        choice({"content": None}),
        choice({}),
        choice(None),
        sent({"choices": []}),
        sent({"choices": None}),
        sent({"id": "x"}),
        sent({"choices": [{"index": 1, "delta": {"content": "another choice"}}]}),
        ServerSentEvent(b""),
        ServerSentEvent(b"{}", b"ping"),
    ],
)
def test_an_event_that_carries_nothing_is_no_chunk(event: ServerSentEvent):
    decoder = ChatDecoder("acme")

    assert decoder.take(event) is None
    assert decoder.finish_reason is None
    assert decoder.tokens == 0


@pytest.mark.parametrize(
    ("told", "meant"),
    [
        ("stop", FinishReason.STOP),
        ("eos_token", FinishReason.STOP),
        ("STOP", FinishReason.STOP),
        ("length", FinishReason.LENGTH),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("model_length", FinishReason.LENGTH),
        ("tool_calls", FinishReason.TOOL_CALLS),
        ("function_call", FinishReason.TOOL_CALLS),
        ("content_filter", FinishReason.CONTENT_FILTER),
        ("something new", FinishReason.STOP),
    ],
)
def test_every_finish_reason_is_told_in_one_of_four_words(told: str, meant: FinishReason):
    assert read(choice({}, finish_reason=told))[1].finish_reason is meant


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ("error", UpstreamServerError),
        ("abort", UpstreamTruncatedError),
        ("insufficient_system_resource", UpstreamOverloadedError),
    ],
)
def test_a_finish_reason_that_means_broken_off_is_an_error(
    told: str, error: type[OrchestratorError]
):
    with pytest.raises(error, match="acme broke off after 1 tokens"):
        read(choice({"content": "a"}), choice({}, finish_reason=told))


@pytest.mark.parametrize(
    ("members", "stop"),
    [
        ({"stop_reason": "END"}, "END"),
        ({"matched_stop": "END"}, "END"),
        ({"stop_reason": 2, "matched_stop": None}, None),
        ({}, None),
    ],
)
def test_the_stop_text_is_known_where_a_server_tells_it(
    members: dict[str, object], stop: str | None
):
    _, ending = read(choice({"content": "a"}), choice({}, finish_reason="stop", **members))

    assert ending.stop == stop


def test_an_empty_finish_reason_is_none_and_the_last_chunk_may_carry_both():
    chunks, ending = read(
        choice({"content": "a"}, finish_reason=""), choice({"content": "b"}, finish_reason="length")
    )

    assert [chunk.text for chunk in chunks] == ["a", "b"]
    assert ending.finish_reason is FinishReason.LENGTH


def test_usage_is_the_greatest_of_each_count_and_never_added_up():
    _, ending = read(
        usage(9, 1),
        usage(9, 5, prompt_tokens_details={"cached_tokens": 4}),
        usage(9, 3, completion_tokens_details={"reasoning_tokens": 2}),
        STOP,
    )

    assert ending.usage == Usage(
        prompt_tokens=9, completion_tokens=5, cached_tokens=4, reasoning_tokens=2
    )


@pytest.mark.parametrize(
    "counted",
    [None, {}, [], "7", {"prompt_tokens": None}, {"prompt_tokens": "many"}, {"prompt_tokens": 0}],
)
def test_a_usage_that_nobody_counted_stays_absent(counted: object):
    _, ending = read(sent({"choices": [], "usage": counted}), STOP)

    assert ending.usage is None


@pytest.mark.parametrize("number", [-1, 2**53 + 1, 10**40])
def test_a_number_that_no_model_can_have_counted_is_left_out(number: int):
    details = {"cached_tokens": number}

    _, ending = read(usage(number, 3, prompt_tokens_details=details), STOP)

    assert ending.usage == Usage(prompt_tokens=0, completion_tokens=3)


@pytest.mark.parametrize(
    "delta",
    [
        {"content": 5},
        {"content": True},
        {"content": {"text": "a"}},
        {"tool_calls": [5]},
        {"tool_calls": [{"index": 0, "id": "c"}, None]},
        {"tool_calls": "text"},
        {"tool_calls": {"index": 0}},
    ],
)
def test_a_delta_of_the_wrong_shape_is_a_broken_answer_and_no_silent_loss(delta: object):
    with pytest.raises(UpstreamProtocolError, match="acme sent no delta of a chat completion"):
        ChatDecoder("acme").take(choice(delta))


def test_a_usage_within_the_choice_counts_as_well():
    counted = {"prompt_tokens": 2, "completion_tokens": 1, "prompt_cache_hit_tokens": 1}

    _, ending = read(choice({}, finish_reason="stop", usage=counted))

    assert ending.usage == Usage(prompt_tokens=2, completion_tokens=1, cached_tokens=1)


def test_the_usage_is_found_where_groq_tells_it():
    counted = {"prompt_tokens": 2, "completion_tokens": 1}

    _, ending = read(STOP, sent({"choices": [], "x_groq": {"id": "r", "usage": counted}}))

    assert ending.usage == Usage(prompt_tokens=2, completion_tokens=1)


def test_calls_that_all_have_the_index_zero_are_told_apart():
    first = {"index": 0, "id": "c1", "function": {"name": "f", "arguments": "{}"}}
    other = {"index": 0, "id": "c2", "function": {"name": "g", "arguments": "{}"}}

    chunks, _ = read(choice({"tool_calls": [first]}), choice({"tool_calls": [other]}), STOP)

    assert [chunk.fields for chunk in chunks] == [
        {"tool_calls": [first]},
        {"tool_calls": [other | {"index": 1}]},
    ]


def test_parts_in_place_of_text_are_split_into_text_and_the_rest():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    text = {"type": "text", "text": "yes"}

    chunks, _ = read(choice({"content": [thinking, text]}), choice({"content": [text]}), STOP)

    assert chunks == [TokenChunk("yes", 1, {"content": [thinking]}), TokenChunk("yes")]


def test_what_follows_the_end_marker_is_ignored():
    chunks, _ = read(STOP, ServerSentEvent(b" [DONE] "), ServerSentEvent(b"{broken"))

    assert chunks == []


def test_an_event_that_was_cut_counts_only_if_it_is_whole():
    decoder = ChatDecoder("acme")

    assert take_last(decoder, ServerSentEvent(b'{"choices":[{"delta":{"content":"a')) is None
    assert take_last(decoder, choice({"content": "a"})) == TokenChunk("a")
    with pytest.raises(UpstreamServerError):
        take_last(decoder, sent({"error": "boom"}))


@pytest.mark.parametrize(
    "event",
    [
        sent({"error": {"message": "boom"}}),
        sent({"error": "boom"}),
        sent({"object": "error", "message": "boom", "code": 500}),
        sent({"type": "error", "error": {"type": "api_error", "message": "boom"}}),
        ServerSentEvent(b'{"message": "boom"}', b"error"),
        ServerSentEvent(b"boom", b"error"),
        sent({"error": {"message": "boom"}, "choices": [{"finish_reason": "error"}]}),
        sent({"x_groq": {"error": "boom"}, "choices": [{"finish_reason": "stop"}]}),
    ],
)
def test_every_shape_of_an_error_within_the_stream_is_an_error(event: ServerSentEvent):
    with pytest.raises(UpstreamServerError, match="boom"):
        read(STOP, event)


@given(payload=st.binary(max_size=60))
@settings(deadline=None)
def test_no_bytes_at_all_bring_anything_but_a_typed_error(payload: bytes):
    decoder = ChatDecoder("acme")

    for take in (
        lambda: decoder.take(ServerSentEvent(payload)),
        lambda: decoder.take(ServerSentEvent(payload, b"error")),
        lambda: decoder.take_whole(payload),
    ):
        try:
            take()
        except OrchestratorError as error:
            assert "acme" in str(error)  # noqa: PT017 - the other outcome is no error at all


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "content", "usage", "error", "finish_reason", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(payload=json_values)
@settings(deadline=None)
def test_no_json_of_any_shape_brings_anything_but_a_typed_error(payload: object):
    decoder = ChatDecoder("acme")

    try:
        decoder.take(sent(payload))
    except OrchestratorError as error:
        assert "acme" in str(error)  # noqa: PT017 - the other outcome is no error at all


def test_a_broken_event_is_quoted_short_and_without_secrets():
    with pytest.raises(UpstreamProtocolError) as caught:
        ChatDecoder("acme", secret="k-1").take(ServerSentEvent(b"{k-1" + b"x" * 900))

    assert "k-1" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_the_decoder_says_in_words_where_it_stands():
    decoder = ChatDecoder("acme")
    assert repr(decoder) == "<ChatDecoder open, 0 tokens>"

    decoder.take(choice({"content": "a"}, finish_reason="stop"))
    assert repr(decoder) == "<ChatDecoder stop, 1 tokens>"

    decoder.take(ServerSentEvent(b"[DONE]"))
    assert repr(decoder) == "<ChatDecoder done, 1 tokens>"


def test_an_event_nested_without_end_is_a_typed_error():
    with pytest.raises(UpstreamProtocolError):
        ChatDecoder("acme").take(ServerSentEvent(b'{"choices":[{"delta":{"x":' + b"[" * 100_000))
