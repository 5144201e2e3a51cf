from collections.abc import Sequence
from typing import Any

import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, SamplingParams
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.pace import at_once
from orchestrator.runners.remote.responses import factory
from orchestrator.runners.remote.responses_request import payload
from tests.fakes.sse_server import SseServer, answer, event
from tests.runners.remote.asking import a_request, asking

NOTHING: dict[str, Any] = {"type": "object", "properties": {}}


def settings(**others: Any) -> OpenAISettings:
    return OpenAISettings(base_url="http://x.test", model="m", provider="acme", **others)


def asked(*messages: Message, drop: bool = False, **request: Any) -> dict[str, Any]:
    given = {"messages": messages or (Message("user", "hi"),)}
    return at_once(payload(settings(drop_params=drop), a_request(**given, **request)))


def refused(*messages: Message, **request: Any) -> str | None:
    with pytest.raises(InvalidRequestError, match=r"acme|messages\[") as caught:
        asked(*messages, **request)
    return caught.value.param


def test_what_nobody_set_is_left_to_the_provider_but_nothing_is_stored():
    assert asked() == {
        "model": "m",
        "stream": True,
        "store": False,
        "input": [{"role": "user", "content": "hi"}],
    }


def test_the_deployments_own_members_give_way_to_the_callers():
    body = at_once(
        payload(
            settings(extra_body={"store": True, "temperature": 1.0, "truncation": "auto"}),
            a_request(sampling=SamplingParams(temperature=0.5, top_p=0.9, max_tokens=7)),
        )
    )

    assert body["store"] is True
    assert body["truncation"] == "auto"
    assert (body["temperature"], body["top_p"], body["max_output_tokens"]) == (0.5, 0.9, 7)


def test_a_conversation_becomes_items_in_the_same_order():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    image = {"type": "image_url", "image_url": {"url": "http://a.test/i.png", "detail": "low"}}
    file = {"type": "file", "file": {"file_id": "file-1"}}

    found = asked(
        Message("system", "be brief"),
        Message("user", [{"type": "text", "text": "what"}, image, file]),
        Message("assistant", "wait", {"tool_calls": [call], "reasoning_content": "hm"}),
        Message("tool", "2", {"tool_call_id": "c1", "name": "f"}),
        Message("assistant", None, {"refusal": "no"}),
        Message("assistant", [{"type": "text", "text": "two"}]),
        Message("user", [{"type": "input_text", "text": "native"}]),
    )["input"]

    assert found == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [
            {"type": "input_text", "text": "what"},
            {"type": "input_image", "image_url": "http://a.test/i.png", "detail": "low"},
            {"type": "input_file", "file_id": "file-1"},
        ]},
        {"role": "assistant", "content": "wait"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "native"}]},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def official() -> TypeAdapter[Any]:
    """The official client's own type of a request."""
    return TypeAdapter(ResponseCreateParamsStreaming)


def test_the_official_types_take_what_is_sent(official: TypeAdapter[Any]):
    call = {"id": "c1", "function": {"name": "f", "arguments": "{}"}}
    image = {"type": "image_url", "image_url": {"url": "http://a.test/i.png"}}
    body = asked(
        Message("developer", "be brief"),
        Message("user", [{"type": "text", "text": "what"}, image]),
        Message("assistant", "wait", {"tool_calls": [call]}),
        Message("tool", "2", {"tool_call_id": "c1"}),
        sampling=SamplingParams(temperature=0.5, max_tokens=20),
        extra={
            "tools": [FUNCTION],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "response_format": {"type": "json_schema", "json_schema": SCHEMA},
            "reasoning_effort": "low",
            "logprobs": True,
        },
    )

    taken = official.validate_python(body)

    # the types read their lists late
    assert {**taken, "tools": list(taken["tools"])} == body


FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {"name": "f", "description": "d", "strict": True},
}
SCHEMA: dict[str, Any] = {"name": "s", "schema": {"type": "object"}, "strict": True}


FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"tools": [FUNCTION, {"type": "web_search"}]},
     {"tools": [{"type": "function", "name": "f", "description": "d", "parameters": NOTHING,
                 "strict": True}, {"type": "web_search"}]}),
    ({"tools": [{"type": "function", "function": {"name": "g", "parameters": {"a": 1}}}]},
     {"tools": [{"type": "function", "name": "g", "parameters": {"a": 1}, "strict": False}]}),
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}},
     {"tool_choice": {"type": "function", "name": "f"}}),
    ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {
        "mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}}},
     {"tool_choice": {"type": "allowed_tools", "mode": "auto",
                      "tools": [{"type": "function", "name": "f"}]}}),
    ({"response_format": {"type": "json_object"}},
     {"text": {"format": {"type": "json_object"}}}),
    ({"response_format": {"type": "json_schema", "json_schema": SCHEMA}, "verbosity": "low"},
     {"text": {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"}}),
    ({"reasoning_effort": "low", "reasoning": {"summary": "auto"}},
     {"reasoning": {"effort": "low", "summary": "auto"}}),
    ({"logprobs": True, "top_logprobs": 3, "include": ["x"]},
     {"top_logprobs": 3, "include": ["x", "message.output_text.logprobs"]}),
    ({"logprobs": False, "n": 1, "stream_options": {"include_usage": True}}, {}),
    ({"stream_options": {"include_obfuscation": False}},
     {"stream_options": {"include_obfuscation": False}}),
    ({"metadata": {"a": "b"}, "user": "u", "store": True, "vendor": [1]},
     {"metadata": {"a": "b"}, "user": "u", "store": True, "vendor": [1]}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "sent"), FIELDS)
def test_fields_of_a_chat_completion_become_those_of_a_response(
    given: dict[str, Any], sent: dict[str, Any]
):
    assert asked(extra=given) == asked() | sent


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        ({"sampling": SamplingParams(seed=1)}, "seed"),
        ({"sampling": SamplingParams(stop=("x",))}, "stop"),
        ({"sampling": SamplingParams(presence_penalty=0.5)}, "presence_penalty"),
        ({"sampling": SamplingParams(frequency_penalty=0.0)}, "frequency_penalty"),
        ({"extra": {"n": 2}}, "n"),
        ({"extra": {"logit_bias": {"1": 1}}}, "logit_bias"),
        ({"extra": {"functions": [{"name": "f"}]}}, "functions"),
        ({"extra": {"tools": [{"type": "custom", "custom": {"name": "c"}}]}}, "tools[0]"),
        ({"messages": [Message("user", "a", {"name": "Ann"})]}, "messages[0].name"),
    ],
)
def test_what_the_api_can_not_do_is_refused_by_name_or_dropped(
    request_: dict[str, Any], param: str
):
    given = dict(request_)
    messages: Sequence[Message] = given.pop("messages", ())

    assert refused(*messages, **given) == param
    assert param not in asked(*messages, drop=True, **given)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        (Message("user", [{"type": "input_audio", "input_audio": {}}]), "messages[0].content[0]"),
        (Message("user", [{"type": "file"}]), "messages[0].content[0]"),
        (Message("user", [{"type": "image_url"}]), "messages[0].content[0].image_url.url"),
        (Message("function", "1"), "messages[0].role"),
        (Message("assistant", None, {"tool_calls": [{"id": "c"}]}), "messages[0].tool_calls[0]"),
    ],
)
def test_a_message_that_the_api_can_not_read_is_refused_with_its_place(
    message: Message, param: str
):
    assert refused(message, extra={}) == param


@pytest.mark.live
async def test_the_slots_refuse_before_and_ask_at_the_address_of_responses():
    done = event({"type": "response.completed"})
    async with (
        SseServer(
            answer(event({"type": "response.output_text.delta", "delta": "a"}), done)
        ) as server,
        asking(server, make=factory, api_key=lambda: "k-1", organization="org") as asker,
    ):
        with pytest.raises(InvalidRequestError):
            asker.factory.inspect(a_request(extra={"n": 2}))
        assert (await asker.ask()).text == "a"

        assert server.requests[0].line == "POST /v1/responses HTTP/1.1"
        assert server.requests[0].headers["authorization"] == "Bearer k-1"
        assert server.requests[0].headers["openai-organization"] == "org"
