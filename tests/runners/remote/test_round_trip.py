"""What an answer brings goes back with the next request, and is what its provider asks for."""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pydantic
import pytest
from anthropic.types.message_create_params import MessageCreateParamsStreaming
from google.genai import types
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.answer import whole_answer
from orchestrator.request import Message, SamplingParams, message_from
from orchestrator.runners.remote import anthropic_request, gemini_request
from orchestrator.runners.remote.anthropic_request import AnthropicSettings
from orchestrator.runners.remote.gemini_request import GeminiSettings
from orchestrator.runners.remote.pace import at_once
from tests.fakes.sse_server import SseServer, answer
from tests.runners.remote import anthropic_wire, gemini_wire
from tests.runners.remote.asking import Asker, a_request

MESSAGES_API: pydantic.TypeAdapter[MessageCreateParamsStreaming] = pydantic.TypeAdapter(
    MessageCreateParamsStreaming
)

SAMPLING = {"temperature", "stop_sequences"}
"""Known to the API for older models, if not to the types."""


async def answered(asker: Asker) -> Mapping[str, Any]:
    """One answer as a caller gets it from the gateway, whole."""
    found = await asker.ask()
    assert found.ending is not None
    body = whole_answer(found.chunks, found.ending, completion_id="c", model="m", created=0)
    message: Mapping[str, Any] = json.loads(body)["choices"][0]["message"]
    return message


def results(message: Mapping[str, Any]) -> list[object]:
    return [
        {"role": "tool", "tool_call_id": call["id"], "content": "done"}
        for call in message["tool_calls"]
    ]


def conversation(*given: object) -> list[Message]:
    return [message_from(message, index) for index, message in enumerate(given)]


@pytest.mark.live
async def test_thinking_and_calls_of_the_messages_api_go_back_as_they_came():
    async with (
        SseServer(answer(*anthropic_wire.CALLS)) as server,
        anthropic_wire.asking(server) as asker,
    ):
        message = await answered(asker)
        await asker.ask(
            messages=conversation({"role": "user", "content": "a"}, message, *results(message))
        )

        sent: Any = server.requests[1].json["messages"]

    signature = "EqQBCgIYAhIM1gbcDa9GJwZA2b3h"
    first, second = "toolu_01T1x1fJ34qAmk2tNTrN7Up6", "toolu_02"
    assert sent[1]["content"] == [
        {"type": "thinking", "thinking": "Which city?", "signature": signature},
        {"type": "text", "text": "I'll look."},
        {
            "type": "tool_use",
            "id": first,
            "name": "get_weather",
            "input": {"location": "San Francisco, CA"},
        },
        {"type": "tool_use", "id": second, "name": "now", "input": {}},
    ]
    assert [block["tool_use_id"] for block in sent[2]["content"]] == [first, second]


@pytest.mark.live
async def test_signatures_and_calls_of_gemini_go_back_as_they_came():
    async with (
        SseServer(answer(*gemini_wire.CALLS)) as server,
        gemini_wire.asking(server) as asker,
    ):
        message = await answered(asker)
        await asker.ask(
            messages=conversation({"role": "user", "content": "a"}, message, *results(message))
        )

        sent: Any = server.requests[1].json["contents"]

    arguments = {"location": "Boston", "days": 2}
    assert sent[1]["parts"] == [
        {"text": "I'll look.", "thoughtSignature": "Ew=="},
        {
            "functionCall": {"name": "get_weather", "args": arguments},
            "thoughtSignature": gemini_wire.SIGNATURE,
        },
        {"functionCall": {"name": "now", "args": {}, "id": "fc-7"}},
    ]
    assert [part["functionResponse"] for part in sent[2]["parts"]] == [
        {"name": "get_weather", "response": {"output": "done"}},
        {"name": "now", "response": {"output": "done"}, "id": "fc-7"},
    ]


def text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def refusal_part(text: str) -> dict[str, Any]:
    return {"type": "refusal", "refusal": text}


def call(call_id: str, name: str, arguments: object) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def format_of(kind: str) -> dict[str, Any]:
    return {"type": kind, "json_schema": {"name": "n", "schema": {"type": "object"}}}


texts = st.text(max_size=6)
names = st.sampled_from(["f", "g"])
urls = st.sampled_from(["data:image/png;base64,aGk=", "https://x.test/a.png"])
parts = st.lists(
    st.one_of(
        st.builds(text_part, texts), st.builds(image_part, urls), st.builds(refusal_part, texts)
    ),
    max_size=3,
)
call_ids = st.sampled_from(["call_a", "call_b"])
arguments = st.dictionaries(texts, texts | st.integers(), max_size=2)
calls = st.lists(st.builds(call, call_ids, names, arguments), max_size=2)
messages = st.lists(
    st.one_of(
        st.builds(Message, st.sampled_from(["user", "system", "developer"]), texts | parts),
        st.builds(
            Message,
            st.just("assistant"),
            st.none() | texts | parts,
            st.fixed_dictionaries({"tool_calls": calls}),
        ),
        st.builds(
            Message, st.just("tool"), texts, st.fixed_dictionaries({"tool_call_id": call_ids})
        ),
    ),
    min_size=1,
    max_size=6,
)
sampling = st.builds(
    SamplingParams,
    temperature=st.none() | st.floats(0, 2),
    max_tokens=st.none() | st.integers(1, 99),
    seed=st.none() | st.integers(0, 2**40),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=6).map(tuple),
)
choices: list[Any] = ["auto", "none", "required", function("f")]
optional: dict[str, st.SearchStrategy[Any]] = {
    "tools": st.lists(st.builds(function, names), max_size=2),
    "tool_choice": st.sampled_from(choices),
    "parallel_tool_calls": st.booleans(),
    "response_format": st.builds(
        format_of, st.sampled_from(["text", "json_object", "json_schema"])
    ),
    "reasoning_effort": st.sampled_from(["none", "low", "high", "xhigh"]),
    "user": texts,
    "n": st.integers(1, 2),
    "logprobs": st.booleans(),
    "logit_bias": st.dictionaries(texts, st.integers(), max_size=1),
}
no_extras: dict[str, st.SearchStrategy[Any]] = {}
extras: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(no_extras, optional=optional)


@given(messages=messages, sampling=sampling, extra=extras, drop=st.booleans())
@settings(deadline=None, max_examples=150)
def test_any_request_is_refused_or_becomes_one_that_the_messages_api_knows(
    messages: Sequence[Message], sampling: SamplingParams, extra: dict[str, object], drop: bool
):
    request = a_request(messages=messages, sampling=sampling, extra=extra)
    try:
        body = at_once(
            anthropic_request.payload(AnthropicSettings(model="m", drop_params=drop), request)
        )
    except InvalidRequestError as error:
        assert error.param is not None  # noqa: PT017 - the other outcome is no error at all
        return

    sent: dict[str, Any] = json.loads(json.dumps(body))
    roles = [turn["role"] for turn in sent["messages"]]
    assert all(one != other for one, other in pairwise(roles))
    blocks = [block for turn in sent["messages"] for block in turn["content"]]
    assert all(block.get("text") != "" for block in blocks)
    params = MessageCreateParamsStreaming
    assert sent.keys() <= params.__required_keys__ | params.__optional_keys__ | SAMPLING
    MESSAGES_API.validate_python(sent)


@given(messages=messages, sampling=sampling, extra=extras, drop=st.booleans())
@settings(deadline=None, max_examples=150)
def test_any_request_is_refused_or_becomes_one_that_gemini_knows(
    messages: Sequence[Message], sampling: SamplingParams, extra: dict[str, object], drop: bool
):
    request = a_request(messages=messages, sampling=sampling, extra=extra)
    try:
        given_ = at_once(
            gemini_request.payload(GeminiSettings(model="m", drop_params=drop), request)
        )
    except InvalidRequestError as error:
        assert error.param is not None  # noqa: PT017 - the other outcome is no error at all
        return

    body: dict[str, Any] = json.loads(json.dumps(given_))
    assert all(part.get("text") != "" for turn in body["contents"] for part in turn["parts"])
    contents = [types.Content.model_validate(turn) for turn in body.pop("contents")]
    assert all(one.role != other.role for one, other in pairwise(contents))
    generation = body.pop("generationConfig", {})
    generation.pop("responseJsonSchema", None)  # younger than these types
    types.GenerationConfig.model_validate(generation)
    types.Content.model_validate(body.pop("systemInstruction", {}))
    types.ToolConfig.model_validate(body.pop("toolConfig", {}))
    for tool in body.pop("tools", []):
        types.Tool.model_validate(tool)
    assert body == {}
