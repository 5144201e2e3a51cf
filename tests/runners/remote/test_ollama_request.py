from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, SamplingParams
from orchestrator.runners.remote.ollama import factory
from orchestrator.runners.remote.ollama_request import payload
from orchestrator.runners.remote.pace import at_once
from orchestrator.runners.remote.settings import RemoteSettings
from tests.fakes.sse_server import Send, SseServer, head
from tests.runners.remote.asking import a_request, asking

PNG = "data:image/png;base64,aGk="
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def settings(**others: Any) -> RemoteSettings:
    return RemoteSettings(base_url="http://x.test", model="m", provider="acme", **others)


def asked(*messages: Message, drop: bool = False, **request: Any) -> dict[str, Any]:
    given = {"messages": messages or (Message("user", "hi"),)}
    return at_once(payload(settings(drop_params=drop), a_request(**given, **request)))


def messages_of(*messages: Message) -> list[Any]:
    return asked(*messages)["messages"]


def refused(*messages: Message, **request: Any) -> str | None:
    with pytest.raises(InvalidRequestError, match=r"acme|messages\[") as caught:
        asked(*messages, **request)
    return caught.value.param


def test_sampling_and_options_go_where_ollama_looks_for_them():
    sampling = SamplingParams(
        temperature=0.5, top_p=0.9, max_tokens=7, seed=3, stop=("\n",),
        presence_penalty=0.1, frequency_penalty=0.2,
    )  # fmt: skip
    body = asked(
        sampling=sampling,
        extra={"top_k": 5, "options": {"num_ctx": 8192, "seed": 1}, "keep_alive": "5m", "x": 1},
    )

    assert body == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
        "keep_alive": "5m",
        "x": 1,
        "options": {
            "temperature": 0.5, "top_p": 0.9, "num_predict": 7, "seed": 3, "stop": ("\n",),
            "presence_penalty": 0.1, "frequency_penalty": 0.2, "num_ctx": 8192, "top_k": 5,
        },
    }  # fmt: skip


def test_what_nobody_set_is_left_to_the_model():
    assert asked() == {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": "hi"}],
    }


def test_a_conversation_with_images_and_tools_is_put_in_its_words():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    image = {"type": "image_url", "image_url": {"url": PNG}}
    text = {"type": "text", "text": "what"}

    found = messages_of(
        Message("developer", "be brief"),
        Message("user", [text, image, text]),
        Message("assistant", None, {"tool_calls": [call], "reasoning_content": "hm"}),
        Message("tool", "2", {"tool_call_id": "c1"}),
        Message("tool", "3", {"tool_call_id": "c2", "name": "g"}),
    )

    assert found == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "whatwhat", "images": ["aGk="]},
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
            {"id": "c1", "function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "tool", "content": "2", "tool_call_id": "c1", "tool_name": "f"},
        {"role": "tool", "content": "3", "tool_call_id": "c2", "tool_name": "g"},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"format": "json"}),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
         {"format": {"a": 1}}),
        ({"reasoning_effort": "high"}, {"think": "high"}),
        ({"reasoning_effort": "none"}, {"think": False}),
        ({"think": True}, {"think": True}),
        ({"tools": [TOOL], "tool_choice": "none"}, {}),
        ({"user": "u", "metadata": {"a": "b"}, "store": True, "n": 1}, {}),
        ({"service_tier": "auto", "parallel_tool_calls": True}, {}),
    ],
)  # fmt: skip
def test_fields_of_openai_become_those_of_ollama(given: dict[str, Any], sent: dict[str, Any]):
    assert asked(extra=given) == asked() | sent


def test_tools_keep_their_shape_and_get_what_ollama_needs():
    (tool,) = asked(extra={"tools": [TOOL], "tool_choice": "auto"})["tools"]

    assert tool == {
        "type": "function",
        "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
    }


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"n": 2}, "n"),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "custom", "custom": {"name": "c"}}]}, "tools[0]"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_what_ollama_can_not_do_is_refused_by_name_or_dropped(given: dict[str, Any], param: str):
    assert refused(extra=given) == param

    dropped = asked(drop=True, extra=given)

    assert param not in dropped
    assert dropped.keys() <= asked().keys() | {"tools"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([Message("user", [{"type": "image_url", "image_url": {"url": "http://a.test/i.png"}}])],
         "messages[0].content[0]"),
        ([Message("user", "a"), Message("user", [{"type": "input_audio", "input_audio": {}}])],
         "messages[1].content[0]"),
        ([Message("user", [{"type": "image_url"}])], "messages[0].content[0].image_url.url"),
        ([Message("function", "1", {"name": "f"})], "messages[0].role"),
        ([Message("user", "a", {"name": "Ann"})], "messages[0].name"),
        ([Message("assistant", None, {"tool_calls": [
            {"id": "c", "function": {"name": "f", "arguments": "{"}}]})],
         "messages[0].tool_calls[0].function.arguments"),
    ],
)  # fmt: skip
def test_a_message_that_ollama_can_not_read_is_refused_with_its_place(
    messages: Sequence[Message], param: str
):
    assert refused(*messages) == param


@pytest.mark.live
async def test_the_slots_refuse_before_and_ask_at_the_native_address():
    script = [Send(head(content_type="application/x-ndjson", framing="connection: close"))]
    async with (
        SseServer([*script, Send(b'{"message":{"content":"a"},"done":true}\n')]) as server,
        asking(
            server.url.removesuffix("/v1") + "/",
            kind=RemoteSettings,
            make=factory,
            api_key=lambda: "k-1",
        ) as asker,
    ):
        with pytest.raises(InvalidRequestError):
            asker.factory.inspect(a_request(extra={"n": 2}))
        assert (await asker.ask()).text == "a"

        assert server.requests[0].line == "POST /api/chat HTTP/1.1"
        assert server.requests[0].headers["authorization"] == "Bearer k-1"
        assert server.requests[0].headers["accept"] == "application/x-ndjson"
