"""Five wire formats behind one gateway: whoever answers, the official client sees the same."""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest

from orchestrator.config import parse
from orchestrator.gateway.app import Gateway
from orchestrator.gateway.listener import Listener, bind
from orchestrator.plan import plan_deployments
from orchestrator.wiring import System
from tests.fakes.sse_server import LAST_CHUNK, Script, Send, SseServer, answer, event, framed, head

pytestmark = pytest.mark.live

ARGUMENTS = {"city": "Köln", "days": [1, 2]}
WRITTEN = json.dumps(ARGUMENTS)
COUNTS = {"input_tokens": 9, "output_tokens": 4}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def chat() -> Script:
    call = {"id": "c1", "type": "function"}
    deltas: list[dict[str, Any]] = [
        {"role": "assistant", "content": "Look."},
        {"tool_calls": [{"index": 0, **call, "function": {"name": "weather", "arguments": ""}}]},
        *({"tool_calls": [{"index": 0, "function": {"arguments": part}}]}
          for part in (WRITTEN[:9], WRITTEN[9:])),
    ]  # fmt: skip
    usage = {"prompt_tokens": 9, "completion_tokens": 4}
    return answer(
        *(event({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas),
        event({"choices": [{"index": 0, "finish_reason": "tool_calls"}]}),
        event({"choices": [], "usage": usage}),
        b"data: [DONE]\n\n",
    )


def responses() -> Script:
    item = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": ""}
    part = {"type": "response.function_call_arguments.delta", "output_index": 1}
    return answer(
        event({"type": "response.output_text.delta", "delta": "Look."}),
        event({"type": "response.output_item.added", "output_index": 1, "item": item}),
        event({**part, "delta": WRITTEN[:9]}),
        event({**part, "delta": WRITTEN[9:]}),
        event({"type": "response.completed", "response": {"status": "completed", "usage": COUNTS}}),
    )


def ollama() -> Script:
    call = {"id": "c1", "function": {"name": "weather", "arguments": ARGUMENTS}}
    lines = [
        {"message": {"content": "Look."}},
        {"message": {"tool_calls": [call]}},
        {"done": True, "done_reason": "stop", "prompt_eval_count": 9, "eval_count": 4},
    ]
    sent = [Send(framed(json.dumps(line).encode() + b"\n")) for line in lines]
    return [Send(head(content_type="application/x-ndjson")), *sent, Send(LAST_CHUNK)]


def anthropic() -> Script:
    delta = {"type": "content_block_delta", "index": 1}
    tool: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "weather", "input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {**delta, "index": 0, "delta": {"type": "text_delta", "text": "Look."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "content_block_start", "index": 1, "content_block": tool},
        {**delta, "delta": {"type": "input_json_delta", "partial_json": WRITTEN[:9]}},
        {**delta, "delta": {"type": "input_json_delta", "partial_json": WRITTEN[9:]}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"},
         "usage": {"output_tokens": 4}},
        {"type": "message_stop"},
    ]  # fmt: skip
    return answer(*(f"event: {told['type']}\n".encode() + event(told) for told in events))


def gemini() -> Script:
    call = {"functionCall": {"id": "c1", "name": "weather", "args": ARGUMENTS}}
    counts = {"promptTokenCount": 9, "candidatesTokenCount": 4}
    last = {"content": {"parts": [call]}, "finishReason": "STOP"}
    return answer(
        event({"candidates": [{"content": {"parts": [{"text": "Look."}]}}]}),
        event({"candidates": [last], "usageMetadata": counts}),
    )


KINDS = {
    "openai": chat,
    "openai-responses": responses,
    "ollama": ollama,
    "anthropic": anthropic,
    "gemini": gemini,
}


@contextlib.asynccontextmanager
async def gateway_to(
    provider: SseServer, keep_alive: float = 15
) -> AsyncGenerator[openai.AsyncOpenAI]:
    runners = {
        kind: {"runner": {"kind": kind, "base_url": provider.url, "model": "m", "api_key": "k"}}
        for kind in KINDS
    }
    plans, routes = plan_deployments(parse(json.dumps({"deployments": runners})))
    system = System(plans, routes, monitored=False)
    system.start()
    await system.settled()
    with bind("127.0.0.1", 0) as sock:
        listener = Listener(
            Gateway(system, max_body=1 << 20, access_log=False, linger=5, keep_alive=keep_alive),
            sock,
        )
        task = asyncio.create_task(listener.run_until_closed())
        try:
            await listener.listening.wait()
            url = f"http://127.0.0.1:{listener.port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                yield client
        finally:
            listener.close()
            await task
            await system.aclose()


async def test_the_same_call_of_a_tool_comes_from_every_provider() -> None:
    async with (
        asyncio.timeout(20),
        SseServer(*(script() for script in KINDS.values())) as provider,
        gateway_to(provider) as client,
    ):
        for kind in KINDS:
            asked: Any = {"model": kind, "messages": [{"role": "user", "content": "Hi"}]}
            create: Any = client.chat.completions.create
            found: Any = await create(**asked, tools=[TOOL])

            choice = found.choices[0]
            (call,) = choice.message.tool_calls
            assert choice.message.content == "Look.", kind
            assert choice.finish_reason == "tool_calls", kind
            assert (call.id, call.function.name) == ("c1", "weather"), kind
            assert json.loads(call.function.arguments) == ARGUMENTS, kind
            assert (found.usage.prompt_tokens, found.usage.completion_tokens) == (9, 4), kind


async def test_what_one_provider_can_not_do_is_a_400_before_it_is_asked() -> None:
    async with (
        asyncio.timeout(20),
        SseServer(chat()) as provider,
        gateway_to(provider) as client,
    ):
        create: Any = client.chat.completions.create
        asked: Any = {"messages": [{"role": "user", "content": "Hi"}], "logit_bias": {"1": 1}}
        for kind in KINDS.keys() - {"openai"}:
            with pytest.raises(openai.BadRequestError) as caught:
                await create(model=kind, **asked)

            assert caught.value.param == "logit_bias", kind
        await create(model="openai", **asked)

        assert [request.json["logit_bias"] for request in provider.requests] == [{"1": 1}]
