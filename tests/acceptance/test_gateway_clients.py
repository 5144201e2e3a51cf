"""The gateway as the official client sees it."""

import asyncio
from collections.abc import AsyncGenerator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from typing_extensions import override

from orchestrator.errors import UpstreamTruncatedError
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from orchestrator.runners.base import SlotFactory
from orchestrator.runners.lease import Lease, Step
from tests.fakes.scripted import DONE, ScriptedRunner, Stage
from tests.gateway.serving import Served, plays, serving

pytestmark = pytest.mark.live

HELLO = Finished(FinishReason.STOP, Usage(prompt_tokens=4, completion_tokens=3))
MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def connect(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


async def test_the_client_streams_an_answer_with_usage() -> None:
    stage = plays("Hel", "lo", " there", HELLO)

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        stream = await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    assert text == "Hello there"
    assert reasons[-1] == "stop"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7


async def test_the_client_gets_a_whole_answer() -> None:
    stage = plays("Hel", "lo", HELLO)

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        answer = await client.chat.completions.create(model="m", messages=MESSAGES)

    assert answer.choices[0].message.content == "Hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3


async def test_the_client_lists_the_models() -> None:
    async with (
        asyncio.timeout(10),
        serving({"m": plays(DONE)}, {"r": ["m"]}) as served,
        connect(served) as client,
    ):
        models = [model.id async for model in client.models.list()]

    assert models == ["r", "m"]


async def test_the_client_raises_its_own_errors_with_our_codes() -> None:
    async with (
        asyncio.timeout(10),
        serving({"m": plays(DONE)}) as served,
        connect(served) as client,
    ):
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="none", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError) as negative:
            await client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=-1)

    assert unknown.value.code == "model_not_found"
    assert negative.value.param == "max_tokens"
    assert negative.value.request_id is not None


async def test_the_client_hears_of_a_failure_in_mid_stream() -> None:
    read = asyncio.Event()
    stage = plays("a", read, UpstreamTruncatedError("the provider hung up"))
    texts: list[str | None] = []

    async with (
        asyncio.timeout(10),
        serving({"m": stage}, retry=RetrySettings(max_attempts=1)) as served,
        connect(served) as client,
    ):
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)

        async def read_on() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content)
                read.set()

        with pytest.raises(openai.APIError) as failure:
            await read_on()

    assert texts == ["a"]
    assert failure.value.code == "upstream_truncated"
    assert "hung up" in failure.value.message


class ToolRunner(ScriptedRunner):
    """Calls a tool, in two pieces."""

    @override
    async def generate(
        self, request: PriorityRequest, lease: Lease
    ) -> AsyncGenerator[TokenChunk | Finished, None]:
        start = {"index": 0, "id": "t1", "type": "function"}
        lease.arm(Step.NEXT_TOKEN)
        yield TokenChunk(
            "", 1, {"tool_calls": [start | {"function": {"name": "f", "arguments": "{"}}]}
        )
        yield TokenChunk("", 1, {"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]})
        yield Finished(FinishReason.TOOL_CALLS)


class ToolStage(Stage):
    @override
    def factory(self) -> SlotFactory:
        return SlotFactory(create=lambda: ToolRunner(self), model="tools")


async def test_the_client_puts_tool_calls_together_streamed_and_whole() -> None:
    stage = ToolStage(lambda _request, _call: [])

    async with asyncio.timeout(10), serving({"m": stage}) as served, connect(served) as client:
        async with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
            streamed = await stream.get_final_completion()
        whole = await client.chat.completions.create(model="m", messages=MESSAGES)

    for completion in (streamed, whole):
        calls = completion.choices[0].message.tool_calls
        assert calls is not None
        assert calls[0].type == "function"
        assert calls[0].id == "t1"
        assert (calls[0].function.name, calls[0].function.arguments) == ("f", "{}")
