"""What is asked is checked when it is made, and its text never leaks into a log."""

import math
from collections.abc import Callable
from typing import cast

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from orchestrator.errors import InvalidRequestError
from orchestrator.request import (
    DEFAULT_ANSWER_TOKENS,
    MAX_STOP_LENGTH,
    MAX_STOPS,
    Message,
    Priority,
    SamplingParams,
    message_from,
)
from tests.fakes.systems import make_request


@pytest.mark.parametrize("name", ["high", "HIGH", "High"])
def test_a_priority_is_found_by_its_name_in_any_case(name: str) -> None:
    assert Priority.of(name) is Priority.HIGH
    assert Priority.of(Priority.CRITICAL) is Priority.CRITICAL


def test_an_unknown_priority_is_answered_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequestError, match="background, normal, high, critical") as caught:
        Priority.of("urgent")

    assert caught.value.param == "priority"


@settings(deadline=None)
@given(st.floats(0, 2), st.floats(0, 1, exclude_min=True), st.integers(1, 2**31 - 1))
def test_every_value_within_its_range_is_taken(
    temperature: float, top_p: float, max_tokens: int
) -> None:
    sampling = SamplingParams(temperature=temperature, top_p=top_p, max_tokens=max_tokens)

    assert (sampling.temperature, sampling.top_p, sampling.max_tokens) == (
        temperature,
        top_p,
        max_tokens,
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("presence_penalty", -2.1),
        ("frequency_penalty", math.inf),
        ("max_tokens", 0),
        ("max_tokens", 2**31),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", ("x",) * (MAX_STOPS + 1)),
        ("stop", ("x" * (MAX_STOP_LENGTH + 1),)),
    ],
)
def test_every_value_outside_its_range_is_refused_by_name(field: str, value: object) -> None:
    make = cast("Callable[..., object]", SamplingParams)

    with pytest.raises(InvalidRequestError) as caught:
        make(**{field: value})

    assert caught.value.param == field


def test_a_message_keeps_its_other_members_untouched() -> None:
    message = message_from({"role": "tool", "content": "42", "tool_call_id": "c1"}, 0)

    assert message == Message("tool", "42", {"tool_call_id": "c1"})


def test_the_text_of_a_message_is_that_of_its_text_parts() -> None:
    parts: list[dict[str, object]] = [
        {"type": "text", "text": "a "},
        {"type": "image_url", "image_url": {"url": "data:"}},
        {"type": "text", "text": "cat"},
    ]

    assert message_from({"role": "user", "content": parts}, 0).text == "a cat"


def test_only_an_assistant_may_say_nothing() -> None:
    assert message_from({"role": "assistant", "tool_calls": []}, 0).text == ""
    with pytest.raises(InvalidRequestError, match="content is missing"):
        message_from({"role": "user", "content": None}, 0)


@settings(deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["role", "content", "type", "text"]), inner)
        ),
        max_leaves=8,
    )
)
def test_any_message_at_all_is_taken_or_refused_by_its_place(given_message: object) -> None:
    refused: list[str | None] = []
    try:
        message_from(given_message, 3).text.encode()
    except InvalidRequestError as error:
        refused.append(error.param)

    assert all(str(place).startswith("messages[3]") for place in refused)


def test_no_prompt_is_found_in_the_repr_of_a_request() -> None:
    request = make_request(request_id="r-7")

    assert repr(request) == "<PriorityRequest r-7 normal m>"


def test_a_permit_reserves_the_prompt_and_the_longest_answer() -> None:
    assert make_request(max_tokens=100).estimated_tokens == 101
    assert make_request().estimated_tokens == 1 + DEFAULT_ANSWER_TOKENS
