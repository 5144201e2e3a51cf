"""The same bytes, read by OpenAI's own client and by the runner: what one sees the other sees."""

import openai
import pytest

from orchestrator.events import Usage
from tests.fakes.sse_server import Script, SseServer, answer, delta, event
from tests.runners.remote.asking import asking

pytestmark = pytest.mark.live

DONE = b"data: [DONE]\n\n"
USAGE = event(
    {
        "object": "chat.completion.chunk",
        "choices": [],
        "usage": {
            "prompt_tokens": 20,
            "completion_tokens": 9,
            "total_tokens": 29,
            "prompt_tokens_details": {"cached_tokens": 8},
            "completion_tokens_details": {"reasoning_tokens": 3},
        },
    }
)


def call(index: int, **function: str) -> dict[str, object]:
    start = {"id": f"call_{index}", "type": "function"} if "name" in function else {}
    return {"index": index, **start, "function": function}


TEXT = answer(
    delta("", role="assistant", refusal=None),
    delta("Once"),
    delta(" upon\r\n 你好 \u2028"),
    delta(finish="length"),
    USAGE,
    DONE,
)
TOOLS = answer(
    delta(role="assistant", tool_calls=[call(0, name="f", arguments="")]),
    delta(tool_calls=[call(0, arguments='{"a"')]),
    delta(tool_calls=[call(1, name="g", arguments="{}")]),
    delta(tool_calls=[call(0, arguments=": 1}")]),
    delta(finish="tool_calls"),
    DONE,
)
REFUSAL = answer(
    delta(role="assistant", refusal="I"), delta(refusal=" can't"), delta(finish="stop")
)


async def by_client(server: SseServer) -> tuple[list[object], str | None, Usage | None]:
    pieces: list[object] = []
    finish, usage = None, None
    async with openai.AsyncOpenAI(base_url=server.url, api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )
        async for chunk in stream:
            if chunk.usage and chunk.usage.prompt_tokens_details:
                details = chunk.usage.completion_tokens_details
                usage = Usage(
                    prompt_tokens=chunk.usage.prompt_tokens,
                    completion_tokens=chunk.usage.completion_tokens,
                    cached_tokens=chunk.usage.prompt_tokens_details.cached_tokens or 0,
                    reasoning_tokens=(details and details.reasoning_tokens) or 0,
                )
            for choice in chunk.choices:
                finish = choice.finish_reason or finish
                told = choice.delta.model_dump(exclude_unset=True, exclude_none=True)
                told.pop("role", None)
                if any(told.values()):
                    pieces.append(told)
    return pieces, finish, usage


@pytest.mark.parametrize("script", [TEXT, TOOLS, REFUSAL], ids=["text", "tools", "refusal"])
async def test_the_official_client_and_the_runner_read_the_same(script: Script):
    async with SseServer(script) as server, asking(server) as asker:
        pieces, finish, usage = await by_client(server)
        found = await asker.ask()

    assert [
        ({"content": chunk.text} if chunk.text else {}) | dict(chunk.fields or {})
        for chunk in found.chunks
    ] == pieces
    assert found.ending is not None
    assert found.ending.finish_reason == finish
    assert found.ending.usage == usage
