"""Callers of all kinds: two thirds read to the end, one third goes away at a random point."""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx

from orchestrator.errors import RequestCanceledError
from orchestrator.sdk import Orchestrator
from tests.fakes.sse_server import Script, Send, Stall, answer, delta, framed, head
from tests.gateway.serving import CHAT, body, text_of

PIECES = tuple(f"{number} " for number in range(8))
TEXT = "".join(PIECES)
WHOLE = answer(*(delta(piece) for piece in PIECES), delta(finish="stop"), b"data: [DONE]\n\n")
STALLED: Script = [Send(head()), Send(framed(delta("first"))), Stall()]
READ = (("remote", "hi"), ("local", f"say {len(PIECES)}"))
"""Models and prompts for callers who read to the end."""
LEFT = (*READ, ("stalled", "hi"), ("local", "wait"))
"""For those who go away; the last two have one piece to read and would never end."""
CANCELED_SHARE = 1 / 3
THREAD_SHARE = 0.2
"""Of those who read to the end."""
FORGOTTEN_SHARE = 0.3
"""Of those who go away."""
DROPPED_SHARE = 0.5
"""Of the pieces that such a caller gets over HTTP."""


class WrongAnswerError(Exception):
    """An answer that was read to its end isn't the one that was sent."""


async def call_sdk(orchestrator: Orchestrator, chance: random.Random) -> str:
    """One stream of the SDK; returns how it went."""
    if chance.random() >= CANCELED_SHARE:
        model, prompt = chance.choice(READ)
        stream = orchestrator.submit(prompt, model)
        elsewhere = chance.random() < THREAD_SHARE
        text = await asyncio.to_thread(stream.text) if elsewhere else (await stream).text
        if model == "remote" and text != TEXT:
            raise WrongAnswerError(repr(text))
        return f"{model}: read on a thread" if elsewhere else f"{model}: read"
    model, prompt = chance.choice(LEFT)
    stream = orchestrator.submit(prompt, model)
    endless = (model, prompt) not in READ
    pieces = chance.randrange(2 if endless else len(PIECES) + 2)
    await asyncio.sleep(chance.choice([0.0, 0.0, 0.002, 0.01]))
    while pieces and await anext(stream, None) is not None:
        pieces -= 1
    if chance.random() < FORGOTTEN_SHARE:
        del stream  # a caller that just forgets it
        return f"{model}: forgotten"
    stream.cancel()
    try:
        async for _ in stream:
            pass
    except RequestCanceledError:
        return f"{model}: canceled"
    return f"{model}: canceled after the last token"


async def call_gateway(client: httpx.AsyncClient, chance: random.Random) -> str:
    """One stream over HTTP; a caller that goes away drops its connection."""
    leaves = chance.random() < CANCELED_SHARE
    model, prompt = chance.choice(LEFT if leaves else READ)
    asked = {"role": "user", "content": prompt}
    members = body(model=model, messages=[asked], stream=True)
    if not leaves:
        response = await client.post(CHAT, json=members)
        if model == "remote" and text_of(response.text) != TEXT:
            raise WrongAnswerError(repr(response.text))
        return f"{model}: read"
    patience = chance.choice([0.0, 0.005, 0.05, 0.5])
    try:
        async with asyncio.timeout(patience), client.stream("POST", CHAT, json=members) as response:
            async for _ in response.aiter_raw():
                if chance.random() < DROPPED_SHARE:
                    return f"{model}: dropped at a piece"
    except TimeoutError:
        return f"{model}: dropped while waiting"
    return f"{model}: read"


async def through_sdk(
    orchestrator: Orchestrator, streams: int, callers: int, seed: int
) -> Counter[str]:
    """Asks for so many streams through the SDK; returns how many went how."""

    async def call(chance: random.Random) -> str:
        return "sdk " + await call_sdk(orchestrator, chance)

    return await _crowd(call, streams, callers, seed)


async def through_gateway(url: str, streams: int, callers: int, seed: int) -> Counter[str]:
    """Asks for so many streams over HTTP, with connections that are closed afterwards."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:

        async def call(chance: random.Random) -> str:
            return "http " + await call_gateway(client, chance)

        return await _crowd(call, streams, callers, seed)


async def _crowd(
    call: Callable[[random.Random], Awaitable[str]], streams: int, callers: int, seed: int
) -> Counter[str]:
    chance = random.Random(seed)
    left = iter(range(streams))
    went: Counter[str] = Counter()

    async def caller(chance: random.Random) -> None:
        for _ in left:
            went[await call(chance)] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller(random.Random(chance.random())))
    return went
