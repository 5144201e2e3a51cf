"""A chat completion's request in the words of the Responses API.

Fields that both know go through under their new names, fields that only one provider knows go
through untouched; what the API can't do is refused by name, or left out with `drop_params`.
"""

from collections.abc import Callable, Mapping, Sequence

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.remote.openai_request import OpenAISettings
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.settings import encode, leave_out
from orchestrator.runners.remote.strays import MESSAGE, PARTS, TOOL, beside, own, unmarked
from orchestrator.runners.remote.translation import (
    FOREIGN,
    Fields,
    Function,
    Object,
    ToolCall,
    calls_of,
    list_in,
    object_in,
    parts_of,
    refuse_part,
    tools_in,
    url_in,
)

Members = dict[str, object]

KNOWN = ("moderation", "verbosity")
"""Fields of OpenAI's own that this API of OpenAI's has as well."""


def payload(settings: OpenAISettings, request: PriorityRequest) -> Steps[Members]:
    """Returns the body to send; what the caller didn't set is left to the provider.

    Raises:
        InvalidRequestError: The API has no place for a field, or can't read a message.
    """
    fields = Fields(settings, request)
    fields.refuse_given([name for name in FOREIGN if name not in KNOWN])
    fields.refuse_several()
    for name, translate in TRANSLATED.items():
        if (given := fields.take(name)) is not None:
            translate(fields, given)
    body: Members = {"store": False, **fields.rest, **_sampled(settings, request)}
    items: list[Members] = []
    for index, message in enumerate(request.messages):
        items += _items(settings, message, f"messages[{index}]")
        yield
    body["input"] = items
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
    fields, others = message.fields, unmarked(message.fields, MESSAGE)
    if fields.get("name") is not None and message.role != "tool":  # there the call tells it
        leave_out(settings, f"{where}.name", "takes no name in a message")
    match message.role:
        case "tool":
            output = _content(settings, message, where) if message.content else ""
            told: Members = {"call_id": fields.get("tool_call_id"), "output": output}
            return [{**others, "type": "function_call_output", **told}]
        case "function":
            raise InvalidRequestError(
                f"{settings.provider} takes the results of functions as messages of role tool",
                param=f"{where}.role",
            )
        case role:
            said = _content(settings, message, where)
            spoken: list[Members] = [{**others, "role": role, "content": said}] if said else []
            if not said:
                for name in others:
                    leave_out(settings, f"{where}.{name}", f"takes no {name} without content")
            return spoken + [_called(call) for call in calls_of(message, where)]


def _content(settings: OpenAISettings, message: Message, where: str) -> str | list[Members]:
    answered, refusal = message.role == "assistant", message.fields.get("refusal")
    if refusal is None and not isinstance(message.content, Sequence):
        return ""
    if refusal is None and isinstance(message.content, str):
        return message.content
    content = [
        _part(part, f"{where}.content[{place}]", settings.provider, answered=answered)
        for place, part in enumerate(parts_of(message))
    ]
    return content if refusal is None else [*content, {"type": "refusal", "refusal": refusal}]


def _part(part: Object, where: str, provider: str, *, answered: bool) -> Members:
    kind = part.get("type")
    if kind == "text":
        told = {"type": "output_text" if answered else "input_text", "text": part["text"]}
        return {**unmarked(beside(part)), **told}
    if kind == "image_url":
        image = object_in(part.get("image_url"))
        others = {**unmarked(beside(part)), **unmarked(image, PARTS["image_url"])}
        detail, url = image.get("detail") or "auto", url_in(part, "image_url", where)
        return {**others, "type": "input_image", "image_url": url, "detail": detail}
    if kind == "file" and (file := object_in(part.get("file"))):
        return {**unmarked(beside(part)), "type": "input_file", **file}
    if kind in ("input_audio", "file"):
        refusal = refuse_part(part, where, provider)
        raise refusal
    return dict(part)


def _called(call: ToolCall) -> Members:
    written = object_in(call.fields.get("function")).get("arguments")
    return {
        **unmarked(call.own),
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": written if isinstance(written, str) else encode(call.arguments).decode(),
    }


def _tools(fields: Fields, given: object) -> None:
    fields.rest["tools"] = given
    tools: list[object] = []
    for tool in tools_in(fields):
        if isinstance(tool, Function):
            written: Members = {
                **unmarked(tool.fields),
                "type": "function",
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters or {"type": "object", "properties": {}},
                # a chat completion is lenient unless it says strict, this API the other way round
                "strict": bool(tool.strict),
            }
            tools.append({name: value for name, value in written.items() if value is not None})
        else:
            tools.append(tool)
    fields.rest["tools"] = tools


def _tool_choice(fields: Fields, given: object) -> None:
    fields.rest["tool_choice"] = _named(given)


def _named(choice: object) -> object:
    told = object_in(choice)
    function, allowed = object_in(told.get("function")), object_in(told.get("allowed_tools"))
    if function:
        return {**own(told, TOOL), **own(function), "type": "function"}
    if allowed:
        named = [_named(tool) for tool in list_in(allowed.get("tools"))]
        others = own(told, {"allowed_tools"})
        return {"type": "allowed_tools", **others, **allowed, "tools": named}
    return choice


def _response_format(fields: Fields, given: object) -> None:
    told = object_in(given)
    schema = object_in(told.get("json_schema"))
    others = own(told, {"json_schema"})
    form = {**others, "type": "json_schema", **schema} if schema else given
    fields.rest["text"] = {"format": form, **object_in(fields.rest.get("text"))}


def _verbosity(fields: Fields, given: object) -> None:
    fields.rest["text"] = {**object_in(fields.rest.get("text")), "verbosity": given}


def _effort(fields: Fields, given: object) -> None:
    fields.rest["reasoning"] = {"effort": given, **object_in(fields.rest.get("reasoning"))}


def _logprobs(fields: Fields, given: object) -> None:
    if given:
        others = list_in(fields.rest.get("include"))
        fields.rest["include"] = [*others, "message.output_text.logprobs"]


def _stream_options(fields: Fields, given: object) -> None:
    options = {name: value for name, value in object_in(given).items() if name != "include_usage"}
    if options:
        fields.rest["stream_options"] = options


TRANSLATED: Mapping[str, Callable[[Fields, object], None]] = {
    "tools": _tools,
    "tool_choice": _tool_choice,
    "response_format": _response_format,
    "verbosity": _verbosity,
    "reasoning_effort": _effort,
    "logprobs": _logprobs,
    "stream_options": _stream_options,
}
"""Fields that have another shape there, each with what puts it into the body."""
