"""OpenAI's client at the gateway, Anthropic and Gemini behind it, all from one YAML."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from orchestrator.config import parse
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.listener import Listener, bind
from orchestrator.plan import plan_deployments
from orchestrator.wiring import System
from tests.fakes.sse_server import SseServer, answer, refusal
from tests.runners.remote import anthropic_wire, gemini_wire

pytestmark = pytest.mark.live

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "get_weather"}},
    {"type": "function", "function": {"name": "now"}},
]
YAML = """\
deployments:
  claude:
    runner: {{kind: anthropic, model: claude-x, api_key: k-1, base_url: "{anthropic}"}}
    retry: {{max_attempts: 1}}
  gemini:
    runner: {{kind: gemini, model: gemini-x, api_key: k-2, base_url: "{gemini}"}}
routes:
  chat: {{deployments: [claude, gemini]}}
"""


@contextlib.asynccontextmanager
async def serving(claude: SseServer, gemini: SseServer) -> AsyncGenerator[openai.AsyncOpenAI]:
    plans, routes = plan_deployments(parse(YAML.format(anthropic=claude.url, gemini=gemini.url)))
    system = System(plans, routes, monitored=False)
    system.start()
    with bind("127.0.0.1", 0) as sock:
        listener = Listener(Gateway(system, max_body=1 << 20, access_log=False, linger=1), sock)
        task = asyncio.create_task(listener.run_until_closed())
        try:
            await system.settled()
            await listener.listening.wait()
            url = f"http://127.0.0.1:{listener.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                yield client
        finally:
            listener.close()
            await task
            await system.aclose()


@pytest.mark.parametrize("model", ["claude", "gemini"])
async def test_openais_client_calls_tools_of_either_provider_and_goes_on(model: str) -> None:
    claude = SseServer(answer(*anthropic_wire.CALLS), answer(*anthropic_wire.HELLO))
    gemini = SseServer(answer(*gemini_wire.CALLS), answer(*gemini_wire.HELLO))
    async with (
        asyncio.timeout(10),
        claude,
        gemini,
        serving(claude, gemini) as client,
    ):
        called = await client.chat.completions.create(model=model, messages=MESSAGES, tools=TOOLS)
        message: Any = called.choices[0].message.model_dump(exclude_none=True)
        results: list[Any] = [
            {"role": "tool", "tool_call_id": call["id"], "content": "done"}
            for call in message["tool_calls"]
        ]
        last = await client.chat.completions.create(
            model=model, messages=[*MESSAGES, message, *results], tools=TOOLS
        )

    assert called.choices[0].finish_reason == "tool_calls"
    names = [call["function"]["name"] for call in message["tool_calls"]]
    assert names == ["get_weather", "now"]
    assert "location" in json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert last.choices[0].finish_reason == "stop"
    assert (last.choices[0].message.content or "").startswith("Hello 你好")
    assert last.usage is not None
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens in {5, 8}


async def test_a_stream_of_an_overloaded_provider_is_taken_over_by_the_next() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    claude = SseServer(refusal(529, overloaded))
    gemini = SseServer(answer(*gemini_wire.HELLO))
    async with (
        asyncio.timeout(10),
        claude,
        gemini,
        serving(claude, gemini) as client,
    ):
        stream = await client.chat.completions.create(model="chat", messages=MESSAGES, stream=True)
        chunks = [chunk async for chunk in stream]

        assert len(claude.requests) == 1
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello 你好 😀!"


async def test_what_one_provider_cannot_do_is_asked_of_none() -> None:
    claude, gemini = SseServer(answer()), SseServer(answer())
    async with (
        asyncio.timeout(10),
        claude,
        gemini,
        serving(claude, gemini) as client,
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(model="claude", messages=MESSAGES, seed=7)

        assert claude.requests == []
    assert caught.value.param == "seed"
    assert "claude has no seed" in caught.value.message
