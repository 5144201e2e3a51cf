import json
from typing import Any

import pytest

from orchestrator.errors import ConfigError, InvalidRequestError
from orchestrator.request import Message, SamplingParams
from orchestrator.runners.remote.gemini import factory
from orchestrator.runners.remote.gemini_answer import made_id
from orchestrator.runners.remote.gemini_request import (
    GeminiSettings,
    endpoint,
    payload,
)
from orchestrator.runners.remote.pace import at_once
from tests.fakes.sse_server import SseServer, answer
from tests.runners.remote.asking import a_request
from tests.runners.remote.gemini_wire import HELLO, asking

PNG = "data:image/png;base64,iVBORw0KGgo="
FUNCTION = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "additionalProperties": False},
        "strict": True,
    },
}


def body_of(
    *messages: Message, model: str = "gemini-2.5-flash", drop: bool = False, **request: Any
) -> dict[str, Any]:
    settings = GeminiSettings(model=model, drop_params=drop)
    if messages:
        request["messages"] = messages
    return json.loads(json.dumps(at_once(payload(settings, a_request(**request)))))


def generation(**request: Any) -> object:
    return body_of(**request).get("generationConfig")


def user(content: Any) -> Message:
    return Message("user", content)


def call(call_id: str, name: str, arguments: str = "{}", **members: Any) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function, **members}


@pytest.mark.live
async def test_a_request_says_what_was_asked_in_the_apis_own_words():
    safety = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]
    async with (
        SseServer(answer(*HELLO)) as server,
        asking(server, api_key=lambda: "k-1\n", headers={"X-Team": "infra"}) as asker,
    ):
        await asker.ask(
            messages=[Message("system", "be brief"), user("hi")],
            sampling=SamplingParams(
                temperature=1.5,
                top_p=0.9,
                max_tokens=7,
                stop=("\n",),
                seed=3,
                presence_penalty=0.5,
                frequency_penalty=-0.5,
            ),
            extra={"top_k": 6, "safetySettings": safety, "stream_options": {}},
        )

        asked = server.requests[0]
        assert asked.line == "POST /v1/models/m:streamGenerateContent?alt=sse HTTP/1.1"
        assert asked.headers["x-goog-api-key"] == "k-1"
        assert "authorization" not in asked.headers
        assert asked.headers["x-team"] == "infra"
        assert asked.json == {
            "contents": [{"role": "user", "parts": [{"text": "hi"}]}],
            "systemInstruction": {"parts": [{"text": "be brief"}]},
            "generationConfig": {
                "temperature": 1.5,
                "topP": 0.9,
                "maxOutputTokens": 7,
                "stopSequences": ["\n"],
                "seed": 3,
                "presencePenalty": 0.5,
                "frequencyPenalty": -0.5,
                "topK": 6,
            },
            "safetySettings": safety,
        }


@pytest.mark.live
async def test_vertex_is_asked_below_its_project_with_a_bearer_token():
    async with (
        SseServer(answer(*HELLO)) as server,
        asking(server, api_key=lambda: "ya29.token", project="p-1", region="europe-west4") as asker,
    ):
        found = await asker.ask()

        asked = server.requests[0]
        place = "projects/p-1/locations/europe-west4/publishers/google/models/m"
        assert asked.line == f"POST /v1/{place}:streamGenerateContent?alt=sse HTTP/1.1"
        assert asked.headers["authorization"] == "Bearer ya29.token"
        assert "x-goog-api-key" not in asked.headers
        assert found.ending is not None


@pytest.mark.parametrize(
    ("model", "project", "path"),
    [
        ("gemini-2.5-pro", None, "/v1beta/models/gemini-2.5-pro"),
        ("models/gemini-2.5-pro", None, "/v1beta/models/gemini-2.5-pro"),
        ("tunedModels/mine", None, "/v1beta/tunedModels/mine"),
        (
            "gemini-2.5-pro",
            "p",
            "/v1beta/projects/p/locations/global/publishers/google/models/gemini-2.5-pro",
        ),
        ("endpoints/7", "p", "/v1beta/projects/p/locations/global/endpoints/7"),
    ],
)
def test_every_way_to_name_a_model_leads_to_its_place(model: str, project: str | None, path: str):
    url = endpoint(GeminiSettings(model=model, project=project))

    assert url.raw_path.decode() == f"{path}:streamGenerateContent?alt=sse"


def test_system_and_developer_messages_become_one_instruction_wherever_they_stand():
    body = body_of(
        Message("system", "one"),
        user("hi"),
        Message("developer", [{"type": "text", "text": "two"}]),
        user("ho"),
    )

    assert body["systemInstruction"] == {"parts": [{"text": "one"}, {"text": "two"}]}
    assert body["contents"] == [{"role": "user", "parts": [{"text": "hi"}, {"text": "ho"}]}]


def test_a_conversation_with_tools_becomes_turns_of_parts():
    made = made_id()
    calls = [call(made, "f", '{"a": 1}'), call("fc-7", "g")]

    body = body_of(
        user("weather?"),
        Message("assistant", "Let me see.", {"tool_calls": calls}),
        Message("tool", '{"sky": "blue"}', {"tool_call_id": made}),
        Message("tool", "rain", {"tool_call_id": "fc-7"}),
        Message("assistant", "So."),
    )

    assert body["contents"] == [
        {"role": "user", "parts": [{"text": "weather?"}]},
        {
            "role": "model",
            "parts": [
                {"text": "Let me see."},
                {"functionCall": {"name": "f", "args": {"a": 1}}},
                {"functionCall": {"name": "g", "args": {}, "id": "fc-7"}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "f", "response": {"sky": "blue"}}},
                {
                    "functionResponse": {
                        "name": "g",
                        "response": {"output": "rain"},
                        "id": "fc-7",
                    }
                },
            ],
        },
        {"role": "model", "parts": [{"text": "So."}]},
    ]


@pytest.mark.parametrize(
    ("told", "response"),
    [("[1]", {"output": [1]}), ("7", {"output": 7}), ("", {"output": ""}), ("{}", {})],
)
def test_a_result_that_is_no_object_is_wrapped_into_one(told: str, response: dict[str, object]):
    body = body_of(
        Message("assistant", None, {"tool_calls": [call("c", "f")]}),
        Message("tool", told, {"tool_call_id": "c"}),
    )

    assert body["contents"][1]["parts"][0]["functionResponse"]["response"] == response


def test_a_result_whose_call_was_cut_away_is_known_by_its_name():
    body = body_of(Message("tool", "x", {"tool_call_id": "c", "name": "f"}))

    assert body["contents"][0]["parts"][0]["functionResponse"]["name"] == "f"


def test_signatures_of_thoughts_go_back_to_the_part_that_brought_them():
    def signed(signature: str) -> dict[str, Any]:
        return {"extra_content": {"google": {"thought_signature": signature}}}

    body = body_of(
        Message(
            "assistant", "a", {"tool_calls": [call("c", "f", **signed("s-1"))], **signed("s-2")}
        ),
        user("x"),
        Message("assistant", None, signed("s-3")),
    )

    assert body["contents"][0]["parts"] == [
        {"text": "a", "thoughtSignature": "s-2"},
        {"functionCall": {"name": "f", "args": {}, "id": "c"}, "thoughtSignature": "s-1"},
    ]
    assert body["contents"][2]["parts"] == [{"text": "", "thoughtSignature": "s-3"}]


def url(kind: str, address: str, **members: object) -> dict[str, object]:
    return {"type": kind, kind: {"url": address, **members}}


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (
            url("image_url", PNG),
            {"inlineData": {"mimeType": "image/png", "data": "iVBORw0KGgo="}},
        ),
        (
            url("image_url", "gs://b/a.webp"),
            {"fileData": {"fileUri": "gs://b/a.webp", "mimeType": "image/webp"}},
        ),
        (
            url("image_url", "https://x.test/a.jpg?size=1"),
            {"fileData": {"fileUri": "https://x.test/a.jpg?size=1", "mimeType": "image/jpeg"}},
        ),
        (
            url("video_url", "https://x.test/a", mime_type="video/mp4"),
            {"fileData": {"fileUri": "https://x.test/a", "mimeType": "video/mp4"}},
        ),
        (url("image_url", "https://x.test/a"), {"fileData": {"fileUri": "https://x.test/a"}}),
        (
            {"type": "input_audio", "input_audio": {"data": "UklG", "format": "wav"}},
            {"inlineData": {"mimeType": "audio/wav", "data": "UklG"}},
        ),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,JVBE"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "JVBE"}},
        ),
        (
            {"type": "file", "file": {"file_id": "https://g.test/files/1", "filename": "a.pdf"}},
            {"fileData": {"fileUri": "https://g.test/files/1", "mimeType": "application/pdf"}},
        ),
        ({"type": "refusal", "refusal": "no"}, {"text": "no"}),
    ],
)
def test_every_kind_of_part_keeps_its_true_media_type(
    part: dict[str, object], told: dict[str, object]
):
    assert body_of(user([{"type": "text", "text": ""}, part]))["contents"][0]["parts"] == [told]


def test_functions_are_declared_with_their_schema_and_other_tools_go_through():
    bare = {"type": "function", "function": {"name": "g"}}

    assert body_of(extra={"tools": [FUNCTION, {"googleSearch": {}}, bare]})["tools"] == [
        {
            "functionDeclarations": [
                {
                    "name": "f",
                    "description": "d",
                    "parametersJsonSchema": {"type": "object", "additionalProperties": False},
                },
                {"name": "g"},
            ]
        },
        {"googleSearch": {}},
    ]
    assert body_of(extra={"tools": [{"googleSearch": {}}]})["tools"] == [{"googleSearch": {}}]


ALLOWED = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}


@pytest.mark.parametrize(
    ("choice", "config"),
    [
        ("auto", {"mode": "AUTO"}),
        ("none", {"mode": "NONE"}),
        ("required", {"mode": "ANY"}),
        (
            {"type": "function", "function": {"name": "f"}},
            {"mode": "ANY", "allowedFunctionNames": ["f"]},
        ),
        (
            {"type": "allowed_tools", "allowed_tools": ALLOWED},
            {"mode": "VALIDATED", "allowedFunctionNames": ["f"]},
        ),
        (
            {"type": "allowed_tools", "allowed_tools": ALLOWED | {"mode": "required"}},
            {"mode": "ANY", "allowedFunctionNames": ["f"]},
        ),
    ],
)
def test_every_choice_among_tools_has_its_counterpart(choice: object, config: dict[str, object]):
    body = body_of(extra={"tools": [FUNCTION], "tool_choice": choice, "parallel_tool_calls": True})

    assert body["toolConfig"] == {"functionCallingConfig": config}


def test_a_choice_among_no_tools_is_not_sent():
    body = body_of(extra={"tools": [], "tool_choice": "auto", "parallel_tool_calls": False})

    assert body == body_of()


@pytest.mark.parametrize(
    ("wanted", "config"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"responseMimeType": "application/json"}),
        (
            {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
            {
                "responseMimeType": "application/json",
                "responseJsonSchema": {"type": "object"},
            },
        ),
    ],
)
def test_json_is_asked_for_with_or_without_a_schema(
    wanted: dict[str, object], config: dict[str, object] | None
):
    assert generation(extra={"response_format": wanted}) == config


@pytest.mark.parametrize(
    ("model", "effort", "thinking"),
    [
        ("gemini-2.5-flash", "none", {"thinkingBudget": 0}),
        ("gemini-2.5-flash", "low", {"thinkingBudget": 1024}),
        ("gemini-2.5-pro", "high", {"thinkingBudget": 24576}),
        ("gemini-3-pro-preview", "low", {"thinkingLevel": "LOW"}),
        ("models/gemini-3.1-flash", "xhigh", {"thinkingLevel": "XHIGH"}),
        ("gemini-10-pro", "high", {"thinkingLevel": "HIGH"}),
    ],
)
def test_effort_is_a_budget_or_a_level_by_the_age_of_the_model(
    model: str, effort: str, thinking: dict[str, object]
):
    body = body_of(model=model, extra={"reasoning_effort": effort})

    assert body["generationConfig"] == {"thinkingConfig": thinking}


def test_the_apis_own_settings_go_through_and_win():
    own = {"topK": 3, "responseSchema": {"type": "OBJECT"}, "temperature": 0.1}

    found = generation(
        sampling=SamplingParams(temperature=0.9),
        extra={
            "generationConfig": own,
            "generation_config": {"mediaResolution": "LOW"},
            "thinking_config": {"includeThoughts": True},
            "reasoning_effort": "high",
            "logprobs": True,
            "top_logprobs": 2,
        },
    )

    assert found == {
        **own,
        "mediaResolution": "LOW",
        "thinkingConfig": {"includeThoughts": True},
        "responseLogprobs": True,
        "logprobs": 2,
    }


@pytest.mark.parametrize(
    "extra",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "safety_identifier": "s"},
        {"n": 1, "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "modalities": ["text"]},
    ],
)
def test_what_has_no_bearing_on_the_answer_is_left_out(extra: dict[str, object]):
    assert body_of(extra=extra) == body_of()


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"n": 2}, "n"),
        ({"logit_bias": {"1": 2}}, "logit_bias"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"function_call": "auto"}, "function_call"),
        ({"reasoning_effort": "xhigh"}, "reasoning_effort"),
        ({"tools": [FUNCTION], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ],
)
def test_what_the_api_cannot_do_is_refused_by_name_or_dropped_where_told_so(
    extra: dict[str, Any], param: str
):
    inspect = factory(GeminiSettings(model="gemini-2.5-flash")).inspect

    with pytest.raises(InvalidRequestError, match="gemini") as caught:
        inspect(a_request(extra=extra))
    assert caught.value.param == param

    assert param not in body_of(drop=True, extra=extra)


@pytest.mark.parametrize(
    ("asked", "param", "left"),
    [
        (SamplingParams(stop=tuple("abcdef")), "stop", {"stopSequences": list("abcde")}),
        (SamplingParams(seed=2**31), "seed", None),
    ],
)
def test_a_setting_beyond_the_apis_limits_is_refused_or_cut_where_told_so(
    asked: SamplingParams, param: str, left: object
):
    with pytest.raises(InvalidRequestError, match="gemini") as caught:
        body_of(sampling=asked)
    assert caught.value.param == param

    assert body_of(drop=True, sampling=asked).get("generationConfig") == left


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([Message("system", "alone")], "messages"),
        ([Message("function", "x", {"name": "f"})], "messages[0].role"),
        ([Message("tool", "x", {"tool_call_id": "c"})], "messages[0].tool_call_id"),
        ([Message("tool", "x", {"name": "f"})], "messages[0].tool_call_id"),
        (
            [Message("tool", [url("image_url", PNG)], {"tool_call_id": "c", "name": "f"})],
            "messages[0].content[0]",
        ),
        ([Message("system", [url("image_url", PNG)])], "messages[0].content[0]"),
        ([user([{"type": "search_result"}])], "messages[0].content[0]"),
        ([user([{"type": "image_url"}])], "messages[0].content[0].image_url.url"),
        ([user([{"type": "file", "file": {}}])], "messages[0].content[0].file"),
    ],
)
def test_a_message_of_no_use_to_the_api_is_refused_by_its_place(
    messages: list[Message], param: str
):
    with pytest.raises(InvalidRequestError) as caught:
        body_of(*messages, drop=True)

    assert caught.value.param == param


def test_a_base_url_that_leads_nowhere_is_a_fault_of_the_config():
    with pytest.raises(ConfigError, match="base_url"):
        factory(GeminiSettings(model="m", base_url="ftp://x"))
