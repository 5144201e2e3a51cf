"""Embeddings, ranking and classification, from the client to the provider and back."""

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
from tests.fakes.sse_server import Script, Send, SseServer

pytestmark = pytest.mark.live

VECTORS: dict[str, Any] = {
    "object": "list",
    "data": [
        {"object": "embedding", "index": 0, "embedding": [0.5, -1.0]},
        {"object": "embedding", "index": 1, "embedding": [0.25, 2.0]},
    ],
    "model": "theirs",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}


def replies(told: object, status: int = 200) -> Script:
    body = json.dumps(told).encode()
    head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    return [Send(head.encode() + b"\r\n\r\n" + body)]


AT_ONCE = {"initial_backoff": "1ms", "max_backoff": "1ms"}


@contextlib.asynccontextmanager
async def gateway_to(provider: SseServer, **deployment: object) -> AsyncGenerator[Any]:
    runner = {"kind": "openai", "base_url": provider.url, "model": "theirs", "api_key": "k"}
    runners = {
        "v": {"runner": {**runner, "serves": ["embed", "rerank", "classify"]}, **deployment},
        "c": {"runner": runner},
    }
    plans, routes = plan_deployments(parse(json.dumps({"deployments": runners})))
    system = System(plans, routes, monitored=False)
    system.start()
    await system.settled()
    with bind("127.0.0.1", 0) as sock:
        listener = Listener(Gateway(system, max_body=1 << 20, access_log=False, linger=5), sock)
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


async def test_the_client_gets_its_vectors_and_the_provider_the_callers_fields() -> None:
    async with (
        asyncio.timeout(10),
        SseServer(replies(VECTORS)) as provider,
        gateway_to(provider) as client,
    ):
        answer = await client.embeddings.create(
            model="v", input=["a", "b"], dimensions=2, encoding_format="float"
        )
        (asked,) = provider.requests

    assert [item.embedding for item in answer.data] == [[0.5, -1.0], [0.25, 2.0]]
    assert (answer.model, answer.usage.prompt_tokens) == ("v", 5)
    assert asked.json == {
        "model": "theirs", "input": ["a", "b"], "dimensions": 2, "encoding_format": "float"
    }  # fmt: skip


async def test_a_failure_of_the_provider_is_retried_and_a_mixed_up_answer_is_none() -> None:
    few = {**VECTORS, "data": VECTORS["data"][:1]}
    twice = {**VECTORS, "data": [VECTORS["data"][0]] * 2}

    async with (
        asyncio.timeout(10),
        SseServer(
            replies({"error": {"message": "down"}}, 500), replies(few), replies(VECTORS),
            replies(twice), replies(VECTORS),
        ) as provider,
        gateway_to(provider, retry=AT_ONCE, breaker={"min_calls": 100}) as client,
    ):  # fmt: skip
        answers = [
            await client.embeddings.create(model="v", input=["a", "b"], encoding_format="float")
            for _ in range(2)
        ]

    assert [len(answer.data) for answer in answers] == [2, 2]
    assert len(provider.requests) == 5


async def test_documents_are_ranked_and_texts_are_classified() -> None:
    ranked = {"results": [{"index": 1, "relevance_score": 0.9}]}
    classes = {"data": [[{"label": "joy", "score": 0.8}]], "usage": {"total_tokens": 3}}

    async with (
        asyncio.timeout(10),
        SseServer(replies(ranked), replies(classes)) as provider,
        gateway_to(provider) as client,
    ):
        http: Any = client
        found = await http.post(
            "/rerank",
            cast_to=object,
            body={"model": "v", "query": "q", "documents": ["a", {"text": "b"}], "top_n": 1},
        )
        judged = await http.post("/classify", cast_to=object, body={"model": "v", "input": "hi"})
        asked = [(request.line, request.json) for request in provider.requests]

    assert found["results"] == ranked["results"]
    assert judged["data"] == classes["data"]
    assert judged["usage"] == {"prompt_tokens": 3, "total_tokens": 3}
    assert [line.split()[1].rpartition("/")[2] for line, _ in asked] == ["rerank", "classify"]
    assert asked[0][1]["query"] == "q"


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": "c", "input": "a"}, "model"),
        ({"model": "v", "input": []}, "input"),
        ({"model": "v", "input": ["a", 1]}, "input[1]"),
        ({"model": "v", "input": ["a"] * 2049}, "input"),
        ({"model": "v", "input": "a", "stream": True}, "stream"),
        ({"model": "v", "input": "a", "dimensions": 0}, "dimensions"),
    ],
)
async def test_what_can_not_be_embedded_is_a_400_that_names_the_field(
    members: dict[str, object], param: str
) -> None:
    async with asyncio.timeout(10), SseServer() as provider, gateway_to(provider) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.post("/embeddings", cast_to=object, body=members)

    assert caught.value.param == param
