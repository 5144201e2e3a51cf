"""Events of every wire format that are large in some way that has been thought of.

`python -m tests.runners.remote.large_events` tells for how long each of them holds up the loop:
the CPU time of the longest step, with 3 MB.
"""

import asyncio
import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from orchestrator.errors import OrchestratorError
from orchestrator.gateway.serve import COLLECT_AFTER
from orchestrator.runners.remote.anthropic_answer import MessageDecoder
from orchestrator.runners.remote.chat import ChatDecoder
from orchestrator.runners.remote.gemini_answer import GeminiDecoder
from orchestrator.runners.remote.large import take_large
from orchestrator.runners.remote.ollama import OllamaDecoder
from orchestrator.runners.remote.reader import Reader
from orchestrator.runners.remote.responses import ResponsesDecoder
from orchestrator.runners.remote.sse import ServerSentEvent

SIZE = 3_000_000
LIKELY = {"token": "a", "logprob": -1.5, "bytes": [97]}
LOGPROB = {"token": "ab", "logprob": -0.5, "bytes": [97, 98], "top_logprobs": [LIKELY] * 5}
GEMINI = {"token": "a", "logProbability": -0.5}


def chat() -> Reader:
    return ChatDecoder("acme")


def chat_of_two() -> Reader:
    return ChatDecoder("acme", answers=2)


def responses() -> Reader:
    return ResponsesDecoder("acme")


def ollama() -> Reader:
    return OllamaDecoder("acme", new_id=lambda: "made")


def gemini() -> Reader:
    return GeminiDecoder("acme", new_id=lambda: "made")


def anthropic() -> Reader:
    return MessageDecoder("acme")


@dataclass(frozen=True)
class Large:
    """One event."""

    reader: Callable[[], Reader]
    make: Callable[[int], object]
    """Makes it with about so many bytes."""
    name: bytes = b""
    spoilt: Callable[[bytes], bytes] = bytes
    """What becomes of its bytes."""

    def data(self, size: int) -> bytes:
        return self.spoilt(json.dumps(self.make(size), separators=(",", ":")).encode())

    def event(self, size: int) -> ServerSentEvent:
        return ServerSentEvent(self.data(size), self.name)


def full(item: object, size: int) -> list[object]:
    return [item] * (size // (len(json.dumps(item)) + 1))


def delta(**members: object) -> Mapping[str, object]:
    return {"choices": [{"index": 0, "delta": members}]}


def completed(**members: object) -> object:
    return {"type": "response.completed", "response": {"status": "completed", **members}}


def part(**members: object) -> object:
    return {"candidates": [{"content": {"parts": [members]}}]}


EVENTS: Mapping[str, Large] = {
    "chat text": Large(chat, lambda size: delta(content='a"\n' * (size // 5))),
    "chat logprobs": Large(
        chat,
        lambda size: {
            "choices": [{"delta": {"content": "a"}, "logprobs": {"content": full(LOGPROB, size)}}]
        },
    ),
    "chat parts": Large(
        chat, lambda size: delta(content=full({"type": "text", "text": "a"}, size))
    ),
    "chat calls": Large(
        chat,
        lambda size: delta(tool_calls=full({"index": 0, "function": {"arguments": "a"}}, size)),
    ),
    "chat array of its own": Large(
        chat, lambda size: delta(content="a", own=full([1, {"a": 2}], size))
    ),
    "chat object of its own": Large(
        chat, lambda size: delta(own={"deep": {"a": full({"b": 1}, size), "c": "d"}})
    ),
    "responses logprobs": Large(
        responses,
        lambda size: {
            "type": "response.output_text.delta",
            "output_index": 0,
            "delta": "ab",
            "logprobs": full(LOGPROB, size),
        },
    ),
    "responses text": Large(
        responses,
        lambda size: {"type": "response.output_text.delta", "delta": 'a"\n' * (size // 5)},
    ),
    "responses repeated logprobs": Large(
        responses,
        lambda size: completed(
            output=[
                {"type": "message", "content": [{"text": "a", "logprobs": full(LOGPROB, size)}]}
            ]
        ),
    ),
    "responses repeated items": Large(
        responses,
        lambda size: completed(
            output=full({"type": "reasoning", "summary": [{"type": "text", "text": "a"}]}, size)
        ),
    ),
    "ollama logprobs": Large(
        ollama,
        lambda size: {"message": {"content": "ab"}, "logprobs": full(LOGPROB, size), "done": True},
    ),
    "ollama calls": Large(
        ollama,
        lambda size: {
            "message": {
                "tool_calls": full({"function": {"name": "f", "arguments": {"a": 1.50}}}, size)
            }
        },
    ),
    "ollama arguments": Large(
        ollama,
        lambda size: {
            "message": {
                "tool_calls": [{"function": {"name": "f", "arguments": {"a": full([1], size)}}}]
            }
        },
    ),
    "gemini parts": Large(
        gemini,
        lambda size: {
            "candidates": [
                {"content": {"parts": full({"text": "a"}, size)}, "finishReason": "STOP"}
            ],
            "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 9},
        },
    ),
    "gemini logprobs": Large(
        gemini,
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
        gemini,
        lambda size: part(functionCall={"name": "f", "args": {"a": full([1, {"b": 1.50}], size)}}),
    ),
    "anthropic citations": Large(
        anthropic,
        lambda size: {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": "a", "citations": full({"a": 1}, size)},
        },
    ),
    "anthropic text": Large(
        anthropic,
        lambda size: {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": 'a"\n' * (size // 5)},
        },
    ),
    "chat text of a whole answer": Large(
        chat, lambda size: {"choices": [{"message": {"content": 'a"\n' * (size // 5)}}]}
    ),
    "chat arguments": Large(
        chat,
        lambda size: delta(
            tool_calls=[{"function": {"name": "f", "arguments": '{"' * (size // 3)}}]
        ),
    ),
    "chat object with many members": Large(
        chat, lambda size: delta(own={str(place): {"a": 1} for place in range(size // 16)})
    ),
    "chat choices": Large(
        chat, lambda size: {"choices": full({"index": 0, "delta": {"content": "a"}}, size)}
    ),
    "chat choices of others": Large(
        chat,
        lambda size: {
            "choices": [
                *full({"index": 1, "delta": {"content": "a"}}, size),
                {"index": 0, "delta": {"content": "b"}},
            ]
        },
    ),
    "chat choices of two answers": Large(
        chat_of_two,
        lambda size: {
            "choices": [
                {"index": place % 2, "delta": {"content": "a"}} for place in range(size // 40)
            ]
        },
    ),
    "chat member that nobody reads": Large(
        chat, lambda size: {"own": full({"a": 1, "b": [2]}, size), **delta(content="a")}
    ),
    "chat details of a usage": Large(
        chat,
        lambda size: {
            "choices": [{"finish_reason": "stop"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 5, "own": full({"a": 1}, size)},
        },
    ),
    "responses item that is done": Large(
        responses,
        lambda size: {
            "type": "response.output_item.done",
            "item": {
                "type": "message",
                "content": full({"type": "output_text", "text": "a"}, size),
            },
        },
    ),
    "responses arguments that are done": Large(
        responses,
        lambda size: {
            "type": "response.output_item.added",
            "item": {"type": "function_call", "name": "f", "arguments": '{"' * (size // 3)},
        },
    ),
    "gemini text": Large(gemini, lambda size: part(text='a"\n' * (size // 5))),
    "gemini sources": Large(
        gemini,
        lambda size: {
            "candidates": [
                {
                    "content": {"parts": [{"text": "a"}]},
                    "groundingMetadata": {"groundingChunks": full({"web": {"uri": "a"}}, size)},
                    "finishReason": "STOP",
                }
            ]
        },
    ),
    "gemini candidates": Large(
        gemini, lambda size: {"candidates": full({"content": {"parts": [{"text": "a"}]}}, size)}
    ),
    "anthropic thinking that a block begins with": Large(
        anthropic,
        lambda size: {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": 'a"\n' * (size // 5)},
        },
    ),
    "anthropic input that a block begins with": Large(
        anthropic,
        lambda size: {
            "type": "content_block_start",
            "index": 0,
            "content_block": {
                "type": "tool_use",
                "id": "t",
                "name": "f",
                "input": {"a": full({"b": 1.50, "c": 'd"'}, size)},
            },
        },
    ),
    "anthropic result of its own tool": Large(
        anthropic,
        lambda size: {
            "type": "content_block_start",
            "index": 0,
            "content_block": {
                "type": "web_search_tool_result",
                "content": full({"type": "web_search_result", "url": "a"}, size),
            },
        },
    ),
    "anthropic whole message": Large(
        anthropic,
        lambda size: {
            "type": "message_start",
            "message": {"content": full({"type": "text", "text": "a"}, size)},
        },
    ),
}


def spoilt(name: str, how: Callable[[bytes], bytes]) -> Large:
    return replace(EVENTS[name], spoilt=how)


BROKEN: Mapping[str, Large] = {
    "chat text without its end": spoilt("chat text", lambda data: data[:-9]),
    "chat parts without their end": spoilt("chat parts", lambda data: data[:-3]),
    "chat calls with a mistake in the midst": spoilt(
        "chat calls",
        lambda data: data[: len(data) // 2] + b"{{" + data[len(data) // 2 :],
    ),
    "chat object with a mistake at its end": spoilt(
        "chat object of its own", lambda data: data[:-4] + b"?" + data[-4:]
    ),
    "chat and something after it": spoilt("chat parts", lambda data: data + b"}"),
    "chat content of the wrong kind": Large(chat, lambda size: delta(content={"a": "b" * size})),
    "chat error with a long text": Large(
        chat, lambda size: {"error": {"code": "server_overloaded", "message": 'a" ' * (size // 4)}}
    ),
    "chat error with much beside": Large(
        chat,
        lambda size: {"error": {"code": "server_overloaded", "own": full({"a": 1}, size)}},
    ),
    "chat error after much else": Large(
        chat, lambda size: {"own": full({"a": 1}, size), "error": {"code": "server_overloaded"}}
    ),
    "chat event that is called an error": Large(
        chat, lambda size: {"own": full({"a": 1}, size)}, name=b"error"
    ),
    "responses failure": Large(
        responses,
        lambda size: {
            "type": "response.failed",
            "response": {"output": full({"a": 1}, size), "error": {"code": "server_overloaded"}},
        },
    ),
    "gemini refusal": Large(
        gemini,
        lambda size: {"error": {"code": 503, "message": "a", "details": full({"a": 1}, size)}},
    ),
    "anthropic error": Large(
        anthropic,
        lambda size: {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "a" * size},
        },
        name=b"error",
    ),
    "chat choices of others with an index that is none": Large(
        chat,
        lambda size: {
            "choices": [{"index": "a"}, *full({"index": 1}, size), {"finish_reason": "stop"}]
        },
    ),
    "gemini candidates of others with content that is none": Large(
        gemini,
        lambda size: {"candidates": [{"index": 1, "content": 5}, *full({"index": 2}, size)]},
    ),
    "ollama error": Large(ollama, lambda size: {"error": "a" * size, "own": full({"a": 1}, size)}),
}
"""Events that are no JSON, or an error."""

ALL: Mapping[str, Large] = {**EVENTS, **BROKEN}


async def longest_step(large: Large, size: int) -> tuple[float, float]:
    """Returns the CPU seconds of the longest step, and of all."""
    event, reader = large.event(size), large.reader()
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
    with contextlib.suppress(OrchestratorError):
        async for _ in take_large(reader, event):
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
    only = sys.argv[1:]
    for name, large in ALL.items():
        if only and not any(part in name for part in only):
            continue
        found = [asyncio.run(longest_step(large, SIZE)) for _ in range(3)]
        step, total = map(min, zip(*found, strict=True))
        print(f"{name:44} longest step {step * 1e3:5.1f} ms, all {total * 1e3:6.1f} ms")  # noqa: T201


if __name__ == "__main__":
    main()
