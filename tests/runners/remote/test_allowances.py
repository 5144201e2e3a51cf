"""What a provider's headers say is left, in every form that is known of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from orchestrator.runners.remote.allowances import length_of, standing_of
from orchestrator.standing import Allowance, Meter

DATE = (b"Date", b"Mon, 30 Nov 2026 20:00:00 GMT")


def headers(**named: str) -> list[tuple[bytes, bytes]]:
    return [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1s", 1.0),
        ("6m0s", 360.0),
        ("1m3.5s", 63.5),
        ("120ms", 0.12),
        ("1m3.5s20ms", 63.52),
        ("1h2m", 3720.0),
        ("1d", 86400.0),
        ("2m59.56s", 179.56),
        ("7", 7.0),
        ("0.5", 0.5),
        ("0s", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("nan", None),
        ("inf", None),
        ("5x", None),
    ],
)
def test_a_length_of_time_is_read_in_every_form(text: str, seconds: float | None) -> None:
    found = length_of(text)

    assert found == (None if seconds is None else pytest.approx(seconds))


def test_openais_headers_are_read_in_any_case() -> None:
    standing = standing_of(
        [
            (b"X-RateLimit-Limit-Requests", b"60"),
            (b"x-ratelimit-remaining-requests", b"59"),
            (b"x-ratelimit-reset-requests", b"1s"),
            (b"x-ratelimit-limit-tokens", b"150000"),
            (b"x-ratelimit-remaining-tokens", b"149984"),
            (b"x-ratelimit-reset-tokens", b"6m0s"),
        ]
    )

    assert standing == (
        Allowance(remaining=59, limit=60, reset_after=1.0),
        Allowance(remaining=149984, limit=150000, reset_after=360.0),
        None,
        None,
    )


def test_anthropics_headers_are_read_by_the_answers_own_clock() -> None:
    standing = standing_of(
        [
            DATE,
            *headers(
                anthropic_ratelimit_requests_limit="50",
                anthropic_ratelimit_requests_remaining="0",
                anthropic_ratelimit_requests_reset="2026-11-30T20:00:30Z",
                anthropic_ratelimit_input_tokens_limit="40000",
                anthropic_ratelimit_input_tokens_remaining="39000",
                anthropic_ratelimit_input_tokens_reset="2026-11-30T21:00:01.5+01:00",
                anthropic_ratelimit_output_tokens_remaining="8000",
            ),
        ]
    )

    assert standing is not None
    assert standing[Meter.REQUESTS] == Allowance(remaining=0, limit=50, reset_after=30.0)
    assert standing[Meter.INPUT_TOKENS] == Allowance(remaining=39000, limit=40000, reset_after=1.5)
    assert standing[Meter.OUTPUT_TOKENS] == Allowance(remaining=8000)
    assert standing[Meter.TOKENS] is None


def test_a_point_in_time_without_a_date_is_read_by_our_clock() -> None:
    told = headers(
        anthropic_ratelimit_requests_remaining="1",
        anthropic_ratelimit_requests_reset="1970-01-01T00:01:40Z",
    )

    standing = standing_of(told, now=lambda: 90.0)

    assert standing is not None
    assert standing[0] == Allowance(remaining=1, reset_after=10.0)


@pytest.mark.parametrize("remaining", ["", "-1", "nan", "1e99", "many"])
def test_a_number_that_makes_no_sense_is_left_out(remaining: str) -> None:
    assert standing_of(headers(x_ratelimit_remaining_requests=remaining)) is None


def test_headers_about_something_else_tell_nothing() -> None:
    assert standing_of([DATE, (b"content-type", b"text/event-stream")]) is None


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    b"x-ratelimit-remaining-requests",
                    b"x-ratelimit-limit-tokens",
                    b"x-ratelimit-reset-requests",
                    b"anthropic-ratelimit-tokens-reset",
                    b"anthropic-ratelimit-requests-remaining",
                    b"date",
                ]
            ),
            st.binary(max_size=80),
        )
    )
)
def test_whatever_stands_in_them_is_no_error(given_headers: list[tuple[bytes, bytes]]) -> None:
    standing = standing_of(given_headers, now=lambda: 0.0)

    assert standing is None or any(standing)
