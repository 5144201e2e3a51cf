"""Official clients read past what a stream tells of its attempts."""

import asyncio
import json
from typing import Any

import anthropic
import openai
import pytest

from orchestrator.errors import UpstreamServerError
from orchestrator.policies.retry import RetrySettings
from tests.fakes.scripted import DONE, Stage
from tests.gateway.serving import Served, plays, serving

pytestmark = pytest.mark.live

ASKS = {"x-orchestrator-explain": "true"}
ONCE = RetrySettings(max_attempts=1)
MESSAGES: Any = [{"role": "user", "content": "hi"}]


def stages() -> dict[str, Stage]:
    return {"a": plays(UpstreamServerError("a is down")), "b": plays("Hel", "lo", DONE)}


def connect(served: Served) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, default_headers=ASKS
    )


async def test_openais_client_streams_an_explained_chat() -> None:
    async with (
        asyncio.timeout(5),
        serving(stages(), {"m": ("a", "b")}, retry=ONCE) as served,
        connect(served) as client,
    ):
        raw = await client.chat.completions.with_raw_response.create(
            model="m", messages=MESSAGES, stream=True
        )
        chunks = [chunk async for chunk in raw.parse()]

    assert len(json.loads(raw.headers["x-orchestrator-attempts"])) == 2
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello"
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_openais_client_streams_an_explained_completion() -> None:
    async with (
        asyncio.timeout(5),
        serving(stages(), {"m": ("a", "b")}, retry=ONCE) as served,
        connect(served) as client,
    ):
        stream = await client.completions.create(model="m", prompt="hi", stream=True)
        text = "".join([chunk.choices[0].text async for chunk in stream])

    assert text == "Hello"


async def test_openais_client_streams_an_explained_response() -> None:
    async with (
        asyncio.timeout(5),
        serving(stages(), {"m": ("a", "b")}, retry=ONCE) as served,
        connect(served) as client,
        client.responses.stream(model="m", input="hi") as stream,
    ):
        final = await stream.get_final_response()

    assert final.output_text == "Hello"
    assert final.status == "completed"


async def test_anthropics_client_streams_an_explained_message() -> None:
    async with (
        asyncio.timeout(5),
        serving(stages(), {"m": ("a", "b")}, retry=ONCE) as served,
        anthropic.AsyncAnthropic(
            base_url=served.url, api_key="none", max_retries=0, default_headers=ASKS
        ) as client,
        client.messages.stream(model="m", max_tokens=9, messages=MESSAGES) as stream,
    ):
        message = await stream.get_final_message()

    assert message.content[0].type == "text"
    assert message.content[0].text == "Hello"
    assert message.stop_reason == "end_turn"


async def test_openais_client_raises_the_explained_error_with_its_number_of_attempts() -> None:
    down = {name: plays(UpstreamServerError(f"{name} is down")) for name in ("a", "b")}

    async with (
        asyncio.timeout(5),
        serving(down, {"m": ("a", "b")}, retry=ONCE) as served,
        connect(served) as client,
    ):
        with pytest.raises(openai.InternalServerError, match=r"a is down \(2 attempts\)") as raised:
            await client.chat.completions.create(model="m", messages=MESSAGES)

    told = json.loads(raised.value.response.headers["x-orchestrator-attempts"])
    assert [one["decision"] for one in told] == ["next: b", "ended"]
