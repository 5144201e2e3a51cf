"""Usage counted here, for providers that tell none.

No tokenizer knows every provider's models, so it is a count of bytes: four to a token, which is
near the truth for English and for Chinese alike. An answer has at least as many tokens as its
chunks say. Images aren't counted. Whoever reads the usage sees that it was estimated.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import cast

import msgspec

from orchestrator import metrics
from orchestrator.events import Finished, TokenChunk, Usage
from orchestrator.request import BYTES_PER_TOKEN, PriorityRequest
from orchestrator.runners.remote.pace import Steps, at_leisure

NO_TEXT = ("logprobs", "thinking_blocks")
"""Fields that say again what other chunks have said."""


async def with_usage(
    answer: AsyncGenerator[TokenChunk | Finished, None], request: PriorityRequest, provider: str
) -> AsyncGenerator[TokenChunk | Finished, None]:
    """Passes an answer on, with a usage of our own if it ends without one.

    Args:
        answer: What the provider's runner streams; closed with this generator.
        request: What was asked.
        provider: The name in metrics.
    """
    size_bytes = tokens = 0
    if request.resume is not None:  # the rest of an answer: what was sent before counts too
        size_bytes, tokens = len(request.resume.text.encode()), request.resume.tokens
    async with aclosing(answer) as events:
        async for event in events:
            if isinstance(event, TokenChunk):
                tokens += event.tokens
                size_bytes += len(event.text.encode())
                if event.fields is not None:
                    size_bytes += _told(event.fields)
                yield event
            elif event.usage is not None:
                yield event
            else:
                metrics.ESTIMATED_USAGES.labels(provider).inc()
                usage = Usage(
                    prompt_tokens=await at_leisure(prompt_tokens(request)),
                    completion_tokens=max(tokens, _tokens_in(size_bytes)),
                    estimated=True,
                )
                yield replace(event, usage=usage)


def prompt_tokens(request: PriorityRequest) -> Steps[int]:
    """About how many tokens the prompt has: its texts, calls of tools, and tools."""
    size_bytes = 0
    for message in request.messages:
        size_bytes += len(message.text.encode()) + _told(message.fields)
        yield
    if tools := request.extra.get("tools"):
        size_bytes += len(msgspec.json.encode(tools))
    return max(1, _tokens_in(size_bytes))


def _tokens_in(size_bytes: int) -> int:
    return -(-size_bytes // BYTES_PER_TOKEN)


def _told(value: object) -> int:
    """Bytes of all texts in a chunk's or message's fields."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, list):
        return sum(map(_told, cast("list[object]", value)))
    if isinstance(value, Mapping):
        members = cast("Mapping[str, object]", value)
        return sum(_told(member) for name, member in members.items() if name not in NO_TEXT)
    return 0
