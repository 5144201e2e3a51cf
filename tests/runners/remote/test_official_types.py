"""The same bytes, read by the providers' own packages and by the runners: both see the same."""

import base64
import json
from typing import Any

import anthropic
import httpx
import httpx_sse
import pytest
from google.genai import types

from orchestrator.events import Usage
from orchestrator.gateway.answer import merge_fields
from tests.fakes.sse_server import SseServer, answer
from tests.runners.remote import anthropic_wire, gemini_wire
from tests.runners.remote.asking import Answer

pytestmark = pytest.mark.live

ANTHROPIC = {"text": anthropic_wire.HELLO, "thinking and tools": anthropic_wire.CALLS}
FINISHES = {"end_turn": "stop", "tool_use": "tool_calls"}
GEMINI = {"text": gemini_wire.HELLO, "thinking and tools": gemini_wire.CALLS}


def merged(found: Answer) -> dict[str, Any]:
    return merge_fields([chunk.fields or {} for chunk in found.chunks])


async def by_anthropic(server: SseServer) -> anthropic.types.Message:
    url = server.url.removesuffix("/v1")
    async with (
        anthropic.AsyncAnthropic(base_url=url, api_key="k", max_retries=0) as client,
        client.messages.stream(
            model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}]
        ) as stream,
    ):
        return await stream.get_final_message()


@pytest.mark.parametrize("name", ANTHROPIC)
async def test_the_messages_apis_own_client_and_the_runner_read_the_same(name: str):
    async with (
        SseServer(answer(*ANTHROPIC[name])) as server,
        anthropic_wire.asking(server) as asker,
    ):
        message = await by_anthropic(server)
        found = await asker.ask()

    fields, blocks = merged(found), message.content
    thoughts = [block for block in blocks if block.type == "thinking"]
    calls = [block for block in blocks if block.type == "tool_use"]
    assert found.text == "".join(block.text for block in blocks if block.type == "text")
    assert fields.get("thinking_blocks", []) == [block.model_dump() for block in thoughts]
    assert fields.get("reasoning_content", "") == "".join(block.thinking for block in thoughts)
    assert [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in fields.get("tool_calls", [])
    ] == [(block.id, block.name, block.input) for block in calls]
    assert found.ending is not None
    assert found.ending.finish_reason == FINISHES[str(message.stop_reason)]
    read = message.usage.cache_read_input_tokens or 0
    made = message.usage.cache_creation_input_tokens or 0
    assert found.ending.usage == Usage(
        prompt_tokens=message.usage.input_tokens + made + read,
        completion_tokens=message.usage.output_tokens,
        cached_tokens=read,
    )


async def by_google(server: SseServer) -> list[types.GenerateContentResponse]:
    async with (
        httpx.AsyncClient() as client,
        httpx_sse.aconnect_sse(client, "POST", server.url) as source,
    ):
        return [
            types.GenerateContentResponse.model_validate_json(event.data)
            async for event in source.aiter_sse()
        ]


@pytest.mark.parametrize("name", GEMINI)
async def test_googles_own_types_and_the_runner_read_the_same(name: str):
    async with SseServer(answer(*GEMINI[name])) as server, gemini_wire.asking(server) as asker:
        responses = await by_google(server)
        found = await asker.ask()

    fields = merged(found)
    parts = [
        part
        for response in responses
        for candidate in response.candidates or []
        for part in (candidate.content and candidate.content.parts) or []
    ]
    calls = [part for part in parts if part.function_call is not None]
    assert found.text == "".join(part.text or "" for part in parts if not part.thought)
    assert fields.get("reasoning_content", "") == "".join(
        part.text or "" for part in parts if part.thought
    )
    assert len(calls) == len(fields.get("tool_calls", []))
    for call, part in zip(fields.get("tool_calls", []), calls, strict=True):
        assert part.function_call is not None
        assert call["function"]["name"] == part.function_call.name
        assert json.loads(call["function"]["arguments"]) == part.function_call.args
        assert call["id"] == (part.function_call.id or call["id"])
        signature = call.get("extra_content", {}).get("google", {}).get("thought_signature", "")
        assert base64.b64decode(signature) == (part.thought_signature or b"")
    assert found.ending is not None
    counted = responses[-1].usage_metadata
    assert counted is not None
    thoughts = counted.thoughts_token_count or 0
    assert found.ending.usage == Usage(
        prompt_tokens=counted.prompt_token_count or 0,
        completion_tokens=(counted.candidates_token_count or 0) + thoughts,
        cached_tokens=counted.cached_content_token_count or 0,
        reasoning_tokens=thoughts,
    )
