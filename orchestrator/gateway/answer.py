"""A whole answer as one `chat.completion`: the chunks' texts joined, their other members merged."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import cast

import msgspec

from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.gateway.chunks import LOGPROBS, usage_object

GOING_ON = (str, list, dict)
"""What a later delta goes on with."""


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
    found: dict[str, list[object]] = {}
    calls: dict[object, dict[str, object]] = {}
    for delta in deltas:
        for name, value in delta.items():
            if name == "tool_calls" and isinstance(value, list):
                _merge_calls(calls, cast("list[object]", value))
            else:
                found.setdefault(name, []).append(value)
    merged = {name: _joined(values) for name, values in found.items()}
    if calls:
        merged["tool_calls"] = [*map(_whole_call, calls.values())]
    return merged


class _Pieces(list[object]):
    """Pieces of a call's arguments, joined once at the end: there may be thousands."""


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
            if isinstance(known, _Pieces):
                known.append(value)
            else:
                call[name] = _Pieces((known, value))
        elif not known:
            call[name] = value


def _whole_call(call: Mapping[str, object]) -> dict[str, object]:
    whole: dict[str, object] = {}
    for name, value in call.items():
        if isinstance(value, _Pieces):
            whole[name] = _joined(value)
        elif isinstance(value, dict):
            whole[name] = _whole_call(cast("dict[str, object]", value))
        else:
            whole[name] = value
    return whole


def _joined(values: Sequence[object]) -> object:
    """One value after the other: texts, lists and objects go on, all else replaces what was."""
    run: list[object] = []
    for value in values:
        if value is None:
            continue
        if run and (type(value) is not type(run[-1]) or type(value) not in GOING_ON):
            run.clear()
        run.append(value)
    if len(run) < 2:  # noqa: PLR2004 - nothing to put together
        return run[0] if run else None
    if isinstance(run[0], str):
        return "".join(cast("list[str]", run))
    if isinstance(run[0], list):
        return [*chain.from_iterable(cast("list[list[object]]", run))]
    members: dict[str, list[object]] = {}
    for value in cast("list[dict[str, object]]", run):
        for name, member in value.items():
            members.setdefault(name, []).append(member)
    return {name: _joined(found) for name, found in members.items()}
