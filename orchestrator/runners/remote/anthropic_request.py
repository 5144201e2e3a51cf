"""What is sent to Anthropic's Messages API, from a request in OpenAI's words.

* System and developer messages become the one `system` prompt, wherever they stand; messages of
  one side in a row become one turn; results of tools are the user's.
* An assistant's `thinking_blocks`, as the answer brought them, go back untouched: the API wants
  them with the results of tools.
* `response_format` with a schema is `output_config.format`; JSON without a schema is refused, for
  the API has no such mode. `reasoning_effort` is `output_config.effort`. `thinking`, `top_k`,
  `cache_control` and whatever else is the API's own goes through untouched.
* A participant's `name` and the `detail` of an image have no place there and are left out. Members
  of the API's own go along with their part, call, result or tool.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest, SamplingParams
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.settings import RemoteSettings
from orchestrator.runners.remote.strays import MESSAGE, Strays, beside, own
from orchestrator.runners.remote.translation import (
    Choice,
    Fields,
    Function,
    Object,
    Turn,
    add_turn,
    calls_of,
    choice_in,
    data_of,
    format_in,
    list_in,
    object_in,
    parts_of,
    refuse_part,
    tools_in,
    url_in,
)

EFFORTS = ("low", "medium", "high", "xhigh", "max")
NO_ARGUMENTS: Object = {"type": "object", "properties": {}}
CHOICES = {"auto": "auto", "none": "none", "required": "any"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicSettings(RemoteSettings):
    """A deployment at the Messages API."""

    base_url: str = "https://api.anthropic.com/v1"
    version: str = "2023-06-01"
    """Sent as `anthropic-version`; betas are asked for with the header `anthropic-beta`."""
    max_tokens: int = 4096
    """The longest answer where the caller names none: the API wants a number."""
    provider: str = "anthropic"


def own_headers(settings: AnthropicSettings, secret: str | None) -> dict[str, str]:
    """Returns the headers that the API wants."""
    headers = {"anthropic-version": settings.version}
    if secret is not None and settings.bearer:
        headers["authorization"] = f"Bearer {secret}"
    elif secret is not None:
        headers["x-api-key"] = secret
    return headers


def payload(settings: AnthropicSettings, request: PriorityRequest) -> Steps[dict[str, object]]:
    """Returns the body to send.

    Raises:
        InvalidRequestError: The API can't do it, or a message is of no use; `param` names it.
    """
    fields = Fields(settings, request)
    strays = Strays(settings)
    strays.in_fields(fields.rest)
    system, turns = yield from _conversation(request.messages, settings.provider, strays)
    if not turns:
        raise InvalidRequestError("messages must hold more than system messages", param="messages")
    messages: list[Object] = []
    for turn in turns:
        messages.append({"role": turn.role, "content": turn.blocks})
        yield
    # the deployment's extra_body may name one as well
    longest = request.sampling.max_tokens or fields.take("max_tokens") or settings.max_tokens
    body: dict[str, object] = {
        "model": settings.model,
        "max_tokens": longest,
        "messages": messages,
        "stream": True,
    }
    if system:
        body["system"] = system
    body.update(_sampling(request.sampling, fields))
    body.update(_tools(fields))
    body.update(_output_config(fields))
    body.update(_metadata(fields))
    fields.refuse_given(("logprobs", "top_logprobs"))
    fields.refuse_foreign()
    fields.refuse_several()
    return {**fields.rest, **body}


def _sampling(sampling: SamplingParams, fields: Fields) -> dict[str, object]:
    chosen: dict[str, object] = {}
    if sampling.temperature is not None:
        if sampling.temperature <= 1:
            chosen["temperature"] = sampling.temperature
        else:
            fields.refuse("temperature", "takes a temperature from 0 to 1")
    if sampling.top_p is not None:
        chosen["top_p"] = sampling.top_p
    if sampling.stop:
        chosen["stop_sequences"] = sampling.stop
    if sampling.seed is not None:
        fields.refuse("seed")
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(sampling, name):  # 0 asks for nothing
            fields.refuse(name)
    return chosen


def _tools(fields: Fields) -> dict[str, object]:
    tools = tools_in(fields)
    choice = choice_in(fields)
    parallel = fields.take("parallel_tool_calls")
    if not tools:
        return {}
    given: dict[str, object] = {"tools": [_tool(tool) for tool in tools]}
    chosen = dict(object_in(fields.take("tool_choice"))) or _choice(choice, fields)
    if parallel is False and chosen.get("type") != "none":
        chosen = {"type": "auto", **chosen, "disable_parallel_tool_use": True}
    if chosen:
        given["tool_choice"] = chosen
    return given


def _tool(tool: Function | Object) -> Object:
    if not isinstance(tool, Function):
        return tool
    told: dict[str, object] = {
        **tool.fields,
        "name": tool.name,
        "input_schema": tool.parameters or NO_ARGUMENTS,
    }
    if tool.description is not None:
        told["description"] = tool.description
    if tool.strict is not None:
        told["strict"] = tool.strict
    return told


def _choice(choice: Choice | None, fields: Fields) -> dict[str, object]:
    if choice is None:
        return {}
    match choice.names:
        case ():
            return {"type": CHOICES[choice.mode]}
        case (name,) if choice.mode == "required":
            return {"type": "tool", "name": name}
        case _:
            fields.refuse("tool_choice", "can be told to use one tool or any, not some of them")
            return {}


def _output_config(fields: Fields) -> dict[str, object]:
    config = dict(object_in(fields.take("output_config")))
    effort = fields.take("reasoning_effort")
    if effort == "none":
        fields.rest.setdefault("thinking", {"type": "disabled"})
    elif effort in EFFORTS:
        config.setdefault("effort", effort)
    elif effort is not None:
        fields.refuse("reasoning_effort", f"takes a reasoning_effort of none, {', '.join(EFFORTS)}")
    wanted = format_in(fields)
    if wanted is not None and wanted.schema is not None:
        config.setdefault("format", {"type": "json_schema", "schema": wanted.schema})
    elif wanted is not None:
        fields.refuse("response_format", "has JSON by a schema only: response_format json_schema")
    return {"output_config": config} if config else {}


def _metadata(fields: Fields) -> dict[str, object]:
    # OpenAI's metadata of the same name is for its archive of answers
    known = object_in(fields.take("metadata")).get("user_id")
    user = known or fields.take("user") or fields.take("safety_identifier")
    return {"metadata": {"user_id": user}} if isinstance(user, str) else {}


def _conversation(
    messages: Sequence[Message], provider: str, strays: Strays
) -> Steps[tuple[str | list[Object], list[Turn]]]:
    system: list[Object] = []
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        yield
        where = f"messages[{index}]"
        if message.role == "tool":  # the result's own members go along with it
            strays.in_parts(message, where)
        else:
            strays.in_message(message, where)
        match message.role:
            case "system" | "developer":
                system += _blocks(message, where, provider, texts_only=True)
            case "user":
                add_turn(turns, "user", _blocks(message, where, provider))
            case "assistant":
                add_turn(turns, "assistant", _said(message, where, provider))
            case "tool":
                add_turn(turns, "user", [_result(message, where, provider)])
            case role:
                raise InvalidRequestError(
                    f"{provider} has no role {role!r}; use tool", param=f"{where}.role"
                )
    if all(set(block) == {"type", "text"} for block in system):
        return "\n".join(str(block["text"]) for block in system), turns
    return system, turns  # with marks of its own, such as cache_control


def _said(message: Message, where: str, provider: str) -> list[Object]:
    said = [object_in(block) for block in list_in(message.fields.get("thinking_blocks"))]
    said += _blocks(message, where, provider)
    refusal = message.fields.get("refusal")
    if isinstance(refusal, str) and refusal:
        said.append({"type": "text", "text": refusal})
    for number, call in enumerate(calls_of(message, where)):
        if not call.call_id:
            param = f"{where}.tool_calls[{number}].id"
            raise InvalidRequestError(f"{param} is missing", param=param)
        used = {"id": call.call_id, "name": call.name, "input": call.arguments}
        said.append({**call.own, "type": "tool_use", **used})
    return said


def _result(message: Message, where: str, provider: str) -> Object:
    call_id = message.fields.get("tool_call_id")
    if not isinstance(call_id, str):
        param = f"{where}.tool_call_id"
        raise InvalidRequestError(f"{param} is missing", param=param)
    content, fields = message.content, message.fields
    return {
        **own(fields, MESSAGE - {"is_error"}),
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": content if isinstance(content, str) else _blocks(message, where, provider),
    }


def _blocks(
    message: Message, where: str, provider: str, *, texts_only: bool = False
) -> list[Object]:
    blocks: list[Object] = []
    for number, part in enumerate(parts_of(message)):
        place = f"{where}.content[{number}]"
        if texts_only and part["type"] != "text":
            raise refuse_part(part, place, provider)
        blocks.append(_block(part, place, provider))
    return blocks


def _block(part: Object, where: str, provider: str) -> Object:
    match part["type"]:
        case "image_url":
            source = _source(url_in(part, "image_url", where))
            return {**beside(part), "type": "image", "source": source}
        case "file":
            return {**beside(part), "type": "document", **_document(part, where)}
        case "refusal":
            return {**beside(part), "type": "text", "text": part.get("refusal")}
        case "text":
            return {**beside(part), "type": "text", "text": part.get("text")}
        case "input_audio" | "video_url" | "audio_url":
            raise refuse_part(part, where, provider)
        case _:  # a block in the API's own shape
            return part


def _source(url: str) -> Object:
    data = data_of(url)
    if data is None:
        return {"type": "url", "url": url}
    return {"type": "base64", "media_type": data.media_type, "data": data.base64}


def _document(part: Object, where: str) -> Object:
    file = object_in(part.get("file"))
    url, file_id, name = file.get("file_data"), file.get("file_id"), file.get("filename")
    if isinstance(url, str):
        return {"source": _source(url)} | ({"title": name} if isinstance(name, str) else {})
    if isinstance(file_id, str):
        return {"source": {"type": "file", "file_id": file_id}}
    raise InvalidRequestError(f"{where}.file holds no file", param=f"{where}.file")
