import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import (
    ContentFilteredError,
    ContextLengthExceededError,
    InvalidRequestError,
    OrchestratorError,
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
from orchestrator.gateway.answer import merge_fields
from orchestrator.runners.classify import classify
from orchestrator.runners.remote.gemini_answer import REFUSALS, GeminiDecoder, made_id
from orchestrator.runners.remote.gemini_contents import MADE_ID
from orchestrator.runners.remote.reader import take_last
from orchestrator.runners.remote.sse import ServerSentEvent
from tests.fakes.sse_server import Script, SseServer, answer, event, refusal
from tests.runners.remote.asking import Answer
from tests.runners.remote.gemini_wire import (
    CALLS,
    HELLO,
    SIGNATURE,
    TEXTS,
    asking,
    counted,
    response,
)


def told(*parts: object, finish: str | None = None, **members: Any) -> ServerSentEvent:
    return ServerSentEvent(json.dumps(response(*parts, finish=finish, **members)).encode())


def sent(payload: object, name: bytes = b"") -> ServerSentEvent:
    return ServerSentEvent(json.dumps(payload).encode(), name)


def a_decoder() -> GeminiDecoder:
    return GeminiDecoder("acme", new_id=lambda: "made")


def read(*events: ServerSentEvent) -> tuple[list[TokenChunk], Finished]:
    decoder = a_decoder()
    chunks = [chunk for one in events if (chunk := decoder.take(one)) is not None]
    return chunks, decoder.end()


def test_texts_come_with_as_many_tokens_as_the_usage_grew_by():
    chunks, ending = read(
        told({"text": "Hel"}, **counted(2)),
        told({"text": "lo"}, {"text": "!"}, **counted(7)),
        told({"text": "?"}),
        told(finish="STOP", **counted(9)),
    )

    assert chunks == [TokenChunk("Hel", 2), TokenChunk("lo!", 5), TokenChunk("?", 1)]
    assert ending == Finished(FinishReason.STOP, Usage(prompt_tokens=11, completion_tokens=9))


def test_thoughts_are_told_apart_from_the_answer():
    chunks, ending = read(
        told({"text": "hm", "thought": True}, **counted(0, 3)),
        told({"text": "so", "thought": True}, {"text": "Yes"}),
        told(finish="MAX_TOKENS", **counted(2, 5)),
    )

    assert chunks == [
        TokenChunk("", 3, {"reasoning_content": "hm"}),
        TokenChunk("Yes", 1, {"reasoning_content": "so"}),
    ]
    usage = Usage(prompt_tokens=11, completion_tokens=7, reasoning_tokens=5)
    assert ending == Finished(FinishReason.LENGTH, usage)


def test_calls_of_functions_come_whole_with_an_id_and_their_signature():
    chunks, ending = read(
        told({"functionCall": {"name": "f", "args": {"a": 1}}, "thoughtSignature": "s"}),
        told({"functionCall": {"name": "g", "id": "fc-7"}}, finish="STOP"),
    )

    f = {"name": "f", "arguments": '{"a":1}'}
    signed = {"google": {"thought_signature": "s"}}
    g = {"name": "g", "arguments": "{}"}
    assert [chunk.fields for chunk in chunks] == [
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "made",
                    "type": "function",
                    "function": f,
                    "extra_content": signed,
                }
            ]
        },
        {"tool_calls": [{"index": 1, "id": "fc-7", "type": "function", "function": g}]},
    ]
    assert ending.finish_reason is FinishReason.TOOL_CALLS


def test_a_model_that_says_stop_in_every_event_may_still_call_a_function():
    _, ending = read(
        told({"text": "a"}, finish="STOP"),
        told({"functionCall": {"name": "g"}}, finish="STOP"),
        told({"text": "b"}, finish="STOP"),
    )
    _, late = read(told(finish="STOP"), told({"functionCall": {"name": "g"}}))

    assert ending.finish_reason is FinishReason.TOOL_CALLS
    assert late.finish_reason is FinishReason.TOOL_CALLS


def test_ids_that_are_made_differ_and_are_known_again_by_their_shape():
    ids = {made_id() for _ in range(20)}

    assert len(ids) == 20
    assert all(MADE_ID.fullmatch(one) for one in ids)


def test_the_last_signature_of_a_text_is_told_once_with_the_finish():
    chunks, _ = read(
        told({"text": "a", "thoughtSignature": "early"}),
        told({"text": "", "thoughtSignature": "last"}, finish="STOP"),
    )

    signed = {"extra_content": {"google": {"thought_signature": "last"}}}
    assert chunks == [TokenChunk("a"), TokenChunk("", 0, signed)]


def test_the_signature_of_a_text_that_ends_the_answer_travels_with_it():
    chunks, _ = read(told({"text": "a", "thoughtSignature": "s"}, finish="STOP"))

    signed = {"extra_content": {"google": {"thought_signature": "s"}}}
    assert chunks == [TokenChunk("a", 1, signed)]


def test_an_image_of_the_answer_is_told_as_a_data_url():
    chunks, _ = read(
        told({"inlineData": {"mimeType": "image/png", "data": "aGk="}}), told(finish="STOP")
    )

    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert chunks == [TokenChunk("", 1, {"images": [image]})]


def test_logprobs_are_told_in_openais_shape():
    result = {
        "chosenCandidates": [{"token": "é", "tokenId": 7, "logProbability": -0.5}, {"token": "b"}],
        "topCandidates": [{"candidates": [{"token": "x", "logProbability": -1}]}],
    }
    content = {"parts": [{"text": "éb"}]}
    candidate = {"content": content, "finishReason": "STOP", "logprobsResult": result}

    chunks, _ = read(sent({"candidates": [candidate]}))

    x = {"token": "x", "logprob": -1.0, "bytes": [120]}
    e = {"token": "é", "logprob": -0.5, "bytes": [195, 169], "top_logprobs": [x]}
    b = {"token": "b", "logprob": 0.0, "bytes": [98], "top_logprobs": []}
    assert chunks == [TokenChunk("éb", 2, {"logprobs": {"content": [e, b]}})]


@pytest.mark.parametrize(
    "quiet",
    [
        told(),
        told({"text": ""}),
        told({"executableCode": {"code": "1"}}, {"codeExecutionResult": {"output": "1"}}),
        told({"somethingNew": 7}),
        told(finish="FINISH_REASON_UNSPECIFIED"),
        sent({}),
        sent({"candidates": None}),
        sent({"candidates": []}),
        sent({"candidates": [{"index": 1, "content": {"parts": [{"text": "another"}]}}]}),
        sent({"candidates": [{"content": {"role": "model"}}]}),
        sent({"promptFeedback": {"safetyRatings": []}}),
        sent({"promptFeedback": {"blockReason": "BLOCK_REASON_UNSPECIFIED"}}),
        ServerSentEvent(b""),
    ],
)
def test_an_event_that_carries_nothing_is_no_chunk(quiet: ServerSentEvent):
    decoder = a_decoder()

    assert decoder.take(quiet) is None
    assert decoder.finish_reason is None
    assert decoder.tokens == 0


@pytest.mark.parametrize(
    ("told_as", "meant"),
    [
        ("STOP", FinishReason.STOP),
        ("MAX_TOKENS", FinishReason.LENGTH),
        ("SAFETY", FinishReason.CONTENT_FILTER),
        ("RECITATION", FinishReason.CONTENT_FILTER),
        ("LANGUAGE", FinishReason.CONTENT_FILTER),
        ("BLOCKLIST", FinishReason.CONTENT_FILTER),
        ("PROHIBITED_CONTENT", FinishReason.CONTENT_FILTER),
        ("SPII", FinishReason.CONTENT_FILTER),
        ("IMAGE_SAFETY", FinishReason.CONTENT_FILTER),
        ("MODEL_ARMOR", FinishReason.CONTENT_FILTER),
    ],
)
def test_every_finish_reason_is_told_in_one_of_four_words(told_as: str, meant: FinishReason):
    assert read(told({"text": "a"}), told(finish=told_as))[1].finish_reason is meant


@pytest.mark.parametrize("reason", ["OTHER", "MALFORMED_FUNCTION_CALL", "SOMETHING_NEW"])
def test_a_finish_reason_that_means_broken_off_is_an_error_after_its_text(reason: str):
    decoder = a_decoder()

    assert decoder.take(told({"text": "a"}, finish=reason)) == TokenChunk("a")
    with pytest.raises(UpstreamServerError, match=f"acme broke off .*{reason}") as caught:
        decoder.end()
    assert caught.value.upstream_code == reason
    with pytest.raises(UpstreamServerError):
        a_decoder().take(told(finish=reason))


def test_a_prompt_that_was_refused_is_the_callers_error():
    feedback = {"blockReason": "PROHIBITED_CONTENT", "blockReasonMessage": "not that"}

    with pytest.raises(ContentFilteredError, match="PROHIBITED_CONTENT: not that") as caught:
        read(sent({"promptFeedback": feedback, **counted(0)}))

    assert caught.value.upstream_code == "PROHIBITED_CONTENT"


def test_a_refusal_after_the_first_token_is_a_filtered_answer():
    chunks, ending = read(told({"text": "a"}), sent({"promptFeedback": {"blockReason": "SAFETY"}}))

    assert chunks == [TokenChunk("a")]
    assert ending.finish_reason is FinishReason.CONTENT_FILTER


def test_usage_is_the_greatest_of_each_count_and_never_added_up():
    _, ending = read(
        sent(counted(3, 2, cachedContentTokenCount=4)),
        sent(counted(8, 2, toolUsePromptTokenCount=5)),
        sent(counted(6)),
        told(finish="STOP"),
    )

    assert ending.usage == Usage(
        prompt_tokens=16, completion_tokens=10, cached_tokens=4, reasoning_tokens=2
    )


def test_a_number_that_no_model_can_have_counted_is_left_out():
    usage = {"promptTokenCount": -3, "candidatesTokenCount": 4, "thoughtsTokenCount": 1 << 60}

    _, ending = read(told(finish="STOP", usageMetadata=usage))

    assert ending.usage == Usage(prompt_tokens=0, completion_tokens=4)


@pytest.mark.parametrize("usage", [None, {}, [], {"promptTokenCount": "many"}, {"x": 1}])
def test_a_usage_that_nobody_counted_stays_absent(usage: object):
    assert read(told(finish="STOP", usageMetadata=usage))[1].usage is None


def google(code: int, status: str, message: str = "boom", *details: Any) -> dict[str, object]:
    error: dict[str, object] = {"code": code, "message": message, "status": status}
    return {"error": error | ({"details": list(details)} if details else {})}


def info(reason: str) -> dict[str, str]:
    return {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason}


def quota(name: str) -> dict[str, object]:
    kind = "type.googleapis.com/google.rpc.QuotaFailure"
    return {"@type": kind, "violations": [{"quotaMetric": "m", "quotaId": name}]}


RETRY = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "26.5s"}
PER_MINUTE = quota("GenerateContentInputTokensPerModelPerMinute-FreeTier")
PER_DAY = quota("GenerateRequestsPerDayPerProjectPerModel-FreeTier")


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (google(400, "INVALID_ARGUMENT"), InvalidRequestError),
        (
            google(400, "INVALID_ARGUMENT", "API key not valid.", info("API_KEY_INVALID")),
            UpstreamAuthenticationError,
        ),
        (google(400, "INVALID_ARGUMENT", "API key expired."), UpstreamAuthenticationError),
        (
            google(400, "INVALID_ARGUMENT", "The input token count (12) exceeds the maximum (10)"),
            ContextLengthExceededError,
        ),
        (
            google(400, "FAILED_PRECONDITION", "User location is not supported"),
            UpstreamPermissionError,
        ),
        (google(400, "FAILED_PRECONDITION", "Please enable billing"), UpstreamQuotaExceededError),
        (google(401, "UNAUTHENTICATED"), UpstreamAuthenticationError),
        (google(403, "PERMISSION_DENIED"), UpstreamPermissionError),
        (
            google(403, "PERMISSION_DENIED", "no", info("BILLING_DISABLED")),
            UpstreamQuotaExceededError,
        ),
        (google(404, "NOT_FOUND"), UpstreamNotFoundError),
        (google(429, "RESOURCE_EXHAUSTED"), UpstreamRateLimitedError),
        (google(429, "RESOURCE_EXHAUSTED", "no", PER_MINUTE, RETRY), UpstreamRateLimitedError),
        (google(429, "RESOURCE_EXHAUSTED", "no", PER_DAY, RETRY), UpstreamQuotaExceededError),
        (google(500, "INTERNAL"), UpstreamServerError),
        (google(503, "UNAVAILABLE"), UpstreamOverloadedError),
        (google(504, "DEADLINE_EXCEEDED"), UpstreamTimeoutError),
        (google(400, "INVALID_ARGUMENT", "safety settings are blocked"), InvalidRequestError),
        (google(429, "RESOURCE_EXHAUSTED", "no", 7, {"violations": [7, {}]}, {"reason": 7}),
         UpstreamRateLimitedError),
    ],
)  # fmt: skip
@pytest.mark.parametrize("listed", [True, False])
def test_every_refusal_of_the_api_has_its_own_error(
    body: dict[str, Any], error: type[OrchestratorError], listed: bool
):
    status = body["error"]["code"]
    data = json.dumps([body] if listed else body).encode()

    found = classify(status, {}, data, "acme", own=REFUSALS)

    assert type(found) is error
    assert body["error"]["message"] in str(found)
    assert found.retry_after == (26.5 if RETRY in body["error"].get("details", []) else None)


def test_a_pause_in_a_header_goes_before_the_one_in_the_body():
    body = json.dumps(google(429, "RESOURCE_EXHAUSTED", "no", RETRY)).encode()

    assert classify(429, {"retry-after": "3"}, body, "acme").retry_after == 3


@pytest.mark.parametrize("delay", ["soon", "-1s", "infs", 7])
def test_a_pause_of_no_sense_is_none(delay: object):
    body = json.dumps(google(429, "RESOURCE_EXHAUSTED", "no", {"retryDelay": delay})).encode()

    assert classify(429, {}, body, "acme").retry_after is None


@pytest.mark.parametrize("name", [b"", b"error"])
def test_an_error_within_the_stream_is_classified_by_its_status(name: bytes):
    failure = sent(google(503, "UNAVAILABLE", "The model is overloaded.", RETRY), name)

    with pytest.raises(UpstreamOverloadedError, match="overloaded") as caught:
        read(told(finish="STOP"), failure)

    assert caught.value.retry_after == 26.5


def test_answers_that_come_at_once_are_taken_as_they_are():
    pieces = [response({"text": "Hel"}), response({"text": "lo"}, finish="STOP")]
    for body in (response({"text": "Hello"}, finish="STOP"), pieces):
        decoder = a_decoder()

        chunk = decoder.take_whole(json.dumps(body).encode())

        assert chunk is not None
        assert chunk.text == "Hello"
        assert decoder.end() == Finished(FinishReason.STOP)


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (json.dumps([google(429, "RESOURCE_EXHAUSTED")]).encode(), UpstreamRateLimitedError),
        (json.dumps(google(500, "INTERNAL")).encode(), UpstreamServerError),
        (b"<html>", UpstreamProtocolError),
        (b"[7]", UpstreamProtocolError),
        (b'{"candidates": 7}', UpstreamProtocolError),
    ],
)
def test_a_body_that_is_no_answer_is_an_error(body: bytes, error: type[OrchestratorError]):
    with pytest.raises(error):
        a_decoder().take_whole(body)


def test_an_event_that_was_cut_counts_only_if_it_is_whole():
    decoder = a_decoder()

    assert take_last(decoder, ServerSentEvent(b'{"candidates":[{"con')) is None
    assert take_last(decoder, told({"text": "a"})) == TokenChunk("a")


@given(payload=st.binary(max_size=60))
@settings(deadline=None)
def test_no_bytes_at_all_bring_anything_but_a_typed_error(payload: bytes):
    for take in (
        lambda: a_decoder().take(ServerSentEvent(payload)),
        lambda: a_decoder().take(ServerSentEvent(payload, b"error")),
        lambda: a_decoder().take_whole(payload),
    ):
        try:
            take()
        except OrchestratorError as error:
            assert "acme" in str(error)  # noqa: PT017 - the other outcome is no error at all


MEMBERS = [
    "candidates",
    "content",
    "parts",
    "text",
    "thought",
    "functionCall",
    "finishReason",
    "promptFeedback",
    "blockReason",
    "usageMetadata",
    "error",
]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just("STOP"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(payload=json_values)
@settings(deadline=None)
def test_no_json_of_any_shape_brings_anything_but_a_typed_error(payload: object):
    try:
        a_decoder().take(sent(payload))
    except OrchestratorError as error:
        assert "acme" in str(error)  # noqa: PT017 - the other outcome is no error at all


async def asked_once(script: Script, **given: Any) -> Answer:
    async with SseServer(script) as server, asking(server, **given) as asker:
        return await asker.ask()


@pytest.mark.live
async def test_an_answer_comes_over_the_wire_with_its_usage_and_one_ending():
    found = await asked_once(answer(*HELLO))

    assert [chunk.text for chunk in found.chunks] == list(TEXTS)
    usage = Usage(prompt_tokens=11, completion_tokens=7, cached_tokens=5)
    assert found.ending == Finished(FinishReason.STOP, usage)


@pytest.mark.live
async def test_one_connection_serves_one_request_after_the_other():
    async with SseServer(answer(*HELLO)) as server, asking(server) as asker:
        for _ in range(2):
            assert (await asker.ask()).text == "".join(TEXTS)

        assert server.connections == 1


@pytest.mark.live
async def test_calls_of_functions_come_over_the_wire_with_what_the_next_turn_needs():
    found = await asked_once(answer(*CALLS))

    calls: Any = merge_fields([chunk.fields or {} for chunk in found.chunks])["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["get_weather", "now"]
    assert calls[0]["extra_content"] == {"google": {"thought_signature": SIGNATURE}}
    assert calls[1]["id"] == "fc-7"
    assert found.ending is not None
    assert found.ending.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.live
async def test_a_stream_without_its_finish_reason_is_truncated_though_it_ends_politely():
    found = await asked_once(answer(*HELLO[:-1]))

    assert found.text == "".join(TEXTS)
    assert isinstance(found.error, UpstreamTruncatedError)


@pytest.mark.live
@pytest.mark.parametrize("before", [(), HELLO[:1], HELLO])
async def test_an_error_within_a_begun_answer_is_told_as_one(before: tuple[bytes, ...]):
    found = await asked_once(answer(*before, event(google(500, "INTERNAL"))))

    assert isinstance(found.error, UpstreamServerError)
    assert found.ending is None


@pytest.mark.live
async def test_a_refusal_keeps_its_status_its_code_and_its_pause():
    found = await asked_once(refusal(429, google(429, "RESOURCE_EXHAUSTED", "no", RETRY)))

    assert isinstance(found.error, UpstreamRateLimitedError)
    assert (found.error.upstream_status, found.error.retry_after) == (429, 26.5)
    assert found.error.upstream_code == "RESOURCE_EXHAUSTED"
