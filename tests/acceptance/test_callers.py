"""Callers, budgets and the ledger as users meet them: a gateway, its command line, clients."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import anthropic
import openai
import pytest

from tests.fakes.sse_server import SseServer, answer, delta
from tests.gateway.process import GatewayProcess, gateway_process

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

USAGE = {"prompt_tokens": 1_000_000, "completion_tokens": 500_000, "total_tokens": 1_500_000}
COUNTED = f'data: {{"choices": [], "usage": {json.dumps(USAGE)}}}\n\n'.encode()
ANSWER = answer(delta("Hello"), delta(finish="stop"), COUNTED, b"data: [DONE]\n\n")
CONFIG = """
server: {{host: "127.0.0.1"}}
deployments:
  hosted: {{runner: {{kind: openai, base_url: "{url}", model: big-2026-01-01}}}}
  other: {{runner: {{kind: openai, base_url: "{url}", model: small}}}}
callers: {{keys: ./keys.json}}
prices: {{big: {{input: 2, output: 4}}, small: {{input: 1, output: 1}}}}
budgets: [{{caller: "*", per: month, usd: 8}}]
ledger: {{path: ./usage.db}}
"""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        capture_output=True,
        check=True,
        text=True,
        timeout=30,
    )
    return done.stdout.strip()


def connect(gateway: GatewayProcess, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=key)


async def ask(client: openai.AsyncOpenAI, model: str = "hosted") -> str | None:
    chat = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "hi"}]
    )
    return chat.choices[0].message.content


async def test_a_caller_spends_its_budget_and_is_told_so_also_after_a_restart(
    tmp_path: Path,
) -> None:
    config = tmp_path / "gateway.yaml"
    async with asyncio.timeout(100), SseServer(ANSWER) as provider:
        config.write_text(CONFIG.format(url=provider.url), encoding="utf-8")
        create = ("keys", "create", "ann", "--route", "hosted", "--config", str(config))
        key = await asyncio.to_thread(run, *create)

        async with gateway_process(config) as (gateway, _), connect(gateway, key) as client:
            assert [await ask(client) for _ in range(2)] == ["Hello"] * 2
            with pytest.raises(openai.RateLimitError) as spent:
                await ask(client)
            with pytest.raises(openai.PermissionDeniedError):
                await ask(client, "other")
            async with connect(gateway, "sk-none") as stranger:
                with pytest.raises(openai.AuthenticationError):
                    await ask(stranger)
            async with anthropic.AsyncAnthropic(base_url=gateway.url, api_key="x") as stranger:
                with pytest.raises(anthropic.AuthenticationError):
                    await stranger.messages.create(
                        model="hosted",
                        max_tokens=5,
                        messages=[{"role": "user", "content": "hi"}],
                    )
        # the process was killed there, and what it has spent is not forgotten
        async with gateway_process(config) as (gateway, _), connect(gateway, key) as client:
            with pytest.raises(openai.RateLimitError, match="budget of caller ann, 8 USD"):
                await ask(client)
            (row,) = json.loads(await asyncio.to_thread(run, "usage", str(config), "--json"))

    assert spent.value.code == "budget_exceeded"
    assert len(provider.requests) == 2
    assert (row["name"], row["finished"], row["cost_nano_usd"]) == ("ann", 2, 8_000_000_000)
