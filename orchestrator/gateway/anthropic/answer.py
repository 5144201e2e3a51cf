"""A whole answer as one message of Anthropic's API."""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from orchestrator.events import Finished, FinishReason, TokenChunk
from orchestrator.gateway.answer import merge_fields
from orchestrator.request import PriorityRequest
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.translation import object_in

STOP_REASONS: Mapping[FinishReason, str] = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}
STOP_SEQUENCE = "stop_sequence"
Object = dict[str, object]
_objects = msgspec.json.Decoder(dict[str, object])


def end_of(finished: Finished) -> Object:
    """Why the answer ended; of a stop text the API says which, where anybody knows."""
    if finished.stop is not None and finished.finish_reason is FinishReason.STOP:
        return {"stop_reason": STOP_SEQUENCE, "stop_sequence": finished.stop}
    return {"stop_reason": STOP_REASONS[finished.finish_reason], "stop_sequence": None}


def usage_of(finished: Finished, request: PriorityRequest, counted: int) -> Object:
    """Usage in Anthropic's shape; the API knows none that is absent, so an estimate says so.

    Args:
        finished: The ending.
        request: Whose prompt is estimated if nobody counted it.
        counted: Tokens of the chunks.
    """
    usage = finished.usage
    if usage is None:
        return {
            "input_tokens": request.estimated_prompt_tokens,
            "output_tokens": counted,
            "estimated": True,
        }
    told: Object = {
        # the API counts what a cache gave out apart from the rest of the prompt
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
    }
    if usage.estimated:
        told["estimated"] = True
    if usage.reasoning_tokens:
        told["output_tokens_details"] = {"thinking_tokens": usage.reasoning_tokens}
    return told


def whole_message(
    chunks: Sequence[TokenChunk],
    finished: Finished,
    *,
    message_id: str,
    request: PriorityRequest,
) -> bytes:
    """Returns the JSON of a complete message."""
    fields = merge_fields([chunk.fields for chunk in chunks if chunk.fields is not None])
    content = _thinking(fields)
    refusal, citations = fields.pop("refusal", None), fields.pop("citations", None)
    text = "".join(chunk.text for chunk in chunks) + (refusal if isinstance(refusal, str) else "")
    if text:
        content.append({"type": "text", "text": text, "citations": citations})
    for number, call in enumerate(cast("list[Object]", fields.pop("tool_calls", None) or [])):
        content.append(_tool_use(call, f"toolu_{message_id}_{number}"))
    return msgspec.json.encode(
        {
            **fields,  # what this API has no place for, under the provider's names
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": content,
            **end_of(finished),
            "usage": usage_of(finished, request, sum(chunk.tokens for chunk in chunks)),
        }
    )


def _thinking(fields: dict[str, object]) -> list[Object]:
    signed = fields.pop("thinking_blocks", None)
    reasoning = fields.pop("reasoning_content", None)
    if isinstance(signed, list) and signed:
        return cast("list[Object]", signed)
    if isinstance(reasoning, str) and reasoning:
        return [{"type": "thinking", "thinking": reasoning, "signature": ""}]
    return []


def _tool_use(call: Object, spare_id: str) -> Object:
    function = object_in(call.get("function"))
    return {
        "type": "tool_use",
        "id": call.get("id") or spare_id,
        "name": function.get("name") or "",
        "input": _input(function.get("arguments")),
    }


def _input(arguments: object) -> Object:
    """The arguments as an object; what a model wrote that is none is told as it is."""
    text = arguments if isinstance(arguments, str) else ""
    try:
        return _objects.decode(text or "{}")
    except NOT_JSON:
        return {"arguments": text}
