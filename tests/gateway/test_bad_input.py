"""Whatever is wrong with a request is refused by field before anything reaches a runner."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator

import pytest

from orchestrator.errors import ContextLengthExceededError, InvalidRequestError
from orchestrator.gateway.chat_request import ChatCall, ChatCompletionRequest, read_call
from orchestrator.gateway.large_body import LARGE_BODY_BYTES, decode_large
from orchestrator.gateway.members import MAX_IMAGES, decode
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.remote.pace import at_once
from tests.fakes.scripted import DONE
from tests.gateway.serving import CHAT, MAX_BODY, body, plays, serving

USER = {"role": "user", "content": "hi"}

WRONG_FIELDS: list[tuple[dict[str, object], str]] = [
    ({"model": 1}, "model"),
    ({"model": None}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [1]}, "messages[0]"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content[0]"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    ({"seed": -1}, "seed"),
    ({"seed": 10**30}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 1]}, "stop[1]"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["a"] * 17}, "stop"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"n": 129}, "n"),
    ({"n": 1.5}, "n"),
    ({"n": 0}, "n"),
    ({"stream": 0}, "stream"),
    ({"stream": "true"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"priority": "urgent"}, "priority"),
    ({"priority": 3}, "priority"),
    ({"deadline": -1}, "deadline"),
    ({"deadline": 0}, "deadline"),
    ({"deadline": "30s"}, "deadline"),
]

MANY = 700_000
PART = {"type": "text", "text": ""}
TOO_MUCH: list[tuple[str, bytes, str | None]] = [
    ("messages", b'{"model": "m", "messages": [' + b"{}," * MANY + b"{}]}", "messages"),
    (
        "parts",
        b'{"model": "m", "messages": [{"role": "user", "content": [' + b"{}," * MANY + b"{}]}]}",
        None,
    ),
    ("lists", b'{"model": "m", "messages": [], "x": [' + b"[]," * MANY + b"1]}", None),
    ("numbers", b'{"model": "m", "messages": [], "x": [' + b"0.1," * MANY + b"1]}", None),
    ("texts", b'{"model": "m", "messages": [], "x": [' + b'"",' * MANY + b"1]}", None),
    ("fields", b'{"model": "m", "messages": []' + b',"a":null' * MANY + b"}", None),
    ("a text without its end", b'{"model": "' + b'\\",' * MANY, None),
    ("a long model", json.dumps(body(model="m" * 257)).encode(), "model"),
    ("some messages too many", json.dumps(body(messages=[USER] * 4097)).encode(), "messages"),
    (
        "some parts too many",
        json.dumps(body(messages=[USER, {"role": "user", "content": [PART] * 4097}])).encode(),
        "messages[1].content",
    ),
    (
        "some parts in all too many",
        json.dumps(body(messages=[{"role": "user", "content": [PART] * 3300}] * 5)).encode(),
        "messages",
    ),
    (
        "some fields too many",
        json.dumps(body(**{f"f{number}": None for number in range(257)})).encode(),
        "f256",
    ),
]

NO_JSON = [
    b"",
    b"{",
    b"nothing",
    b"[]",
    b"null",
    b'"text"',
    b"5",
    b'{"model": "m", "messages": [], "temperature": NaN}',
    b'{"model": "m", "messages": [], "temperature": Infinity}',
    b'{"model": "\xff", "messages": []}',
    b'{"model": "\\ud83d", "messages": []}',
    b'{"model": "m", "messages": ' + b"[" * 50_000,
]


def read(payload: bytes, timeout: str | None = None) -> ChatCall:
    return at_once(read_call(decode(payload, ChatCompletionRequest), "r", timeout))


@pytest.mark.parametrize(("members", "param"), WRONG_FIELDS)
def test_a_wrong_field_is_named_in_the_refusal(members: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read(json.dumps(body(**members)).encode())

    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("payload", "param"),
    [pytest.param(payload, param, id=name) for name, payload, param in TOO_MUCH],
)
async def test_a_body_of_too_many_pieces_is_refused_before_they_cost(
    payload: bytes, param: str | None
) -> None:
    began = time.process_time()
    with pytest.raises(InvalidRequestError) as refusal:
        at_once(read_call(await decode_large(payload, ChatCompletionRequest), "r"))
    took = time.process_time() - began

    assert refusal.value.param == param
    assert took < 0.3


async def test_a_long_text_may_have_as_many_commas_as_it_likes() -> None:
    text = 'a, [b], {"c"}, ' * 100_000

    payload = json.dumps(body(messages=[{"role": "user", "content": text}])).encode()
    call = at_once(read_call(await decode_large(payload, ChatCompletionRequest), "r"))

    assert call.request.messages[0].content == text


async def test_no_wrong_field_reaches_a_runner() -> None:
    stage = plays("a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        responses = [await served.ask(**members) for members, _ in WRONG_FIELDS]

    errors = [response.json()["error"] for response in responses]
    assert {response.status_code for response in responses} == {400}
    assert [error["param"] for error in errors] == [param for _, param in WRONG_FIELDS]
    assert {error["type"] for error in errors} == {"invalid_request_error"}
    assert {frozenset(error) for error in errors} == {
        frozenset(("message", "type", "param", "code"))
    }
    assert stage.calls == []


async def test_a_body_that_is_no_json_object_is_a_400() -> None:
    stage = plays("a", DONE)

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        responses = [await served.client.post(CHAT, content=payload) for payload in NO_JSON]

    assert {response.status_code for response in responses} == {400}
    assert {response.json()["error"]["code"] for response in responses} == {"invalid_request"}
    assert stage.calls == []


@pytest.mark.parametrize("text", [r'"\ud83d"', r'"\ud83d and more"', r'"\udc00"'])
def test_half_a_character_in_a_body_is_told_as_such(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="lone surrogate"):
        read(b'{"messages": [], "model": %s}' % text.encode())


@pytest.mark.parametrize("field", ["model", "messages"])
def test_a_missing_field_is_named_in_the_error(field: str) -> None:
    members = body()
    del members[field]

    with pytest.raises(InvalidRequestError) as refusal:
        read(json.dumps(members).encode())

    assert refusal.value.param == field


def test_a_number_out_of_range_is_named_with_its_field() -> None:
    payload = json.dumps(body(temperature=0.5)).replace("0.5", "1e999").encode()

    with pytest.raises(InvalidRequestError) as refusal:
        read(payload)

    assert refusal.value.param == "temperature"


async def test_an_unknown_model_is_404_with_the_nearest_name() -> None:
    stage = plays("a", DONE)

    async with asyncio.timeout(5), serving({"small": stage}) as served:
        response = await served.ask(model="smal")

    assert response.status_code == 404
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "did you mean 'small'" in error["message"]
    assert stage.calls == []


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_above_the_limit_is_413_whether_announced_or_not(announced: bool) -> None:
    stage = plays("a", DONE)
    payload = json.dumps(body(padding="x" * (10 << 20))).encode()

    async def pieces() -> AsyncGenerator[bytes]:
        for start in range(0, len(payload), 1 << 16):
            yield payload[start : start + (1 << 16)]

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        response = await served.client.post(CHAT, content=payload if announced else pieces())
        after = await served.ask()

    assert len(payload) > MAX_BODY
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert after.status_code == 200
    assert len(stage.calls) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_context_that_is_too_long_is_a_400_before_the_queue(stream: bool) -> None:
    stage = plays("a", DONE)

    def inspect(_request: PriorityRequest) -> None:
        raise ContextLengthExceededError("9000 tokens don't fit into 8192", param="messages")

    strict = SlotFactory(create=stage.factory().create, model="strict", inspect=inspect)
    stage.factory = lambda: strict

    async with asyncio.timeout(5), serving({"m": stage}) as served:
        response = await served.ask(stream=stream)

    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    assert stage.calls == []


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf", ""])
def test_a_timeout_header_that_is_no_time_is_named(value: str) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        read(json.dumps(body()).encode(), value)

    assert refusal.value.param == "x-request-timeout"


@pytest.mark.parametrize(("count", "status"), [(MAX_IMAGES, 200), (MAX_IMAGES + 1, 400)])
async def test_only_so_many_images_are_taken_in_all_messages_together(
    count: int, status: int
) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    messages = [{"role": "user", "content": [image]} for _ in range(count)]

    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        response = await served.ask(messages=messages)

    assert response.status_code == status
    if status == 400:
        assert response.json()["error"]["param"] == "messages"
        assert f"{MAX_IMAGES} are the most" in response.json()["error"]["message"]


async def test_a_large_body_is_read_in_pieces_and_answered_or_refused_alike() -> None:
    long = [{"role": "user", "content": "x" * (LARGE_BODY_BYTES + 1)}]

    async with asyncio.timeout(5), serving({"m": plays("a", DONE)}) as served:
        answered = await served.ask(messages=long)
        refused = await served.ask(messages=long, temperature="warm")

    assert answered.status_code == 200
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
