"""Large bodies: decoded in pieces as they would be at once, and never for long at a time."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.anthropic.messages import MESSAGES
from orchestrator.gateway.api import Api
from orchestrator.gateway.chat import CHAT
from orchestrator.gateway.chat_request import ChatCompletionRequest
from orchestrator.gateway.large_body import MAX_DEPTH, decode_large, is_large
from orchestrator.gateway.members import MAX_MESSAGES, Members, decode
from orchestrator.gateway.responses.responses import RESPONSES
from orchestrator.gateway.visit import Visit
from orchestrator.request import PriorityRequest
from orchestrator.runners.remote import (
    anthropic_request,
    gemini_request,
    ollama_request,
    openai_request,
    responses_request,
)
from orchestrator.runners.remote.anthropic_request import AnthropicSettings
from orchestrator.runners.remote.gemini_request import GeminiSettings
from orchestrator.runners.remote.large_request import encode_large
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.settings import RemoteSettings

LONGEST_STEP_SECONDS = 0.015
"""About 2 ms where this was written; at once these bodies take up to 50."""
NAMES = st.text(max_size=6)
PIECES = st.integers(64, 400)
LEAVES = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(-1e9, 1e9) | st.text()
VALUES = st.recursive(
    LEAVES | st.text('a\\"\n,[]{}:é日😀', max_size=150),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)
BODIES = st.dictionaries(NAMES, VALUES, max_size=5)
SIZE = 3_000_000
HEAVY: dict[str, Any] = {
    "escapes": 'a "b" \\\n' * (SIZE // 12),
    "characters of several bytes": "日本😀" * (SIZE // 10),
    "commas and quotes": '","' * (SIZE // 5),
    "many texts": ["as long as usual, so that many of them make a body; " * 40] * 1400,
    "many parts": [{"type": "text", "text": "a, b"}] * 16_000,
    "many small items": [[number, {"a": None}] for number in range(12_000)],
    "an image": "QUJD" * (SIZE // 4),
}


async def longest_step(work: Coroutine[Any, Any, Any]) -> tuple[float, Any]:
    """The CPU seconds of the longest step of some work, and what came of it."""
    task, longest = asyncio.create_task(work), 0.0
    while not task.done():
        began = time.process_time()
        await asyncio.sleep(0)
        longest = max(longest, time.process_time() - began)
    return longest, await task


@settings(deadline=None, max_examples=30)
@given(BODIES, PIECES, st.booleans(), st.sampled_from([None, 1, 60]))
async def test_a_body_in_pieces_is_the_same_as_at_once(
    body: Members, piece_bytes: int, ascii_only: bool, indent: int | None
) -> None:
    content = json.dumps(body, ensure_ascii=ascii_only, indent=indent).encode(errors="replace")

    found = await decode_large(content, ChatCompletionRequest, piece_bytes)

    assert found == decode(content, ChatCompletionRequest)


@settings(deadline=None, max_examples=60)
@given(BODIES, PIECES, st.integers(0, 10**6), st.sampled_from(b'[]{},:"\\ 1x\n\xff'))
@example({"a": ["b" * 500]}, 64, 30, ord('"'))
async def test_a_body_with_a_wrong_byte_is_refused_in_pieces_as_at_once(
    body: Members, piece_bytes: int, place: int, wrong: int
) -> None:
    content = bytearray(json.dumps(body).encode())
    content[place % len(content)] = wrong

    try:
        whole = decode(bytes(content), ChatCompletionRequest)
    except InvalidRequestError:
        whole = None
    try:
        found = await decode_large(bytes(content), ChatCompletionRequest, piece_bytes)
    except InvalidRequestError:
        found = None

    assert found == whole


@settings(deadline=None, max_examples=30)
@given(BODIES, st.booleans())
async def test_a_request_in_pieces_is_the_same_as_at_once(body: Members, order: bool) -> None:
    encoder = msgspec.json.Encoder(order="sorted" if order else None)

    assert b"".join(await encode_large(body, order=order)) == encoder.encode(body)


@pytest.mark.parametrize("item", ["\\ud83d", "\\ud83d and more", "\x01", "\\x"])
async def test_a_long_text_that_is_none_is_refused_with_its_place(item: str) -> None:
    content = b'{"model": "m", "x": "' + b"a" * 200_000 + item.encode() + b'"}'

    with pytest.raises(InvalidRequestError, match=r"no JSON that can be read: .*"):
        await decode_large(content, ChatCompletionRequest)


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (b'{"temperature": 1e999, "x": "%b"}', "temperature"),
        (b'{"x": "%b", "temperature": 1e999}', "temperature"),
        (b'{"x": [1e999, "%b"]}', "x"),
        (b'{"x": {"y": 1e999, "z": "%b"}}', "x"),
    ],
)
async def test_a_number_out_of_range_is_named_with_its_field_in_a_large_body_too(
    content: bytes, param: str
) -> None:
    with pytest.raises(InvalidRequestError, match="number out of range") as refusal:
        await decode_large(content % (b"a" * 300_000), ChatCompletionRequest)

    assert refusal.value.param == param


async def test_a_large_body_that_is_no_object_is_refused_at_its_begin() -> None:
    with pytest.raises(InvalidRequestError, match="expected object, got array"):
        await decode_large(b"  [" + b"1," * 200_000 + b"1]", ChatCompletionRequest)


async def test_a_large_body_nested_too_deeply_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="nested too deeply"):
        await decode_large(b'{"x": ' + b"[" * (MAX_DEPTH + 9), ChatCompletionRequest)


async def test_a_message_too_many_is_told_before_all_are_decoded() -> None:
    messages = b'{"role": "user", "content": "a"},' * (4 * MAX_MESSAGES)

    with pytest.raises(InvalidRequestError, match=f"{MAX_MESSAGES} are the most"):
        await decode_large(b'{"messages": [' + messages, ChatCompletionRequest)


@pytest.mark.parametrize("name", HEAVY)
async def test_no_step_on_a_large_body_holds_the_loop_for_long(name: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "x": HEAVY[name]}
    content = msgspec.json.encode(body)

    async with asyncio.timeout(20):
        decoding, found = await longest_step(decode_large(content, ChatCompletionRequest))
        encoding, again = await longest_step(encode_large(found))

    assert is_large(content)
    assert b"".join(again) == content
    assert max(decoding, encoding) < LONGEST_STEP_SECONDS


TRANSLATIONS: dict[str, Callable[[PriorityRequest], Steps[Mapping[str, object]]]] = {
    "openai": partial(openai_request.payload, OpenAISettings(model="m", base_url="http://m")),
    "openai-responses": partial(
        responses_request.payload, OpenAISettings(model="m", base_url="http://m")
    ),
    "anthropic": partial(anthropic_request.payload, AnthropicSettings(model="m")),
    "gemini": partial(gemini_request.payload, GeminiSettings(model="m")),
    "ollama": partial(ollama_request.payload, RemoteSettings(model="m", base_url="http://m")),
}


def longest_of(steps: Steps[Any]) -> tuple[float, Any]:
    """The CPU seconds of the longest step of some work, and what came of it."""
    longest = 0.0
    while True:
        began = time.thread_time()
        try:
            next(steps)
        except StopIteration as end:
            return longest, end.value
        finally:
            longest = max(longest, time.thread_time() - began)


@pytest.mark.parametrize("api", [CHAT, MESSAGES, RESPONSES], ids=lambda api: api.path)
async def test_as_many_messages_as_may_be_are_read_and_translated_in_no_long_step(
    api: Api,
) -> None:
    turns = [{"role": ("user", "assistant")[number % 2], "content": "hi"} for number in range(4096)]
    body = {"model": "m", "max_tokens": 9, "input" if api is RESPONSES else "messages": turns}
    members = decode(msgspec.json.encode(body), api.body)
    visit = Visit.of({"method": "POST", "path": api.path, "headers": []})

    reading, call = longest_of(api.read(members, visit))
    written = {name: longest_of(payload(call.request)) for name, payload in TRANSLATIONS.items()}

    assert len(call.request.messages) == MAX_MESSAGES
    assert max(reading, *(step for step, _ in written.values())) < LONGEST_STEP_SECONDS
