"""The Messages API as Anthropic's own client sees it."""

import asyncio
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from orchestrator.errors import QueueFullError, UpstreamTruncatedError
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from tests.fakes.scripted import DONE, Line, Stage
from tests.gateway.serving import Served, plays, serving

pytestmark = pytest.mark.live

HELLO = Finished(FinishReason.STOP, Usage(prompt_tokens=14, completion_tokens=3, cached_tokens=4))
MESSAGES: list[MessageParam] = [{"role": "user", "content": "hi"}]
TOOL: ToolParam = {"name": "weather", "description": "d", "input_schema": {"type": "object"}}
ONCE = RetrySettings(max_attempts=1)
CALLED = Finished(FinishReason.TOOL_CALLS)


def call(index: int, arguments: str, **members: object) -> TokenChunk:
    function: dict[str, object] = {"arguments": arguments}
    if "name" in members:
        function["name"] = members.pop("name")
    return TokenChunk("", 1, {"tool_calls": [{"index": index, "function": function, **members}]})


def connect(served: Served) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=served.url, api_key="none", max_retries=0)


async def test_the_client_gets_a_whole_message_with_usage() -> None:
    stage = plays("Hel", "lo", HELLO)

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        answer = await client.messages.create(
            model="m", max_tokens=9, messages=MESSAGES, system="Be brief.", stop_sequences=["x"]
        )

    assert answer.content[0].type == "text"
    assert answer.content[0].text == "Hello"
    assert answer.stop_reason == "end_turn"
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (10, 4)
    assert answer.usage.output_tokens == 3


async def test_a_stop_sequence_that_ended_the_answer_is_named_whole_and_streamed() -> None:
    stage = plays("Hel", "lo", Finished(FinishReason.STOP, HELLO.usage, stop="\n\n"))

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        whole = await client.messages.create(
            model="m", max_tokens=9, messages=MESSAGES, stop_sequences=["\n\n"]
        )
        async with client.messages.stream(
            model="m", max_tokens=9, messages=MESSAGES, stop_sequences=["\n\n"]
        ) as stream:
            streamed = await stream.get_final_message()

    for answer in (whole, streamed):
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "\n\n")


async def test_the_clients_stream_helper_puts_text_thinking_and_calls_together() -> None:
    stage = plays(
        TokenChunk("", 1, {"reasoning_content": "Let me "}),
        TokenChunk("", 1, {"reasoning_content": "see."}),
        TokenChunk(
            "",
            0,
            {"thinking_blocks": [
                {"type": "thinking", "thinking": "Let me see.", "signature": "sig"}
            ]},
        ),
        "Look",
        ".",
        call(0, "", id="t1", type="function", name="weather"),
        call(0, '{"city":'),
        call(1, '{"x":', id="t2", type="function", name="more"),
        call(0, ' "Rom"}'),
        call(1, "1}"),
        CALLED,
    )  # fmt: skip

    async with (
        asyncio.timeout(10),
        serving({"m": stage}) as served,
        connect(served) as client,
        client.messages.stream(model="m", max_tokens=9, messages=MESSAGES, tools=[TOOL]) as stream,
    ):
        texts = [text async for text in stream.text_stream]
        message = await stream.get_final_message()

    told: list[dict[str, Any]] = [block.model_dump() for block in message.content]
    assert texts == ["Look", "."]
    assert [block["type"] for block in told] == ["thinking", "text", "tool_use", "tool_use"]
    assert (told[0]["thinking"], told[0]["signature"]) == ("Let me see.", "sig")
    assert told[1]["text"] == "Look."
    assert (told[2]["id"], told[2]["name"], told[2]["input"]) == ("t1", "weather", {"city": "Rom"})
    assert (told[3]["id"], told[3]["name"], told[3]["input"]) == ("t2", "more", {"x": 1})
    assert message.stop_reason == "tool_use"


async def test_a_conversation_with_tools_and_images_reaches_the_runner_in_openais_words() -> None:
    seen: list[PriorityRequest] = []

    def script(request: PriorityRequest, _: int) -> list[Line]:
        seen.append(request)
        return ["ok", DONE]

    image: Any = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    turns: list[Any] = [
        {"role": "user", "content": [{"type": "image", "source": image},
                                     {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "Look."},
            {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Rom"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "sunny", "is_error": True},
            {"type": "text", "text": "So?"}]},
    ]  # fmt: skip
    async with (
        asyncio.timeout(10),
        serving({"m": Stage(script)}) as served,
        connect(served) as client,
    ):
        await client.messages.create(
            model="m",
            max_tokens=9,
            messages=turns,
            system="Be brief.",
            tools=[TOOL],
            tool_choice={"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            metadata={"user_id": "u"},
            extra_body={"top_k": 3},
        )

    (request,) = seen
    roles = [message.role for message in request.messages]
    assert roles == ["system", "user", "assistant", "tool", "user"]
    _, user, assistant, tool, last = request.messages
    assert user.content == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "text", "text": "What?"},
    ]
    assert assistant.content == "Look."
    assert assistant.fields["tool_calls"] == [
        {"id": "t1", "type": "function",
         "function": {"name": "weather", "arguments": '{"city":"Rom"}'}}
    ]  # fmt: skip
    assert assistant.fields["thinking_blocks"] == [turns[1]["content"][0]]
    assert (tool.content, tool.fields) == ("sunny", {"tool_call_id": "t1", "is_error": True})
    assert last.content == "So?"
    assert request.extra["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert request.extra["parallel_tool_calls"] is False
    assert (request.extra["user"], request.extra["top_k"]) == ("u", 3)
    tools: Any = request.extra["tools"]
    assert tools[0]["function"] == {
        "name": "weather", "description": "d", "parameters": {"type": "object"}
    }  # fmt: skip


async def test_the_client_raises_its_own_errors_before_and_in_the_stream() -> None:
    read = asyncio.Event()
    stage = plays("a", read, UpstreamTruncatedError("the provider hung up"))
    full = plays(QueueFullError("no room", retry_after=3))

    async with (
        asyncio.timeout(10),
        serving({"m": stage, "full": full}, retry=ONCE) as served,
        connect(served) as client,
    ):
        with pytest.raises(anthropic.NotFoundError) as unknown:
            await client.messages.create(model="none", max_tokens=9, messages=MESSAGES)
        with pytest.raises(anthropic.BadRequestError) as wrong:
            await client.messages.create(model="m", max_tokens=0, messages=MESSAGES)
        with pytest.raises(anthropic.RateLimitError) as busy:
            await client.messages.create(model="full", max_tokens=9, messages=MESSAGES)
        stream = await client.messages.create(
            model="m", max_tokens=9, messages=MESSAGES, stream=True
        )

        async def read_on() -> None:
            async for event in stream:
                if event.type == "content_block_delta":
                    read.set()

        with pytest.raises(anthropic.APIStatusError) as failure:
            await read_on()

    def told(error: anthropic.APIStatusError) -> tuple[str, str]:
        body: Any = error.body
        assert body["type"] == "error"
        return body["error"]["type"], body["error"]["code"]

    assert told(unknown.value) == ("not_found_error", "model_not_found")
    assert told(wrong.value) == ("invalid_request_error", "invalid_request")
    assert told(busy.value) == ("rate_limit_error", "queue_full")
    assert busy.value.response.headers["retry-after"] == "3"
    assert told(failure.value) == ("api_error", "upstream_truncated")
