"""Streams of the Messages API in the shape of its documents, and a deployment to ask for them."""

import contextlib
import json
from typing import Any

import httpx

from orchestrator.runners.remote.anthropic import factory
from orchestrator.runners.remote.anthropic_request import AnthropicSettings
from tests.fakes.sse_server import SseServer
from tests.runners.remote.asking import Asker
from tests.runners.remote.asking import asking as asking_any


def asking(
    server: SseServer | str, transport: httpx.AsyncBaseTransport | None = None, **given: Any
) -> contextlib.AbstractAsyncContextManager[Asker]:
    return asking_any(server, transport, kind=AnthropicSettings, make=factory, **given)


def named(name: str, payload: object) -> bytes:
    """One event; the API names each and repeats the name in the data."""
    text = json.dumps(payload, separators=(",", ":"), ensure_ascii=False)
    return f"event: {name}\ndata: {text}\n\n".encode()


def told(kind: str, **members: object) -> bytes:
    return named(kind, {"type": kind, **members})


def message_start(**usage: object) -> bytes:
    counted = {
        "input_tokens": 25,
        "cache_creation_input_tokens": 4,
        "cache_read_input_tokens": 8,
        "output_tokens": 1,
        "service_tier": "standard",
    }
    message: dict[str, object] = {
        "id": "msg_01EcyWo6m4hyW8KHs2y2pei5",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5-20250929",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": counted | usage,
    }
    return told("message_start", message=message)


def block_start(index: int, **block: object) -> bytes:
    return told("content_block_start", index=index, content_block=block)


def block_delta(text: str, index: int = 0, kind: str = "text_delta", of: str = "text") -> bytes:
    return told("content_block_delta", index=index, delta={"type": kind, of: text})


def json_delta(index: int, text: str) -> bytes:
    return block_delta(text, index, "input_json_delta", "partial_json")


def block_stop(index: int) -> bytes:
    return told("content_block_stop", index=index)


def message_delta(reason: str = "end_turn", tokens: int = 12) -> bytes:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return told("message_delta", delta=delta, usage={"output_tokens": tokens})


PING = told("ping")
STOP = told("message_stop")
TEXTS = ("Hel", "lo", " 你", "好")
HELLO = (
    message_start(),
    block_start(0, type="text", text=""),
    PING,
    *(block_delta(text) for text in TEXTS),
    block_stop(0),
    message_delta(),
    STOP,
)
CALLS = (
    message_start(),
    block_start(0, type="thinking", thinking="", signature=""),
    block_delta("Which ", 0, "thinking_delta", "thinking"),
    block_delta("city?", 0, "thinking_delta", "thinking"),
    block_delta("EqQBCgIYAhIM1gbcDa9GJwZA2b3h", 0, "signature_delta", "signature"),
    block_stop(0),
    block_start(1, type="text", text=""),
    block_delta("I'll look.", 1),
    block_stop(1),
    block_start(
        2, type="tool_use", id="toolu_01T1x1fJ34qAmk2tNTrN7Up6", name="get_weather", input={}
    ),
    json_delta(2, ""),
    json_delta(2, '{"location":'),
    json_delta(2, ' "San'),
    json_delta(2, ' Francisco, CA"}'),
    block_stop(2),
    block_start(3, type="tool_use", id="toolu_02", name="now", input={}),
    json_delta(3, ""),
    block_stop(3),
    message_delta("tool_use", 89),
    STOP,
)
