"""The main job on the real model: stream, lose the model host, come back without help."""

import asyncio
import os
import signal
from pathlib import Path

import httpx
import openai
import pytest

from tests.gateway.process import ROOT, GatewayProcess, gateway_process
from tests.gateway.serving import CHAT, body, events, text_of

pytestmark = [pytest.mark.live, pytest.mark.timeout(150)]

CONFIG = ROOT / "config" / "gateway.yaml"
LIMIT = 120
"""Seconds for all of it, two loads of the model included; about 30 on two cores."""


def host_of(gateway: GatewayProcess) -> int:
    """The process that holds the model."""
    hosts = [
        child
        for child in gateway.children()
        if "orchestrator" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8")
    ]
    assert len(hosts) == 1
    return hosts[0]


def still_running(processes: list[int]) -> list[int]:
    return [process for process in processes if Path(f"/proc/{process}").exists()]


async def readiness_turns(client: httpx.AsyncClient, status: int) -> httpx.Response:
    while (response := await client.get("/readyz")).status_code != status:
        pass
    return response


async def test_a_gateway_whose_model_never_loads_says_why_and_stays(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF, but no more")
    config = tmp_path / "gateway.yaml"
    config.write_text(
        "deployments:\n  m:\n    runner: {kind: torch, model: ./broken.gguf}\n"
        "    supervision: {max_restarts: 0, on_poison: stay}\n",
        encoding="utf-8",
    )

    async with asyncio.timeout(LIMIT), gateway_process(config) as (gateway, client):
        early = await client.get("/readyz")
        reason = (await gateway.prints("m is poisoned: (.*)"))[1]
        await gateway.prints("0 of 1 deployments ready")
        late = await client.get("/readyz")
        live = await client.get("/livez")
        refused = await client.post(CHAT, json=body())
        gateway.send(signal.SIGTERM)
        code = await gateway.ends()

    assert early.status_code == 503
    assert early.json()["deployments"][0]["reason"] == "no slot is live yet"
    assert "broken.gguf" in reason
    assert late.json()["deployments"][0]["reason"] == reason
    assert live.status_code == 503
    assert refused.status_code == 503
    assert "broken.gguf" in refused.json()["error"]["message"]
    assert code == 0


async def test_a_killed_model_host_costs_a_pause_and_nothing_else() -> None:
    question = "Count from 1 to 5."
    members = body(
        model="chat",
        messages=[{"role": "user", "content": question}],
        stream=True,
        max_tokens=12,
        seed=1,
        temperature=1,
    )
    text = ""
    gone = httpx.Response(200)
    async with asyncio.timeout(LIMIT), gateway_process(CONFIG) as (gateway, client):
        await gateway.prints(r"^curl ")
        async with openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as sdk:
            stream = await sdk.chat.completions.create(
                model="chat",
                messages=[{"role": "user", "content": question}],
                stream=True,
                max_tokens=12,
                seed=1,
                temperature=1,
            )
            chunks = [chunk async for chunk in stream]
        async with client.stream("POST", CHAT, json=members) as response:
            async for piece in response.aiter_text():
                if not text:
                    os.kill(host_of(gateway), signal.SIGKILL)
                    gone = await readiness_turns(client, 503)
                    await gateway.prints("is ready after")  # to ask all the time slows a load down
                text += piece
        await readiness_turns(client, 200)
        after = await client.post(CHAT, json=body(model="chat", max_tokens=4, temperature=0))
        children = gateway.children()
        gateway.send(signal.SIGTERM)
        code = await gateway.ends()

    undisturbed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert undisturbed
    assert text_of(text) == undisturbed
    *_, last, done = events(text)
    assert last["choices"][0]["finish_reason"] == chunks[-1].choices[0].finish_reason
    assert done == "[DONE]"
    assert gone.status_code == 503
    assert after.status_code == 200
    assert after.json()["choices"][0]["message"]["content"]
    assert code == 0
    assert still_running(children) == []
