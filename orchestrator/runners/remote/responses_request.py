"""A chat completion's request in the words of the Responses API.

Fields that both know go through under their new names, fields that only one provider knows go
through untouched; what the API can't do is refused by name, or left out with `drop_params`.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.remote.asked import (
    Call,
    Members,
    calls_of,
    function_of,
    image_of,
    items,
    members,
)
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.settings import leave_out

UNSUPPORTED = (
    "audio",
    "function_call",
    "functions",
    "logit_bias",
    "modalities",
    "prediction",
    "web_search_options",
)
"""Fields of a chat completion that have no counterpart."""

MESSAGE_FIELDS = {"tool_calls", "tool_call_id", "refusal"}
"""Members of a message that are translated."""

FORGOTTEN_FIELDS = {"reasoning_content", "reasoning", "annotations", "audio", "function_call"}
"""Members of earlier answers that clients send back; the API takes none of them."""


def payload(settings: OpenAISettings, request: PriorityRequest) -> Members:
    """Returns the body to send; what the caller didn't set is left to the provider.

    Raises:
        InvalidRequestError: The API has no place for a field, or can't read a message.
    """
    body: Members = {"store": False, **settings.extra_body, **_sampled(settings, request)}
    extra = dict(request.extra)
    for name in UNSUPPORTED:
        if extra.pop(name, None) is not None:
            leave_out(settings, name, f"has no {name} in its Responses API")
    if extra.pop("n", None) not in (None, 1):
        leave_out(settings, "n", "gives one answer to a request; n must be 1")
    for name, translate in TRANSLATED.items():
        if (given := extra.pop(name, None)) is not None:
            translate(settings, given, extra)
    body.update(extra)
    body["input"] = [
        item
        for index, message in enumerate(request.messages)
        for item in _items(settings, message, f"messages[{index}]")
    ]
    body["model"] = settings.model
    body["stream"] = True
    return body


def _sampled(settings: OpenAISettings, request: PriorityRequest) -> Members:
    sampling = request.sampling
    for name in ("seed", "stop", "presence_penalty", "frequency_penalty"):
        if getattr(sampling, name) not in (None, ()):
            leave_out(settings, name, f"has no {name} in its Responses API")
    chosen = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_output_tokens": sampling.max_tokens,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _items(settings: OpenAISettings, message: Message, where: str) -> list[Members]:
    fields = message.fields
    for name in fields.keys() - MESSAGE_FIELDS - FORGOTTEN_FIELDS:
        if fields[name] is not None:
            leave_out(settings, f"{where}.{name}", f"takes no {name} in a message")
    match message.role:
        case "tool":
            output = _content(message, where) if message.content else ""
            call = fields.get("tool_call_id")
            return [{"type": "function_call_output", "call_id": call, "output": output}]
        case "function":
            raise InvalidRequestError(
                f"{settings.provider} takes the results of functions as messages of role tool",
                param=f"{where}.role",
            )
        case role:
            said = _content(message, where)
            spoken: list[Members] = [{"role": role, "content": said}] if said else []
            return spoken + [_called(call) for call in calls_of(message, where)]


def _content(message: Message, where: str) -> str | list[Members]:
    refusal = message.fields.get("refusal")
    if message.content is None or isinstance(message.content, str):
        if refusal is None:
            return message.content or ""
        parts: Sequence[Mapping[str, object]] = (
            [{"type": "text", "text": message.content}] if message.content else []
        )
    else:
        parts = message.content
    answered = message.role == "assistant"
    content = [
        _part(part, f"{where}.content[{place}]", answered=answered)
        for place, part in enumerate(parts)
    ]
    return content if refusal is None else [*content, {"type": "refusal", "refusal": refusal}]


def _part(part: Mapping[str, object], where: str, *, answered: bool) -> Members:
    kind = part.get("type")
    if kind == "text":
        return {"type": "output_text" if answered else "input_text", "text": part["text"]}
    if kind == "image_url":
        url, others = image_of(part)
        if url:
            detail = others.get("detail") or "auto"
            return {"type": "input_image", "image_url": url, "detail": detail}
    elif kind == "file" and (file := members(part.get("file"))):
        return {"type": "input_file", **file}
    elif kind not in ("input_audio", "file"):
        return dict(part)
    raise InvalidRequestError(
        f"{where}: the Responses API can't read this part of type {kind}", param=where
    )


def _called(call: Call) -> Members:
    return {
        "type": "function_call",
        "call_id": call.known_as,
        "name": call.name,
        "arguments": call.arguments,
    }


def _tools(settings: OpenAISettings, given: object, extra: Members) -> None:
    tools: list[object] = []
    for place, tool in enumerate(items(given)):
        function = function_of(tool)
        if function is not None:
            # a chat completion is lenient unless it says strict, this API the other way round
            lenient: Members = {"parameters": {"type": "object", "properties": {}}, "strict": False}
            tools.append({"type": "function", **lenient, **function})
        elif "custom" in members(tool):
            leave_out(settings, f"tools[{place}]", "is asked for functions only")
        else:
            tools.append(tool)
    extra["tools"] = tools


def _tool_choice(_settings: OpenAISettings, given: object, extra: Members) -> None:
    extra["tool_choice"] = _named(given)


def _named(choice: object) -> object:
    function, allowed = function_of(choice), members(members(choice).get("allowed_tools"))
    if function is not None:
        return {"type": "function", "name": function["name"]}
    if allowed:
        named = [_named(tool) for tool in items(allowed.get("tools"))]
        return {"type": "allowed_tools", **allowed, "tools": named}
    return choice


def _response_format(_settings: OpenAISettings, given: object, extra: Members) -> None:
    schema = members(members(given).get("json_schema"))
    form = {"type": "json_schema", **schema} if schema else given
    extra["text"] = {"format": form, **members(extra.get("text"))}


def _verbosity(_settings: OpenAISettings, given: object, extra: Members) -> None:
    extra["text"] = {**members(extra.get("text")), "verbosity": given}


def _effort(_settings: OpenAISettings, given: object, extra: Members) -> None:
    extra["reasoning"] = {"effort": given, **members(extra.get("reasoning"))}


def _logprobs(_settings: OpenAISettings, given: object, extra: Members) -> None:
    if given:
        extra["include"] = [*items(extra.get("include")), "message.output_text.logprobs"]


def _stream_options(_settings: OpenAISettings, given: object, extra: Members) -> None:
    options = {name: value for name, value in members(given).items() if name != "include_usage"}
    if options:
        extra["stream_options"] = options


TRANSLATED: Mapping[str, Callable[[OpenAISettings, object, Members], None]] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "response_format": _response_format,
    "verbosity": _verbosity,
    "reasoning_effort": _effort,
    "logprobs": _logprobs,
    "stream_options": _stream_options,
}
"""Fields that have another shape there, each with what puts it into the rest of the body."""
