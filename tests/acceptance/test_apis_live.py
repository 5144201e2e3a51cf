"""Every API in front of the real local model, within one life of the gateway."""

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.gateway.process import ROOT, gateway_process
from tests.gateway.serving import CHAT, body

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

LIMIT = 140
TURN = [{"role": "user", "content": "Count from 1 to 5."}]


async def told(client: httpx.AsyncClient, path: str, **members: object) -> Any:
    response = await client.post(path, json={"model": "chat", "temperature": 0} | members)
    assert response.status_code == 200, response.text
    return response.json()


async def test_messages_responses_completions_and_counting_agree_on_the_local_model() -> None:
    async with (
        asyncio.timeout(LIMIT),
        gateway_process(ROOT / "config" / "gateway.yaml") as (gateway, client),
    ):
        await gateway.prints(r"^curl ")
        chat = await client.post(
            CHAT, json=body(model="chat", messages=TURN, max_tokens=16, temperature=0)
        )
        message = await told(client, "/v1/messages", messages=TURN, max_tokens=16)
        text = chat.json()["choices"][0]["message"]["content"]
        stop = text[len(text) // 2 :][:2]
        stopped = await told(
            client, "/v1/messages", messages=TURN, max_tokens=16, stop_sequences=[stop]
        )
        count = await client.post(
            "/v1/messages/count_tokens", json={"model": "chat", "messages": TURN}
        )
        response = await told(
            client, "/v1/responses", input="Count from 1 to 5.", max_output_tokens=16
        )
        completion = await told(
            client, "/v1/completions", prompt="Count from 1 to 5.", max_tokens=16
        )
        streamed = await client.post(
            "/v1/messages",
            json={
                "model": "chat",
                "messages": TURN,
                "max_tokens": 16,
                "temperature": 0,
                "stream": True,
            },
        )

    usage = chat.json()["usage"]
    assert message["content"] == [{"type": "text", "text": text, "citations": None}]
    assert (stopped["stop_reason"], stopped["stop_sequence"]) == ("stop_sequence", stop)
    assert count.json() == {"input_tokens": usage["prompt_tokens"]}
    assert response["output"][0]["content"][0]["text"] == text
    assert completion["choices"][0]["text"] == text
    assert streamed.text.rstrip().endswith('data: {"type":"message_stop"}')
    events = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: ")]
    deltas = [event["delta"] for event in map(json.loads, events) if "delta" in event]
    assert "".join(delta.get("text", "") for delta in deltas) == text
