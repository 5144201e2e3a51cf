"""A whole answer as one `chat.completion`: the chunks' texts joined, their other members merged."""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.gateway.chunks import LOGPROBS, usage_object


def whole_answer(
    chunks: Sequence[TokenChunk],
    finished: Finished,
    *,
    completion_id: str,
    model: str,
    created: int,
) -> bytes:
    """Returns the JSON of a complete answer."""
    each: list[Sequence[TokenChunk]] = [chunks]
    if finished.others:
        each = _apart(chunks, len(finished.finish_reasons))
    choices = map(_choice, range(len(each)), each, finished.finish_reasons)
    return msgspec.json.encode(
        {
            "id": completion_id,
            "object": "chat.completion",
            "created": created,
            "model": model,
            "choices": list(choices),
            "usage": usage_object(finished.usage),
        }
    )


def _apart(chunks: Sequence[TokenChunk], count: int) -> list[Sequence[TokenChunk]]:
    each: list[list[TokenChunk]] = [[] for _ in range(count)]
    for chunk in chunks:
        each[chunk.index].append(chunk)
    return [*each]


def _choice(index: int, chunks: Sequence[TokenChunk], reason: FinishReason) -> dict[str, object]:
    fields = merge_fields([chunk.fields for chunk in chunks if chunk.fields is not None])
    logprobs = fields.pop(LOGPROBS, None)
    text = "".join(chunk.text for chunk in chunks)
    # an answer that only calls tools has no content, which is not the same as an empty one
    content = None if not text and fields.get("tool_calls") else text
    return {
        "index": index,
        "message": {"role": "assistant", "content": content} | fields,
        "logprobs": logprobs,
        "finish_reason": reason.value,
    }


def merge_fields(deltas: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Merges deltas of one answer: texts are joined, lists too, tool calls by their index."""
    merged: dict[str, object] = {}
    calls: dict[object, dict[str, object]] = {}
    for delta in deltas:
        for name, value in delta.items():
            if name == "tool_calls" and isinstance(value, list):
                _merge_calls(calls, cast("list[object]", value))
            else:
                merged[name] = _joined(merged.get(name), value)
    if calls:
        merged["tool_calls"] = list(calls.values())
    return merged


def _merge_calls(calls: dict[object, dict[str, object]], pieces: list[object]) -> None:
    for place, piece in enumerate(pieces):
        if not isinstance(piece, dict):
            continue
        members = dict(cast("dict[str, object]", piece))
        # providers that send each call whole leave the index out
        index = members.pop("index", place)
        _merge_call(calls.setdefault(index, {}), members)


def _merge_call(call: dict[str, object], piece: Mapping[str, object]) -> None:
    """Arguments are joined; id, type and name come once, and some providers repeat them."""
    for name, value in piece.items():
        known = call.get(name)
        if isinstance(value, dict):
            inner = cast("dict[str, object]", known) if isinstance(known, dict) else {}
            call[name] = inner
            _merge_call(inner, cast("dict[str, object]", value))
        elif name == "arguments":
            call[name] = _joined(known, value)
        elif not known:
            call[name] = value


def _joined(known: object, value: object) -> object:
    newest = value
    if newest is None:
        return known
    if isinstance(known, str) and isinstance(value, str):
        return known + value
    if isinstance(known, list) and isinstance(value, list):
        return [*cast("list[object]", known), *cast("list[object]", value)]
    if isinstance(known, dict) and isinstance(value, dict):
        members = dict(cast("dict[str, object]", known))
        for name, member in cast("dict[str, object]", value).items():
            members[name] = _joined(members.get(name), member)
        return members
    return newest
