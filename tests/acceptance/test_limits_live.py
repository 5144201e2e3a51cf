"""Over a socket a recording provider sees no window above the limit, at five times the load.

Twenty seconds by default; `make limits` takes a whole minute.
"""

import asyncio
import os
from pathlib import Path

import pytest

from orchestrator.config import parse
from orchestrator.errors import OrchestratorError
from orchestrator.sdk import Orchestrator
from tests.acceptance.test_limits_at_the_provider import most_in_a_minute
from tests.fakes.sse_server import SseServer, answer, delta, refusal

SECONDS = float(os.environ.get("LIMITS_SECONDS", "20"))
LIMIT = 120


@pytest.mark.live
@pytest.mark.timeout(SECONDS + 40)
async def test_no_window_at_a_socket_sees_more_than_the_limit(tmp_path: Path) -> None:
    """One answer in ten is a 500, one in twenty a 429, which does not come of the rate here.

    So `learn` is off: no rate would be slow enough for such a provider, and a key that is slowed
    down again before it has won its rate back uses 0.4 of it.
    """
    loop = asyncio.get_running_loop()
    whole = answer(delta("yes"), delta(finish="stop"), b"data: [DONE]\n\n")
    scripts = [
        refusal(500, {}) if n % 10 == 3 else refusal(429, {}) if n % 20 == 6 else whole
        for n in range(20)
    ]
    answered = 0
    async with SseServer(*scripts * 50) as provider:
        config = parse(
            f"""
            deployments:
              d:
                runner: {{kind: openai, model: m, base_url: '{provider.url}', api_key: k}}
                slots: 32
                limits: {{requests_per_minute: {LIMIT}, learn: false}}
                breaker: {{failure_threshold: 10000, failure_rate: 1}}
            """,
            folder=tmp_path,
        )
        async with Orchestrator(config) as sdk:

            async def ask() -> None:
                nonlocal answered
                try:
                    await sdk.submit("hi", "d", deadline=5.0)
                    answered += 1
                except OrchestratorError:
                    pass

            until = loop.time() + SECONDS
            asking: list[asyncio.Task[None]] = []
            while loop.time() < until:
                asking.append(loop.create_task(ask()))
                await asyncio.sleep(60.0 / (5 * LIMIT))
            await asyncio.gather(*asking)
        seen = [(request.at, 1.0) for request in provider.requests]

    assert most_in_a_minute(seen) <= LIMIT
    assert most_in_a_minute(seen) >= 0.8 * min(LIMIT, LIMIT * SECONDS / 60.0)
    burst, rate = 0.1 * LIMIT, LIMIT / 60.0
    for number, (at, _) in enumerate(seen):
        for later, (until, _) in enumerate(seen[number:], 1):
            assert later <= burst + rate * (until - at + 0.2)  # on its way for as long
    assert answered > 0
