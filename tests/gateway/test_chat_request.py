"""Bodies of chat requests, read without a server."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.chat_request import ChatCall, ChatCompletionRequest, read_call
from orchestrator.gateway.members import decode
from orchestrator.request import Priority, SamplingParams
from orchestrator.runners.remote.pace import at_once

USER = {"role": "user", "content": "hi"}
FIELDS = list(ChatCompletionRequest.__struct_fields__)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)


def encoded(**members: object) -> bytes:
    return json.dumps({"model": "m", "messages": [USER]} | members).encode()


def read(payload: bytes, timeout: str | None = None) -> ChatCall:
    return at_once(read_call(decode(payload, ChatCompletionRequest), "r", timeout))


def test_every_known_field_finds_its_place() -> None:
    call = read(
        encoded(
            temperature=0.5,
            top_p=0.9,
            max_tokens=7,
            stop=["a", "b"],
            seed=3,
            presence_penalty=1,
            frequency_penalty=-1,
            priority="high",
            deadline=2.5,
            stream=True,
            stream_options={"include_usage": True},
        )
    )

    assert call.stream
    assert call.include_usage
    assert call.request.request_id == "r"
    assert call.request.priority is Priority.HIGH
    assert call.request.timeout == 2.5
    assert not call.request.channel.held
    assert not call.request.extra
    assert call.request.sampling == SamplingParams(
        temperature=0.5,
        top_p=0.9,
        max_tokens=7,
        stop=("a", "b"),
        seed=3,
        presence_penalty=1,
        frequency_penalty=-1,
    )


def test_a_request_without_stream_holds_its_answer_back() -> None:
    assert read(encoded()).request.channel.held


def test_both_names_for_the_longest_answer_mean_the_same() -> None:
    assert read(encoded(max_completion_tokens=9)).request.sampling.max_tokens == 9
    assert read(encoded(stop="x")).request.sampling.stop == ("x",)


def test_the_shorter_of_header_and_field_is_the_deadline() -> None:
    assert read(encoded(deadline=9), "2").request.timeout == 2
    assert read(encoded(deadline=1), "2").request.timeout == 1
    assert read(encoded(), "2").request.timeout == 2
    assert read(encoded()).request.timeout is None


def test_fields_that_are_null_mean_their_default() -> None:
    call = read(encoded(**dict.fromkeys(FIELDS[2:])))

    assert not call.stream
    assert call.request.sampling == SamplingParams()


def test_a_duplicate_field_counts_once() -> None:
    body = b'{"model": "a", "model": "b", "messages": [{"role": "user", "content": "hi"}]}'

    assert read(body).request.model == "b"


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), JSON, max_size=6))
def test_any_json_object_is_read_or_refused_with_a_field(members: dict[str, object]) -> None:
    payload = json.dumps(members).encode()
    try:
        call = read(payload)
    except InvalidRequestError as error:
        refusal = error
    else:
        assert call.request.model == members["model"]
        return

    assert refusal.param is not None
    assert "$" not in refusal.message


@settings(deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read(body)
