"""The older completions, and the count of a prompt's tokens."""

import asyncio
from typing import Any

import openai
import pytest

from orchestrator.errors import UpstreamTruncatedError
from orchestrator.events import Finished, FinishReason, TokenChunk, Usage
from orchestrator.policies.retry import RetrySettings
from orchestrator.request import PriorityRequest
from tests.fakes.scripted import DONE, Line, Stage
from tests.gateway.serving import events, plays, serving

HELLO = Finished(FinishReason.STOP, Usage(prompt_tokens=4, completion_tokens=3))
PATH = "/v1/completions"


def token(text: str, logprob: float) -> TokenChunk:
    other = {"token": "x", "logprob": -9.0}
    told = {"token": text, "logprob": logprob, "top_logprobs": [other]}
    return TokenChunk(text, 1, {"logprobs": {"content": [told]}})


async def test_the_client_gets_a_completion_streamed_and_whole() -> None:
    seen: list[PriorityRequest] = []

    def script(request: PriorityRequest, _: int) -> list[Line]:
        seen.append(request)
        return [token("Hel", -0.5), token("lo", -0.25), HELLO]

    async with asyncio.timeout(10), serving({"m": Stage(script)}) as served:
        client = openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
        whole = await client.completions.create(model="m", prompt="Say: ", echo=True, logprobs=1)
        stream = await client.completions.create(
            model="m", prompt=["hi"], stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        await client.close()

    choice = whole.choices[0]
    assert (choice.text, choice.finish_reason) == ("Say: Hello", "stop")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["Hel", "lo"]
    assert choice.logprobs.text_offset == [5, 8]
    assert choice.logprobs.top_logprobs == [{"x": -9.0}, {"x": -9.0}]
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == "Hello"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7
    assert seen[0].sampling.max_tokens == 16
    assert (seen[0].extra["logprobs"], seen[0].extra["top_logprobs"]) == (True, 1)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"unheard": True}}, "stream_options"),
    ],
)
async def test_what_a_completion_can_not_do_is_refused_by_name(
    members: dict[str, object], param: str
) -> None:
    asked = {"model": "m", "prompt": "hi", **members}

    async with asyncio.timeout(5), serving({"m": plays(DONE)}) as served:
        response = await served.client.post(PATH, json=asked)

    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_a_completion_that_breaks_ends_with_one_error_and_no_done() -> None:
    read = asyncio.Event()
    stage = plays("a", read, UpstreamTruncatedError("cut"))
    asked = {"model": "m", "prompt": "hi", "stream": True}
    text = ""

    async with (
        asyncio.timeout(5),
        serving({"m": stage}, retry=RetrySettings(max_attempts=1)) as served,
        served.client.stream("POST", PATH, json=asked) as response,
    ):
        async for piece in response.aiter_text():
            text += piece
            read.set()

    told: list[Any] = events(text)
    assert told[0]["choices"][0]["text"] == "a"
    assert told[-1]["error"]["code"] == "upstream_truncated"
    assert "[DONE]" not in text


async def test_a_prompt_is_counted_by_the_model_or_estimated_and_marked() -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "x" * 40}]}
    tools = [{"name": "f", "input_schema": {"type": "object"}}]

    async with asyncio.timeout(5), serving({"m": plays(DONE)}) as served:
        client = served.client
        plain = await client.post("/v1/messages/count_tokens", json=asked)
        more = await client.post("/v1/messages/count_tokens", json=asked | {"tools": tools})
        unknown = await client.post("/v1/messages/count_tokens", json=asked | {"model": "none"})

    assert plain.json() == {"input_tokens": 10, "estimated": True}
    assert more.json()["input_tokens"] > 10
    assert unknown.status_code == 404
    assert unknown.json()["error"]["type"] == "not_found_error"
