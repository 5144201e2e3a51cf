"""The Responses API as OpenAI's own client sees it."""

import asyncio
import json
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from orchestrator.errors import UpstreamTruncatedError
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from tests.fakes.scripted import DONE, Line, Stage
from tests.gateway.serving import Served, plays, serving

pytestmark = pytest.mark.live

HELLO = Finished(FinishReason.STOP, Usage(prompt_tokens=4, completion_tokens=3))
ONCE = RetrySettings(max_attempts=1)
TOOL: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"},
             "strict": False}  # fmt: skip


def connect(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def call(index: int, arguments: str, **members: object) -> TokenChunk:
    function: dict[str, object] = {"arguments": arguments}
    if "name" in members:
        function["name"] = members.pop("name")
    return TokenChunk("", 1, {"tool_calls": [{"index": index, "function": function, **members}]})


async def test_the_client_gets_a_whole_response_with_usage() -> None:
    stage = plays("Hel", "lo", HELLO)

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        response = await client.responses.create(
            model="m", input="hi", instructions="Be brief.", max_output_tokens=16
        )

    assert response.output_text == "Hello"
    assert (response.status, response.model) == ("completed", "m")
    assert response.to_dict()["store"] is False
    assert response.usage is not None
    assert response.usage.total_tokens == 7


async def test_an_answer_that_was_cut_is_incomplete_and_says_why() -> None:
    stage = plays("Hel", Finished(FinishReason.LENGTH))

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        response = await client.responses.create(model="m", input="hi")

    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.usage is None


async def test_the_events_of_a_stream_are_complete_numbered_and_in_order() -> None:
    stage = plays(
        TokenChunk("", 1, {"reasoning_content": "Hm."}),
        "Look",
        ".",
        call(0, "", id="t1", type="function", name="weather"),
        call(0, '{"city":'),
        call(1, "{}", id="t2", type="function", name="more"),
        call(0, '"Rom"}'),
        Finished(FinishReason.TOOL_CALLS, HELLO.usage),
    )

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        stream = await client.responses.create(model="m", input="hi", tools=[TOOL], stream=True)
        events = [event async for event in stream]

    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type.removeprefix("response.") for event in events] == [
        "created", "in_progress",
        "output_item.added", "reasoning_summary_part.added", "reasoning_summary_text.delta",
        "reasoning_summary_text.done", "reasoning_summary_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]  # fmt: skip
    last: Any = events[-1]
    assert [item.type for item in last.response.output] == [
        "reasoning", "message", "function_call", "function_call"
    ]  # fmt: skip
    assert last.response.output_text == "Look."
    assert json.loads(last.response.output[2].arguments) == {"city": "Rom"}
    assert (last.response.output[3].call_id, last.response.output[3].name) == ("t2", "more")


async def test_logprobs_that_come_apart_from_their_text_are_not_lost() -> None:
    # so a large event with many of them is told
    one = {"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}
    stage = plays(
        TokenChunk("", 1, {"logprobs": {"content": [one]}}),
        TokenChunk("aa", 1, {"logprobs": {"content": [one]}}),
        HELLO,
    )

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        response: Any = await client.responses.create(model="m", input="hi")

    assert response.output_text == "aa"
    assert len(response.output[0].content[0].logprobs) == 2


class Joke(BaseModel):
    setup: str
    punch: str


async def test_the_clients_stream_helper_parses_structured_output() -> None:
    seen: list[PriorityRequest] = []

    def script(request: PriorityRequest, _: int) -> list[Line]:
        seen.append(request)
        return ['{"setup":"a",', '"punch":"b"}', DONE]

    async with (
        asyncio.timeout(10),
        serving({"m": Stage(script)}) as served,
        connect(served) as client,
    ):
        async with client.responses.stream(
            model="m", input=[{"role": "user", "content": "hi"}], text_format=Joke
        ) as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_response()
        parsed = await client.responses.parse(model="m", input="hi", text_format=Joke)

    assert "response.output_text.delta" in kinds
    assert final.output_parsed == parsed.output_parsed == Joke(setup="a", punch="b")
    form: Any = seen[0].extra["response_format"]
    assert form["type"] == "json_schema"
    assert form["json_schema"]["name"] == "Joke"


async def test_a_conversation_goes_on_with_all_that_was_answered() -> None:
    seen: list[PriorityRequest] = []
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": "s"}]

    def script(request: PriorityRequest, number: int) -> list[Line]:
        seen.append(request)
        if number:
            return ["sunny", DONE]
        return [
            TokenChunk("", 1, {"reasoning_content": "Hm."}),
            TokenChunk("", 0, {"thinking_blocks": blocks}),
            "Look.",
            call(0, '{"city":"Rom"}', id="t1", type="function", name="weather"),
            Finished(FinishReason.TOOL_CALLS),
        ]

    async with (
        asyncio.timeout(10),
        serving({"m": Stage(script)}) as served,
        connect(served) as client,
    ):
        first = await client.responses.create(model="m", input="hi", tools=[TOOL], store=False)
        output: Any = [item.model_dump(exclude_none=True) for item in first.output]
        result: Any = {"type": "function_call_output", "call_id": "t1", "output": "20 degrees"}
        await client.responses.create(
            model="m",
            input=[{"role": "user", "content": "hi"}, *output, result],
            tools=[TOOL],
            include=["reasoning.encrypted_content"],
        )

    _, said, told = seen[1].messages
    assert (said.role, said.content) == ("assistant", "Look.")
    assert said.fields["thinking_blocks"] == blocks
    calls: Any = said.fields["tool_calls"]
    assert (calls[0]["id"], calls[0]["function"]["name"]) == ("t1", "weather")
    assert (told.role, told.content) == ("tool", "20 degrees")
    assert told.fields == {"tool_call_id": "t1"}
    tools: Any = seen[1].extra["tools"]
    assert tools[0]["function"]["name"] == "weather"


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": []}, "input"),
        ({"input": [{"type": "reasoning", "encrypted_content": "gAAA"}]},
         "input[0].encrypted_content"),
        ({"text": {"unheard": 1}}, "text.unheard"),
    ],
)  # fmt: skip
async def test_what_needs_a_store_or_is_wrong_is_refused_by_name(
    members: dict[str, object], param: str
) -> None:
    asked = {"model": "m", "input": "hi", **members}

    async with asyncio.timeout(10), serving({"m": plays(DONE)}) as served:
        response = await served.client.post("/v1/responses", json=asked)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_stream_that_breaks_ends_with_one_failed_response() -> None:
    read = asyncio.Event()
    stage = plays("a", read, UpstreamTruncatedError("the provider hung up"))

    async with (
        asyncio.timeout(10),
        serving({"m": stage}, retry=ONCE) as served,
        connect(served) as client,
    ):
        stream = await client.responses.create(model="m", input="hi", stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            read.set()

    terminal = [event for event in events if event.type in {
        "response.completed", "response.failed", "response.incomplete", "error"}]  # fmt: skip
    assert terminal == [events[-1]]
    assert events[-1].response.status == "failed"
    assert events[-1].response.error.code == "upstream_truncated"
