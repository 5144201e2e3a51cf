"""Events of every wire format that are large in some way that has been thought of.

`python -m tests.runners.remote.large_events` tells for how long each of them holds up the loop:
the CPU time of the longest step, with 3 MB.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.events import TokenChunk
from orchestrator.gateway.serve import COLLECT_AFTER
from orchestrator.runners.remote import anthropic_answer, chat, gemini_answer, ollama, responses
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.large import take_large
from orchestrator.runners.remote.large_outline import Shape
from orchestrator.runners.remote.ollama import OllamaDecoder
from orchestrator.runners.remote.provider import Reader, pieces_of
from orchestrator.runners.remote.responses import ResponsesDecoder
from orchestrator.runners.remote.sse import ServerSentEvent

SIZE = 3_000_000
LIKELY = {"token": "a", "logprob": -1.5, "bytes": [97]}
LOGPROB = {"token": "ab", "logprob": -0.5, "bytes": [97, 98], "top_logprobs": [LIKELY] * 5}
GEMINI = {"token": "a", "logProbability": -0.5}


@dataclass(frozen=True)
class Kind:
    """Who reads the events of one wire format."""

    reader: Callable[[], Reader]
    shape: Shape


CHAT = Kind(lambda: ChatDecoder("acme"), chat.SHAPE)
RESPONSES = Kind(lambda: ResponsesDecoder("acme"), responses.SHAPE)
OLLAMA = Kind(lambda: OllamaDecoder("acme", new_id=lambda: "made"), ollama.SHAPE)
GEMINI_KIND = Kind(lambda: GeminiDecoder("acme", new_id=lambda: "made"), gemini_answer.SHAPE)
ANTHROPIC = Kind(lambda: MessageDecoder("acme"), anthropic_answer.SHAPE)


@dataclass(frozen=True)
class Large:
    """One event."""

    kind: Kind
    make: Callable[[int], object]
    """Makes it with about so many bytes."""

    def data(self, size: int) -> bytes:
        return json.dumps(self.make(size), separators=(",", ":")).encode()


def full(item: object, size: int) -> list[object]:
    return [item] * (size // (len(json.dumps(item)) + 1))


def delta(**members: object) -> object:
    return {"choices": [{"index": 0, "delta": members}]}


def completed(**members: object) -> object:
    return {"type": "response.completed", "response": {"status": "completed", **members}}


def part(**members: object) -> object:
    return {"candidates": [{"content": {"parts": [members]}}]}


EVENTS: Mapping[str, Large] = {
    "chat text": Large(CHAT, lambda size: delta(content='a"\n' * (size // 5))),
    "chat logprobs": Large(
        CHAT,
        lambda size: {
            "choices": [{"delta": {"content": "a"}, "logprobs": {"content": full(LOGPROB, size)}}]
        },
    ),
    "chat parts": Large(
        CHAT, lambda size: delta(content=full({"type": "text", "text": "a"}, size))
    ),
    "chat calls": Large(
        CHAT,
        lambda size: delta(tool_calls=full({"index": 0, "function": {"arguments": "a"}}, size)),
    ),
    "chat array of its own": Large(
        CHAT, lambda size: delta(content="a", own=full([1, {"a": 2}], size))
    ),
    "chat object of its own": Large(
        CHAT, lambda size: delta(own={"deep": {"a": full({"b": 1}, size), "c": "d"}})
    ),
    "responses logprobs": Large(
        RESPONSES,
        lambda size: {
            "type": "response.output_text.delta",
            "output_index": 0,
            "delta": "ab",
            "logprobs": full(LOGPROB, size),
        },
    ),
    "responses text": Large(
        RESPONSES,
        lambda size: {"type": "response.output_text.delta", "delta": 'a"\n' * (size // 5)},
    ),
    "responses repeated logprobs": Large(
        RESPONSES,
        lambda size: completed(
            output=[
                {"type": "message", "content": [{"text": "a", "logprobs": full(LOGPROB, size)}]}
            ]
        ),
    ),
    "responses repeated items": Large(
        RESPONSES,
        lambda size: completed(
            output=full({"type": "reasoning", "summary": [{"type": "text", "text": "a"}]}, size)
        ),
    ),
    "ollama logprobs": Large(
        OLLAMA,
        lambda size: {"message": {"content": "ab"}, "logprobs": full(LOGPROB, size), "done": True},
    ),
    "ollama calls": Large(
        OLLAMA,
        lambda size: {
            "message": {
                "tool_calls": full({"function": {"name": "f", "arguments": {"a": 1.50}}}, size)
            }
        },
    ),
    "ollama arguments": Large(
        OLLAMA,
        lambda size: {
            "message": {
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": full([1], size)}}}]
            }
        },
    ),
    "gemini parts": Large(
        GEMINI_KIND,
        lambda size: {
            "candidates": [
                {"content": {"parts": full({"text": "a"}, size)}, "finishReason": "STOP"}
            ],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 9},
        },
    ),
    "gemini logprobs": Large(
        GEMINI_KIND,
        lambda size: {
            "candidates": [
                {
                    "content": {"parts": [{"text": "ab"}]},
                    "logprobsResult": {
                        "topCandidates": [{"candidates": [GEMINI] * 5}] * (size // 288),
                        "chosenCandidates": [GEMINI] * (size // 288 + 3),
                    },
                }
            ]
        },
    ),
    "gemini arguments": Large(
        GEMINI_KIND,
        lambda size: part(functionCall={"name": "f", "args": {"a": full([1, {"b": 1.50}], size)}}),
    ),
    "anthropic citations": Large(
        ANTHROPIC,
        lambda size: {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": "a", "citations": full({"a": 1}, size)},
        },
    ),
    "anthropic text": Large(
        ANTHROPIC,
        lambda size: {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": 'a"\n' * (size // 5)},
        },
    ),
}


async def in_pieces(reader: Reader, data: bytes, shape: Shape) -> AsyncGenerator[TokenChunk]:
    """Reads an event as a slot does."""

    def take(event: ServerSentEvent) -> Sequence[TokenChunk]:
        return pieces_of(reader, reader.take(event))

    async for chunk in take_large(take, ServerSentEvent(data), shape):
        yield chunk


async def longest_step(large: Large, size: int) -> tuple[float, float]:
    """Returns the CPU seconds of the longest step, and of all."""
    data, reader = large.data(size), large.kind.reader()
    steps: list[float] = []
    over = False

    async def beside() -> None:
        before = time.thread_time()
        while not over:
            await asyncio.sleep(0)
            steps.append(time.thread_time() - before)
            before += steps[-1]

    watching = asyncio.create_task(beside())
    await asyncio.sleep(0)
    async for _ in in_pieces(reader, data, large.kind.shape):
        pass
    await asyncio.sleep(0)
    over = True
    await watching
    return max(steps), sum(steps)


def main() -> None:
    """Prints a line for each event."""
    print(f"load {os.getloadavg()[0]:.1f}; CPU time, the best of 3")  # noqa: T201 - it prints
    gc.collect()  # as the gateway does, so that no pass goes over what is there at the start
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    for name, large in EVENTS.items():
        found = [asyncio.run(longest_step(large, SIZE)) for _ in range(3)]
        step, total = map(min, zip(*found, strict=True))
        print(f"{name:28} longest step {step * 1e3:5.1f} ms, all {total * 1e3:6.1f} ms")  # noqa: T201


if __name__ == "__main__":
    main()
