"""What each API's official shapes say of one answer, told the same way for all of them."""

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

Json = dict[str, Any]  # Any: foreign JSON, of which a wrong shape fails the test
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}


@dataclass(frozen=True)
class Told:
    """One answer."""

    text: str
    finish: str
    usage: tuple[int, int]
    """Tokens of the prompt and of the answer."""
    call: tuple[str, str, Any] | None = None
    """The id, the function and the arguments of the one call of a tool."""


@dataclass(frozen=True)
class Family:
    """One API."""

    path: str
    asked: Json
    """A conversation with an earlier call of a tool and its result, and a tool."""
    whole: Callable[[Json], Told]
    streamed: Callable[[Sequence[Json]], Told]
    called: str | None = "tool_calls"
    """What it says where the answer ends with a call; None if it has no calls."""
    finish: str = "stop"


def events(stream: str) -> list[Json]:
    """The data of each event but the end marker."""
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def chat_whole(body: Json) -> Told:
    (choice,) = body["choices"]
    usage = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
    told = Told(choice["message"]["content"] or "", choice["finish_reason"], usage)
    for call in choice["message"].get("tool_calls") or ():
        function = call["function"]
        told = replace(told, call=(call["id"], function["name"], json.loads(function["arguments"])))
    return told


def chat_streamed(told: Sequence[Json]) -> Told:
    deltas = [choice["delta"] for event in told for choice in event["choices"]]
    finish = [choice["finish_reason"] for event in told for choice in event["choices"]]
    pieces = [call for delta in deltas for call in delta.get("tool_calls") or ()]
    function = [piece.get("function", {}) for piece in pieces]
    message: Json = {"content": "".join(delta.get("content") or "" for delta in deltas)}
    if pieces:
        arguments = "".join(piece.get("arguments") or "" for piece in function)
        call_id = next(piece["id"] for piece in pieces if piece.get("id"))
        name = next(piece["name"] for piece in function if piece.get("name"))
        message["tool_calls"] = [
            {"id": call_id, "function": {"name": name, "arguments": arguments}}
        ]
    (reason,) = filter(None, finish)
    (usage,) = (event["usage"] for event in told if event.get("usage"))
    return chat_whole({"choices": [{"message": message, "finish_reason": reason}], "usage": usage})


def text_whole(body: Json) -> Told:
    (choice,) = body["choices"]
    usage = body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]
    return Told(choice["text"], choice["finish_reason"], usage)


def text_streamed(told: Sequence[Json]) -> Told:
    choices = [choice for event in told for choice in event["choices"]]
    text = "".join(choice["text"] for choice in choices)
    (reason,) = filter(None, (choice["finish_reason"] for choice in choices))
    (usage,) = (event["usage"] for event in told if event.get("usage"))
    return text_whole({"choices": [{"text": text, "finish_reason": reason}], "usage": usage})


def response_whole(body: Json) -> Told:
    usage = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
    told = Told("", body["status"], usage)
    for item in body["output"]:
        if item["type"] == "message":
            told = replace(told, text="".join(part["text"] for part in item["content"]))
        elif item["type"] == "function_call":
            arguments = json.loads(item["arguments"])
            told = replace(told, call=(item["call_id"], item["name"], arguments))
    return told


def response_streamed(told: Sequence[Json]) -> Told:
    found = response_whole(told[-1]["response"])
    deltas = {"response.output_text.delta": "", "response.function_call_arguments.delta": ""}
    for event in told:
        if event["type"] in deltas:
            deltas[event["type"]] += event["delta"]
    text, arguments = deltas.values()
    assert text == found.text
    assert (json.loads(arguments) if arguments else None) == (found.call and found.call[2])
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    return found


def message_whole(body: Json) -> Told:
    usage = body["usage"]["input_tokens"], body["usage"]["output_tokens"]
    told = Told("", body["stop_reason"], usage)
    for block in body["content"]:
        if block["type"] == "text":
            told = replace(told, text=told.text + block["text"])
        elif block["type"] == "tool_use":
            told = replace(told, call=(block["id"], block["name"], block["input"]))
    return told


def message_streamed(told: Sequence[Json]) -> Told:
    blocks: list[Json] = []
    end: Json = {}
    for event in told:
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"] | {"written": ""})
            case "content_block_delta":
                delta: Mapping[str, str] = event["delta"]
                begun: Json = blocks[int(event["index"])]
                begun["text"] = begun.get("text", "") + delta.get("text", "")
                begun["written"] += delta.get("partial_json", "")
            case "message_delta":
                end = event
            case _:
                pass
    for block in blocks:
        if block["written"]:
            block["input"] = json.loads(block["written"])
    usage = end["usage"]
    return message_whole(
        {"content": blocks, "stop_reason": end["delta"]["stop_reason"], "usage": usage}
    )


FUNCTION: Json = {"name": "weather", "description": "Looks out", "parameters": SCHEMA}
CALL: Json = {"name": "weather", "arguments": '{"city": "Bonn"}'}
ASKED: Json = {"role": "user", "content": "And there?"}

FAMILIES = {
    "chat": Family(
        "/v1/chat/completions",
        {
            "messages": [
                ASKED,
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c0", "type": "function", "function": CALL}]},
                {"role": "tool", "tool_call_id": "c0", "content": "drizzle"},
            ],
            "tools": [{"type": "function", "function": FUNCTION}],
        },
        chat_whole,
        chat_streamed,
    ),
    "completions": Family(
        "/v1/completions", {"prompt": "And there?"}, text_whole, text_streamed, called=None
    ),
    "responses": Family(
        "/v1/responses",
        {
            "input": [
                ASKED,
                {"type": "function_call", "call_id": "c0", **CALL},
                {"type": "function_call_output", "call_id": "c0", "output": "drizzle"},
            ],
            "tools": [{"type": "function", **FUNCTION}],
        },
        response_whole,
        response_streamed,
        called="completed",
        finish="completed",
    ),
    "messages": Family(
        "/v1/messages",
        {
            "max_tokens": 64,
            "messages": [
                ASKED,
                {"role": "assistant", "content": [
                    {"type": "tool_use", "id": "c0", "name": "weather",
                     "input": {"city": "Bonn"}}]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c0", "content": "drizzle"}]},
            ],
            "tools": [
                {"name": "weather", "description": "Looks out", "input_schema": SCHEMA}
            ],
        },
        message_whole,
        message_streamed,
        called="tool_use",
        finish="end_turn",
    ),
}  # fmt: skip

IMAGE = "data:image/png;base64,iVBORw0KGgo="
FORM: Json = {"type": "json_schema", "name": "a", "schema": SCHEMA}

RICH: dict[str, Json] = {
    "chat": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": [
                {"type": "text", "text": "And there?"},
                {"type": "image_url", "image_url": {"url": IMAGE}}]},
            *FAMILIES["chat"].asked["messages"][1:],
        ],
        "tools": FAMILIES["chat"].asked["tools"],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {
            "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    },
    "responses": {
        "input": [
            {"role": "user", "content": [
                {"type": "input_text", "text": "And there?"},
                {"type": "input_image", "image_url": IMAGE}]},
            {"type": "message", "role": "assistant", "content": [
                {"type": "output_text", "text": "Look."}]},
            *FAMILIES["responses"].asked["input"][1:],
        ],
        "tools": FAMILIES["responses"].asked["tools"],
        "tool_choice": {"type": "function", "name": "weather"},
        "text": {"format": FORM},
    },
    "messages": {
        "max_tokens": 64,
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "And there?"},
                {"type": "image", "source": {
                    "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]},
            FAMILIES["messages"].asked["messages"][1],
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c0", "content": [
                    {"type": "text", "text": "drizzle"}]}]},
        ],
        "tools": FAMILIES["messages"].asked["tools"],
        "tool_choice": {"type": "tool", "name": "weather"},
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    },
}  # fmt: skip
"""A request of each API that has objects at every place."""

OPAQUE = ("parameters", "input_schema", "schema", "input")
"""Members whose objects are the caller's own, whatever they hold."""


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The path of every object in a request but itself."""
    if isinstance(value, dict):
        if path:
            yield path
        for name, inner in cast("Json", value).items():
            if name not in OPAQUE or not isinstance(inner, dict):
                yield from places(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(cast("list[object]", value)):
            yield from places(inner, (*path, place))


def with_member(asked: Json, path: Sequence[str | int], name: str) -> Json:
    """The request with one more member in the object at that place."""
    changed = copy.deepcopy(asked)
    inner: Any = changed
    for step in path:
        inner = inner[step]
    inner[name] = "kept?"
    return changed
