"""A body of Anthropic's Messages API, read into OpenAI's words.

* `system` becomes a system message, results of tools become messages of role tool, calls of tools
  `tool_calls`; texts, images and documents become content parts.
* Thinking that is signed goes back as `thinking_blocks`, which only the API that signed it can
  read; thinking without a signature, as this gateway tells that of other providers, goes back as
  `reasoning_content`.
* `output_config` becomes `response_format` and `reasoning_effort`, `metadata.user_id` becomes
  `user`. Whatever else isn't known here (`thinking`, `top_k`, tools and blocks of the API's own)
  goes through untouched: a provider takes it, or refuses it by name.
"""

from collections.abc import Mapping
from typing import Annotated, cast

import msgspec

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.anthropic.conversation import conversation
from orchestrator.gateway.members import (
    Anything,
    Members,
    check_bounds,
    check_messages,
    members,
    shorter,
    turns,
)
from orchestrator.request import Message, Priority, PriorityRequest, SamplingParams
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.strays import own

Object = dict[str, Anything]
CHOICE = frozenset({"disable_parallel_tool_use", "name", "type"})


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """The fields of a prompt that mean something here; all others are passed on."""

    model: str
    messages: Annotated[list[Object], msgspec.Meta(extra_json_schema=turns("user", "assistant"))]
    system: str | list[Object] | None = None
    tools: list[Object] | None = None
    tool_choice: Object | None = None
    output_config: Object | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A prompt and how it is to be answered."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    metadata: Object | None = None
    priority: str | None = None
    """`background`, `normal`, `high` or `critical`; an extension."""
    deadline: float | None = None
    """Seconds for everything, waiting included; an extension."""


def read_messages(
    body: Members, request_id: str, timeout: str | None
) -> Steps[tuple[PriorityRequest, bool]]:
    """Returns what is asked, and whether it is to be streamed.

    Args:
        body: Its members, decoded.
        request_id: For logs and headers.
        timeout: The header `x-request-timeout`, seconds.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, MessagesRequest)
    if given.max_tokens < 1:
        raise InvalidRequestError("max_tokens must be at least 1", param="max_tokens")
    stream = bool(given.stream)
    fields = _fields(given, extra)
    fields.update(_metadata(given.metadata))
    messages = yield from _conversation(given)
    request = PriorityRequest(
        request_id=request_id,
        model=given.model,
        messages=messages,
        sampling=_sampling(given),
        channel=Channel(held=not stream),
        timeout=shorter(given.deadline, timeout),
        priority=Priority.NORMAL if given.priority is None else Priority.of(given.priority),
        priority_named=given.priority is not None,
        extra=fields,
    )
    return request, stream


def read_prompt(body: Members, request_id: str) -> Steps[PriorityRequest]:
    """Returns a prompt that is only to be counted.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, CountTokensRequest)
    fields = _fields(given, extra)
    messages = yield from _conversation(given)
    return PriorityRequest(
        request_id=request_id,
        model=given.model,
        messages=messages,
        sampling=SamplingParams(),
        channel=Channel(held=True),
        extra=fields,
    )


def _conversation(given: CountTokensRequest) -> Steps[list[Message]]:
    yield from check_messages(given.messages)
    return (yield from conversation(given.system, given.messages))


def _fields(given: CountTokensRequest, extra: Mapping[str, object]) -> dict[str, object]:
    """Checks the body's size and translates what stands beside messages and sampling."""
    check_bounds(given.model, extra)
    fields = dict(extra)
    if given.tools is not None:
        fields["tools"] = [_tool(tool, number) for number, tool in enumerate(given.tools)]
    if given.tool_choice is not None:
        fields.update(_choice(given.tool_choice))
    if given.output_config is not None:
        fields.update(_output(given.output_config))
    return fields


def _sampling(given: MessagesRequest) -> SamplingParams:
    try:
        return SamplingParams(
            temperature=given.temperature,
            top_p=given.top_p,
            max_tokens=given.max_tokens,
            stop=tuple(given.stop_sequences or ()),
        )
    except InvalidRequestError as error:
        if error.param != "stop":
            raise
        text = error.message.replace("stop takes", "stop_sequences takes")
        raise InvalidRequestError(text, param="stop_sequences") from None


def _tool(tool: Object, number: int) -> Object:
    kind = tool.get("type", "custom")
    if kind != "custom":
        return tool  # one that runs at the provider
    if not isinstance(tool.get("name"), str):
        param = f"tools[{number}].name"
        raise InvalidRequestError(f"{param} is missing", param=param)
    schema = tool.get("input_schema")
    if not isinstance(schema, dict):
        param = f"tools[{number}].input_schema"
        raise InvalidRequestError(f"{param} must be an object", param=param)
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    own = {
        name: value
        for name, value in tool.items()
        if name not in {"type", "name", "description", "strict", "input_schema"}
    }
    return {"type": "function", "function": {**function, "parameters": schema}, **own}


def _choice(choice: Object) -> dict[str, object]:
    fields: dict[str, object] = {}
    if choice.get("disable_parallel_tool_use") is True:
        fields["parallel_tool_calls"] = False
    others = own(choice, CHOICE)
    match choice.get("type"):
        case "tool" if isinstance(choice.get("name"), str):
            function = {"name": choice["name"]}
            fields["tool_choice"] = {**others, "type": "function", "function": function}
        case "auto" | "none" | "any" if others:
            param = f"tool_choice.{next(iter(others))[:100]}"
            raise InvalidRequestError(f"{param} is not known", param=param)
        case "auto" | "none" as mode:
            fields["tool_choice"] = mode
        case "any":
            fields["tool_choice"] = "required"
        case _:
            raise InvalidRequestError(
                "tool_choice must be of type auto, any, none, or tool with a name",
                param="tool_choice",
            )
    return fields


def _output(config: Object) -> dict[str, object]:
    fields: dict[str, object] = {}
    rest = dict(config)
    wanted = rest.pop("format", None)
    effort = rest.pop("effort", None)
    if isinstance(wanted, dict):
        told = cast("dict[str, object]", wanted)
        schema = {"name": "output", "schema": told.get("schema"), "strict": True}
        others = own(told, {"type", "schema"})
        fields["response_format"] = {**others, "type": "json_schema", "json_schema": schema}
    if effort is not None:
        fields["reasoning_effort"] = effort
    if rest:
        fields["output_config"] = rest
    return fields


def _metadata(metadata: Object | None) -> dict[str, object]:
    rest = dict(metadata or {})
    user = rest.pop("user_id", None)
    fields: dict[str, object] = {} if user is None else {"user": user}
    return fields | ({"metadata": rest} if rest else {})
