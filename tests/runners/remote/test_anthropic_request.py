import json
from typing import Any

import pytest

from orchestrator.errors import ConfigError, InvalidRequestError
from orchestrator.request import Message, SamplingParams
from orchestrator.runners.remote.anthropic import factory
from orchestrator.runners.remote.anthropic_request import AnthropicSettings, payload
from orchestrator.runners.remote.pace import at_once
from tests.fakes.sse_server import SseServer, answer
from tests.runners.remote.anthropic_wire import HELLO, asking
from tests.runners.remote.asking import a_request

PNG = "data:image/png;base64,iVBORw0KGgo="
CALL = {"id": "toolu_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def body_of(*messages: Message, drop: bool = False, **request: Any) -> dict[str, Any]:
    settings = AnthropicSettings(model="claude", drop_params=drop)
    if messages:
        request["messages"] = messages
    return json.loads(json.dumps(at_once(payload(settings, a_request(**request)))))


def user(content: Any) -> Message:
    return Message("user", content)


def text(value: str, **members: object) -> dict[str, object]:
    return {"type": "text", "text": value, **members}


@pytest.mark.live
async def test_a_request_says_what_was_asked_in_the_apis_own_words():
    async with (
        SseServer(answer(*HELLO)) as server,
        asking(
            server,
            api_key=lambda: "k-1\n",
            headers={"anthropic-beta": "context-1m-2025-08-07"},
            extra_body={"top_k": 5, "service_tier": "auto"},
        ) as asker,
    ):
        await asker.ask(
            messages=[Message("system", "be brief"), user("hi")],
            sampling=SamplingParams(temperature=0.5, top_p=0.9, max_tokens=7, stop=("\n",)),
            extra={"top_k": 6, "thinking": {"type": "enabled", "budget_tokens": 1024}},
        )

        asked = server.requests[0]
        assert asked.line == "POST /v1/messages HTTP/1.1"
        assert asked.headers["x-api-key"] == "k-1"
        assert asked.headers["anthropic-version"] == "2023-06-01"
        assert asked.headers["anthropic-beta"] == "context-1m-2025-08-07"
        assert "authorization" not in asked.headers
        assert asked.json == {
            "model": "m",
            "stream": True,
            "max_tokens": 7,
            "system": "be brief",
            "messages": [{"role": "user", "content": [text("hi")]}],
            "temperature": 0.5,
            "top_p": 0.9,
            "stop_sequences": ["\n"],
            "top_k": 6,
            "service_tier": "auto",
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }


def test_a_request_that_names_no_length_gets_that_of_the_deployment():
    settings = AnthropicSettings(model="claude", max_tokens=99)

    assert at_once(payload(settings, a_request()))["max_tokens"] == 99
    given = a_request(extra={"max_tokens": 5})
    assert at_once(payload(settings, given))["max_tokens"] == 5
    assert body_of()["max_tokens"] == 4096


def test_system_and_developer_messages_become_one_prompt_wherever_they_stand():
    body = body_of(
        Message("system", "one"), user("hi"), Message("developer", [text("two")]), user("ho")
    )

    assert body["system"] == "one\ntwo"
    assert body["messages"] == [{"role": "user", "content": [text("hi"), text("ho")]}]


def test_marks_on_a_system_prompt_keep_its_blocks_apart():
    marked = text("two", cache_control={"type": "ephemeral"})

    body = body_of(Message("system", "one"), Message("system", [marked]), user("hi"))

    assert body["system"] == [text("one"), marked]


def test_a_conversation_with_tools_becomes_turns_of_blocks():
    body = body_of(
        user("weather?"),
        Message("assistant", "Let me see.", {"tool_calls": [CALL, {**CALL, "id": "toolu_2"}]}),
        Message("tool", "sunny", {"tool_call_id": "toolu_1"}),
        Message("tool", [text("rain")], {"tool_call_id": "toolu_2", "is_error": True}),
        user("thanks"),
        Message("assistant", None, {"refusal": "I can't"}),
    )

    def use(call_id: str) -> dict[str, object]:
        return {"type": "tool_use", "id": call_id, "name": "f", "input": {"a": 1}}

    assert body["messages"] == [
        {"role": "user", "content": [text("weather?")]},
        {
            "role": "assistant",
            "content": [text("Let me see."), use("toolu_1"), use("toolu_2")],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sunny"},
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_2",
                    "content": [text("rain")],
                    "is_error": True,
                },
                text("thanks"),
            ],
        },
        {"role": "assistant", "content": [text("I can't")]},
    ]


def test_thinking_goes_back_before_everything_else_of_its_turn():
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    fields = {"thinking_blocks": [thought], "reasoning_content": "hm", "tool_calls": [CALL]}

    body = body_of(user("a"), Message("assistant", None, fields))

    assert [block["type"] for block in body["messages"][1]["content"]] == ["thinking", "tool_use"]
    assert body["messages"][1]["content"][0] == thought


def image(url: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "high"}}


def file(**members: object) -> dict[str, object]:
    return {"type": "file", "file": members}


@pytest.mark.parametrize(
    ("part", "block"),
    [
        (
            image(PNG),
            {
                "type": "image",
                "source": {
                    "type": "base64",
                    "media_type": "image/png",
                    "data": "iVBORw0KGgo=",
                },
            },
        ),
        (
            image("https://x.test/a.png") | {"cache_control": {"type": "ephemeral"}},
            {
                "type": "image",
                "source": {"type": "url", "url": "https://x.test/a.png"},
                "cache_control": {"type": "ephemeral"},
            },
        ),
        (
            {"type": "image_url", "image_url": "https://x.test/a.png"},
            {"type": "image", "source": {"type": "url", "url": "https://x.test/a.png"}},
        ),
        (
            file(file_data="data:application/pdf;base64,JVBE", filename="a.pdf"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBE"},
                "title": "a.pdf",
            },
        ),
        (
            file(file_id="file_1"),
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        ),
        ({"type": "refusal", "refusal": "no"}, text("no")),
        ({"type": "search_result", "source": "x"}, {"type": "search_result", "source": "x"}),
    ],
)
def test_every_kind_of_part_becomes_a_block_of_its_own(
    part: dict[str, object], block: dict[str, object]
):
    assert body_of(user([text(""), part]))["messages"][0]["content"] == [block]


FUNCTION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {}}},
        "strict": True,
    },
    "cache_control": {"type": "ephemeral"},
}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}


def test_functions_are_told_in_the_apis_words_and_its_own_tools_untouched():
    bare = {"type": "function", "function": {"name": "g"}}

    assert body_of(extra={"tools": [FUNCTION, bare, SEARCH]})["tools"] == [
        {
            "name": "f",
            "description": "d",
            "input_schema": {"type": "object", "properties": {"a": {}}},
            "strict": True,
            "cache_control": {"type": "ephemeral"},
        },
        {"name": "g", "input_schema": {"type": "object", "properties": {}}},
        SEARCH,
    ]


@pytest.mark.parametrize(
    ("extra", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            {"type": "tool", "name": "f"},
        ),
        ({"tool_choice": {"type": "any"}}, {"type": "any"}),
        (
            {"parallel_tool_calls": False},
            {"type": "auto", "disable_parallel_tool_use": True},
        ),
        (
            {"parallel_tool_calls": False, "tool_choice": "required"},
            {"type": "any", "disable_parallel_tool_use": True},
        ),
        ({"parallel_tool_calls": False, "tool_choice": "none"}, {"type": "none"}),
        ({"parallel_tool_calls": True}, None),
    ],
)
def test_every_choice_among_tools_has_its_counterpart(
    extra: dict[str, object], choice: dict[str, object] | None
):
    assert body_of(extra={"tools": [FUNCTION], **extra}).get("tool_choice") == choice


def test_a_choice_among_no_tools_is_not_sent():
    body = body_of(extra={"tools": [], "tool_choice": "auto", "parallel_tool_calls": False})

    assert not {"tools", "tool_choice", "parallel_tool_calls"} & body.keys()


def test_json_by_a_schema_and_effort_are_part_of_the_output_config():
    schema = {"type": "object", "additionalProperties": False}
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}

    body = body_of(extra={"response_format": wanted, "reasoning_effort": "high"})

    assert body["output_config"] == {
        "format": {"type": "json_schema", "schema": schema},
        "effort": "high",
    }
    assert "output_config" not in body_of(extra={"response_format": {"type": "text"}})


def test_no_effort_at_all_is_no_thinking_unless_the_caller_says_how():
    own = {"type": "adaptive"}

    assert body_of(extra={"reasoning_effort": "none"})["thinking"] == {"type": "disabled"}
    assert body_of(extra={"reasoning_effort": "none", "thinking": own})["thinking"] == own


@pytest.mark.parametrize(
    ("extra", "metadata"),
    [
        ({"user": "u"}, {"user_id": "u"}),
        ({"safety_identifier": "s"}, {"user_id": "s"}),
        ({"metadata": {"user_id": "m"}, "user": "u"}, {"user_id": "m"}),
        ({"metadata": {"team": "t"}}, None),
    ],
)
def test_the_user_is_told_where_the_api_asks_for_it(
    extra: dict[str, object], metadata: dict[str, str] | None
):
    assert body_of(extra=extra).get("metadata") == metadata


@pytest.mark.parametrize(
    "extra",
    [
        {"stream_options": {"include_usage": True}, "store": False, "prompt_cache_key": "k"},
        {"n": 1, "logprobs": False, "top_logprobs": None, "logit_bias": {}, "modalities": ["text"]},
    ],
)
def test_what_has_no_bearing_on_the_answer_is_left_out(extra: dict[str, object]):
    assert body_of(extra=extra) == body_of()


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"sampling": SamplingParams(temperature=1.5)}, "temperature"),
    ({"sampling": SamplingParams(seed=7)}, "seed"),
    ({"sampling": SamplingParams(presence_penalty=1)}, "presence_penalty"),
    ({"sampling": SamplingParams(frequency_penalty=-1)}, "frequency_penalty"),
    ({"extra": {"n": 2}}, "n"),
    ({"extra": {"logprobs": True}}, "logprobs"),
    ({"extra": {"top_logprobs": 3}}, "top_logprobs"),
    ({"extra": {"logit_bias": {"1": 2}}}, "logit_bias"),
    ({"extra": {"modalities": ["audio"]}}, "modalities"),
    ({"extra": {"functions": [{}]}}, "functions"),
    ({"extra": {"reasoning_effort": "minimal"}}, "reasoning_effort"),
    ({"extra": {"response_format": {"type": "json_object"}}}, "response_format"),
    ({"extra": {"tools": [{"type": "custom", "custom": {"name": "x"}}]}}, "tools[0]"),
    (
        {
            "extra": {
                "tools": [FUNCTION],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [FUNCTION]},
                },
            }
        },
        "tool_choice",
    ),
]


@pytest.mark.parametrize(("request_", "param"), REFUSED)
def test_what_the_api_cannot_do_is_refused_by_name_or_dropped_where_told_so(
    request_: dict[str, Any], param: str
):
    inspect = factory(AnthropicSettings(model="claude")).inspect

    with pytest.raises(InvalidRequestError, match="anthropic") as caught:
        inspect(a_request(**request_))
    assert caught.value.param == param

    dropped = body_of(drop=True, **request_)
    assert param.partition("[")[0] not in dropped or dropped[param.partition("[")[0]] == []


def test_penalties_of_zero_ask_for_nothing():
    zero = SamplingParams(presence_penalty=0, frequency_penalty=0)

    assert body_of(sampling=zero) == body_of()


NO_CALLS: list[tuple[Any, str]] = [
    (7, ""),
    ({"function": {}}, ""),
    ({"function": {"name": "f"}}, ".id"),
    ({"function": {"name": "f", "arguments": "{"}}, ".function.arguments"),
    ({"function": {"name": "f", "arguments": "[]"}}, ".function.arguments"),
]
BAD: list[tuple[list[Message], dict[str, object], str]] = [
    ([Message("system", "alone")], {}, "messages"),
    ([Message("user", "")], {}, "messages"),
    ([Message("function", "x", {"name": "f"})], {}, "messages[0].role"),
    ([Message("tool", "x")], {}, "messages[0].tool_call_id"),
    ([user([{"type": "input_audio", "input_audio": {}}])], {}, "messages[0].content[0]"),
    ([user([{"type": "image_url"}])], {}, "messages[0].content[0].image_url.url"),
    ([user([file()])], {}, "messages[0].content[0].file"),
    ([Message("system", [image(PNG)])], {}, "messages[0].content[0]"),
    ([user("x")], {"tools": [7]}, "tools[0]"),
    ([user("x")], {"tools": [{"type": "function"}]}, "tools[0].function.name"),
    ([user("x")], {"tool_choice": "perhaps"}, "tool_choice"),
    ([user("x")], {"tool_choice": {"type": "function", "function": {}}}, "tool_choice"),
    ([user("x")], {"response_format": {"type": "yaml"}}, "response_format"),
    ([user("x")], {"response_format": {"type": "json_schema"}}, "response_format"),
    *(
        (
            [user("x"), Message("assistant", None, {"tool_calls": [call]})],
            {},
            f"messages[1].tool_calls[0]{place}",
        )
        for call, place in NO_CALLS
    ),
]


@pytest.mark.parametrize(("messages", "extra", "param"), BAD)
@pytest.mark.parametrize("drop", [False, True])
def test_what_no_one_could_mean_is_refused_whatever_is_dropped(
    messages: list[Message], extra: dict[str, object], param: str, drop: bool
):
    with pytest.raises(InvalidRequestError) as caught:
        body_of(*messages, extra=extra, drop=drop)

    assert caught.value.param == param


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_a_call_without_arguments_has_an_empty_input(arguments: object):
    call = {"id": "t", "function": {"name": "f", "arguments": arguments}}

    body = body_of(user("x"), Message("assistant", None, {"tool_calls": [call]}))

    assert body["messages"][1]["content"][0]["input"] == {}


def test_a_base_url_that_leads_nowhere_is_a_fault_of_the_config():
    with pytest.raises(ConfigError, match="base_url"):
        factory(AnthropicSettings(model="m", base_url="ftp://x"))
