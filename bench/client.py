"""One library asks the mock provider: `python bench/client.py orchestrator|openai|litellm`.

Runs in the library's own environment, so it imports nothing of ours but where ours is measured.
"""

import asyncio
import importlib
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable

BASE_URL = "http://127.0.0.1:9100/v1"
STREAMS = 64
CHUNKS = 64
SECONDS = 4.0
PROMPT = "Tell me about the sea."


async def by_orchestrator(until: float) -> int:
    sys.path.insert(0, ".")
    sdk = importlib.import_module("orchestrator.sdk")
    wiring = importlib.import_module("orchestrator.wiring")
    openai = importlib.import_module("orchestrator.runners.remote.openai")
    asked = importlib.import_module("orchestrator.runners.remote.openai_request")
    settings = asked.OpenAISettings(base_url=BASE_URL, model="mock", api_key=lambda: "sk-bench")
    plans = importlib.import_module("orchestrator.plan")
    plan = plans.DeploymentPlan(name="mock", factory=openai.factory(settings), slots=256)
    system = wiring.System([plan])
    async with sdk.Orchestrator.over(system, default_model="mock", drain=5.0) as orchestrator:

        async def one() -> int:
            tokens = 0
            async for chunk in orchestrator.submit(PROMPT, max_tokens=CHUNKS):
                tokens += chunk.text.count(" zq")
            return tokens

        return await keep_asking(one, until)


async def by_openai(until: float) -> int:
    openai = importlib.import_module("openai")
    async with openai.AsyncOpenAI(base_url=BASE_URL, api_key="sk-bench", max_retries=0) as client:

        async def one() -> int:
            tokens = 0
            stream = await client.chat.completions.create(
                model="mock",
                messages=[{"role": "user", "content": PROMPT}],
                max_tokens=CHUNKS,
                stream=True,
            )
            async for chunk in stream:
                tokens += (chunk.choices[0].delta.content or "").count(" zq")
            return tokens

        return await keep_asking(one, until)


async def by_litellm(until: float) -> int:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the Internet first
    litellm = importlib.import_module("litellm")

    async def one() -> int:
        tokens = 0
        stream = await litellm.acompletion(
            model="openai/mock",
            api_base=BASE_URL,
            api_key="sk-bench",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=CHUNKS,
            stream=True,
        )
        async for chunk in stream:
            tokens += (chunk.choices[0].delta.content or "").count(" zq")
        return tokens

    return await keep_asking(one, until)


async def keep_asking(one: Callable[[], Awaitable[int]], until: float) -> int:
    """Keeps the streams going until the time has come; returns the tokens of whole answers."""

    async def lane() -> int:
        tokens = 0
        while time.perf_counter() < until:
            got = await one()
            assert got == CHUNKS, f"{got} of {CHUNKS} tokens came"
            tokens += got
        return tokens

    return sum(await asyncio.gather(*(lane() for _ in range(STREAMS))))


def main() -> None:
    ask = {"orchestrator": by_orchestrator, "openai": by_openai, "litellm": by_litellm}[sys.argv[1]]
    try:
        run = importlib.import_module("uvloop").run
    except ImportError:
        run = asyncio.run
    run(ask(time.perf_counter() + 1.0))  # warms up: imports, connections, caches
    began, cpu = time.perf_counter(), time.process_time()
    tokens = run(ask(began + SECONDS))
    took, spent = time.perf_counter() - began, time.process_time() - cpu
    print(
        json.dumps({"tokens_per_second": tokens / took, "cpu_us_per_token": spent / tokens * 1e6})
    )


if __name__ == "__main__":
    main()
