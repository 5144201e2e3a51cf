import json

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
    UpstreamConflictError,
    UpstreamError,
    UpstreamNotFoundError,
    UpstreamOverloadedError,
    UpstreamPermissionError,
    UpstreamProtocolError,
    UpstreamQuotaExceededError,
    UpstreamRateLimitedError,
    UpstreamServerError,
    UpstreamTimeoutError,
)
from orchestrator.runners.classify import classify, classify_event, retry_after


def refused(http_status: int, **error: object):
    return classify(http_status, {}, json.dumps({"error": error}).encode(), "acme")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (302, UpstreamProtocolError),
        (400, InvalidRequestError),
        (401, UpstreamAuthenticationError),
        (402, UpstreamQuotaExceededError),
        (403, UpstreamPermissionError),
        (404, UpstreamNotFoundError),
        (405, UpstreamNotFoundError),
        (408, UpstreamTimeoutError),
        (409, UpstreamConflictError),
        (413, RequestTooLargeError),
        (415, InvalidRequestError),
        (424, UpstreamServerError),
        (422, InvalidRequestError),
        (425, UpstreamConflictError),
        (429, UpstreamRateLimitedError),
        (498, UpstreamOverloadedError),
        (500, UpstreamServerError),
        (502, UpstreamServerError),
        (503, UpstreamOverloadedError),
        (504, UpstreamTimeoutError),
        (524, UpstreamTimeoutError),
        (529, UpstreamOverloadedError),
        (599, UpstreamServerError),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html>no</html>", b'{"error": {"mess', b"\xff", b"7"])
def test_a_body_that_says_nothing_leaves_the_status_to_decide(
    status: int, error: type[OrchestratorError], body: bytes
):
    found = classify(status, {}, body, "acme")

    assert type(found) is error
    assert found.upstream_status == status
    assert f"acme answered {status}" in str(found)


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (429, {"code": "insufficient_quota"}, UpstreamQuotaExceededError),
        (429, {"type": "insufficient_quota", "code": None}, UpstreamQuotaExceededError),
        (400, {"code": "billing_hard_limit_reached"}, UpstreamQuotaExceededError),
        (429, {"code": "rate_limit_exceeded", "type": "tokens"}, UpstreamRateLimitedError),
        (429, {"message": "insufficient_quota is not meant"}, UpstreamRateLimitedError),
        (400, {"code": "context_length_exceeded"}, ContextLengthExceededError),
        (400, {"type": "exceed_context_size_error"}, ContextLengthExceededError),
        (400, {"code": "content_filter"}, ContentFilteredError),
        (400, {"type": "content_filter", "code": "400"}, ContentFilteredError),
        (
            400,
            {"code": "x", "innererror": {"code": "ResponsibleAIPolicyViolation"}},
            ContentFilteredError,
        ),
        (404, {"code": "model_not_found", "type": "invalid_request_error"}, UpstreamNotFoundError),
        (401, {"code": "invalid_api_key"}, UpstreamAuthenticationError),
        (500, {"type": "invalid_request_error"}, UpstreamServerError),
        (503, {"type": "rate_limit_error"}, UpstreamRateLimitedError),
        (400, {"code": 429, "status": "RESOURCE_EXHAUSTED"}, UpstreamRateLimitedError),
        (403, {"code": 403, "metadata": {"flagged_input": "x"}}, ContentFilteredError),
        (403, {"code": 403, "metadata": {"raw": "x"}}, UpstreamPermissionError),
        (
            413,
            {"message": "Request too large for model `m`", "code": "rate_limit_exceeded"},
            RequestTooLargeError,
        ),
        (
            429,
            {"message": "Request too large for m on tokens per min", "code": "rate_limit_exceeded"},
            RequestTooLargeError,
        ),
    ],
)
def test_a_providers_own_code_goes_before_the_status(
    status: int, body: dict[str, object], error: type[OrchestratorError]
):
    assert type(refused(status, **body)) is error


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens",
        "Requested tokens exceed context window of 512",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
        "Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",
    ],
)
def test_a_context_that_is_too_long_is_known_by_its_words_and_keeps_its_numbers(message: str):
    found = refused(400, message=message, type="BadRequestError")

    assert isinstance(found, ContextLengthExceededError)
    assert message in str(found)


def test_the_numbers_of_a_context_that_is_too_long_are_told_as_well():
    found = refused(
        400, type="exceed_context_size_error", message="too long", n_prompt_tokens=900, n_ctx=512
    )

    assert str(found) == "acme answered 400: too long (prompt of 900 tokens, context of 512)"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"error": {"message": "why"}}, "why"),
        ({"error": "why"}, "why"),
        ([{"error": {"message": "why"}}], "why"),
        ({"message": "why"}, "why"),
        ({"detail": "why"}, "why"),
        ({"detail": [{"loc": ["x"]}]}, '[{"loc":["x"]}]'),
        ({"strange": 1}, '{"strange":1}'),
    ],
)
def test_the_text_is_found_in_every_shape_of_body(body: object, text: str):
    found = classify(400, {}, json.dumps(body).encode(), "acme")

    assert str(found) == f"acme answered 400: {text}"


def test_status_code_and_parameter_of_the_provider_are_kept():
    found = refused(400, message="no", code="invalid_value", param="top_p")

    assert (found.upstream_status, found.upstream_code, found.param) == (
        400,
        "invalid_value",
        "top_p",
    )


def test_what_the_caller_did_wrong_never_tries_again_or_moves_the_breaker():
    for status in (400, 404, 413, 422, 409, 429):
        assert not refused(status).trips_breaker
    assert not refused(400).retryable
    assert issubclass(UpstreamConflictError, UpstreamError)
    assert refused(409).retryable
    assert refused(408).retryable
    assert not refused(429, code="insufficient_quota").retryable


@pytest.mark.parametrize(
    "secret",
    [
        "sk-proj-abcdef123456",
        "sk_live_abcdef123456",
        "gsk_abcdef123456",
        "AIzaSyA1234567890abcdefghij",
        "Bearer abc.def.ghi",
        "api_key=hunter2hunter2",
        "k1",
    ],
)
def test_no_secret_stays_in_an_error(secret: str):
    body = json.dumps({"error": {"message": f"the key {secret} is wrong"}}).encode()

    found = classify(401, {}, body, "acme", secret="k1")

    assert secret.removeprefix("Bearer ").removeprefix("api_key=") not in str(found)
    assert "***" in str(found)
    assert "is wrong" in str(found)


def test_a_server_that_tells_its_errors_flat_is_understood_as_well():
    for kind, error in (
        ("overloaded", UpstreamOverloadedError),
        ("validation", InvalidRequestError),
        ("generation", UpstreamServerError),
    ):
        assert type(classify_event({"error": "why", "error_type": kind}, "acme")) is error
    body = b'{"error": "Model is overloaded", "error_type": "overloaded"}'
    assert type(classify(429, {}, body, "acme")) is UpstreamOverloadedError


def test_a_code_or_a_path_is_cut_and_masked_like_a_text():
    found = refused(401, code="the-key-k1 " * 100, param="k1", message="no")

    masked = classify(401, {}, b'{"error":{"code":"is k1","param":"k1"}}', "acme", secret="k1")

    kept = refused(403, code="key_limit_exceeded", message="no")

    assert kept.upstream_code == "key_limit_exceeded"
    assert len(found.upstream_code or "") == 200
    assert (masked.upstream_code, masked.param) == ("is ***", "***")


def test_a_text_is_cut_to_two_hundred_characters_on_one_line():
    found = classify(500, {}, b"a\n  b " * 100_000, "acme")

    text = str(found).removeprefix("acme answered 500: ")
    assert len(text) == 200
    assert text.startswith("a b a b")
    assert text.endswith("...")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"code": "insufficient_quota"}, UpstreamQuotaExceededError),
        ({"type": "overloaded_error"}, UpstreamOverloadedError),
        ({"code": 429}, UpstreamRateLimitedError),
        ({"code": "502"}, UpstreamServerError),
        ({"code": 400}, InvalidRequestError),
        ({"type": "invalid_request_error"}, InvalidRequestError),
        ({"type": "server_error"}, UpstreamServerError),
        (
            {"type": "BadRequestError", "message": "maximum context length is 5"},
            ContextLengthExceededError,
        ),
        ({"message": "nothing known"}, UpstreamServerError),
        ({"code": 7}, UpstreamServerError),
    ],
)
def test_an_error_within_a_stream_is_classified_by_its_own_words(
    error: dict[str, object], kind: type[OrchestratorError]
):
    found = classify_event({"error": error}, "acme")

    assert type(found) is kind
    assert str(found).startswith("acme sent an error within the stream")


NOW = 784_111_777.0  # Sun, 06 Nov 1994 08:49:37 GMT


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "12"}, 12.0),
        ({"retry-after": " 2.5 "}, 2.5),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "1e9"}, 1e9),
        ({"retry-after-ms": "500"}, 0.5),
        ({"x-ms-retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9.0),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e999"}, None),
        ({"retry-after": "1000000001"}, None),
        ({"retry-after": "99999999999999999999999999"}, None),
        ({"retry-after": "1e300"}, None),
        ({"retry-after-ms": "1e13", "retry-after": "9"}, 9.0),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:41 GMT"}, 4.0),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:41 GMT"}, 4.0),
        ({"retry-after": "Sun Nov  6 08:49:41 1994"}, 4.0),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:30 GMT"}, 0.0),
        ({"retry-after": "Sun, 06 Nov 1994 25:99:99 GMT"}, None),
        (
            {
                "retry-after": "Mon, 07 Nov 1994 08:00:30 GMT",
                "date": "Mon, 07 Nov 1994 08:00:00 GMT",
            },
            30.0,
        ),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:41 GMT", "date": "garbage"}, 4.0),
    ],
)
def test_every_way_to_ask_for_a_pause_is_understood(headers: dict[str, str], seconds: float | None):
    assert retry_after(headers, lambda: NOW) == seconds


@given(value=st.text(max_size=40), date=st.text(max_size=40))
@settings(deadline=None)
def test_no_header_at_all_breaks_the_reading_of_a_pause(value: str, date: str):
    seconds = retry_after({"retry-after": value, "date": date}, lambda: NOW)

    assert seconds is None or seconds >= 0


@given(body=st.binary(max_size=80), status=st.integers(300, 599))
@settings(deadline=None)
def test_no_body_at_all_breaks_the_classification(body: bytes, status: int):
    found = classify(status, {}, body, "acme")

    assert found.upstream_status == status


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"error":' * 100_000, b"[" * 400 + b"]" * 400])
def test_a_body_nested_without_end_is_a_refusal_like_any_other(body: bytes):
    assert type(classify(500, {}, body, "acme")) is UpstreamServerError
