"""A body of OpenAI's Responses API, read into the words of chat completions.

Nothing is stored here: `store: true`, `previous_response_id`, `conversation`, stored prompts and
work in the background are refused, an absent `store` means false. `metadata` comes back with the
response. Fields and tools that aren't known here go through untouched; encrypted reasoning of
another service, of which nobody here has the key, is refused.
"""

import msgspec

from orchestrator.channel import Channel
from orchestrator.errors import InvalidRequestError
from orchestrator.gateway.members import (
    Anything,
    Members,
    check_bounds,
    check_messages,
    members,
    shorter,
)
from orchestrator.gateway.responses.items import Object, messages_of
from orchestrator.request import Priority, PriorityRequest, SamplingParams
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.strays import own
from orchestrator.runners.remote.translation import list_in, object_in

STORED = ("previous_response_id", "conversation", "prompt")
"""Fields that name something stored."""
GIVEN_ANYWAY = ("reasoning.encrypted_content",)
"""What `include` need not ask for: it is told wherever there is any."""


class ResponsesStreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    """How a stream is told."""

    include_obfuscation: bool | None = None
    """Padding against guesses from the length of packets, which is never added here."""


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The fields that mean something here; all others are passed on."""

    model: str
    input: str | list[dict[str, Anything]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    tools: list[dict[str, Anything]] | None = None
    tool_choice: str | dict[str, Anything] | None = None
    text: dict[str, Anything] | None = None
    reasoning: dict[str, Anything] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Anything = None
    conversation: Anything = None
    prompt: Anything = None
    metadata: dict[str, Anything] | None = None
    stream: bool | None = None
    stream_options: ResponsesStreamOptions | None = None
    priority: str | None = None
    """`background`, `normal`, `high` or `critical`; an extension."""
    deadline: float | None = None
    """Seconds for everything, waiting included; an extension."""


def read_responses(
    body: Members, request_id: str, timeout: str | None
) -> Steps[tuple[PriorityRequest, ResponsesRequest]]:
    """Returns what is asked, and the body's own fields.

    Args:
        body: Its members, decoded.
        request_id: For logs and headers.
        timeout: The header `x-request-timeout`, seconds.

    Raises:
        InvalidRequestError: Something is wrong; `param` names it.
    """
    given, extra = members(body, ResponsesRequest, "input")
    _refuse_stores(given)
    items = given.input if isinstance(given.input, list) else []
    check_bounds(given.model, extra)
    yield from check_messages(items)
    if given.max_output_tokens is not None and not 1 <= given.max_output_tokens < 2**31:
        raise InvalidRequestError(
            f"max_output_tokens must be from 1 to {2**31 - 1}", param="max_output_tokens"
        )
    messages = yield from messages_of(given.instructions, given.input)
    request = PriorityRequest(
        request_id=request_id,
        model=given.model,
        messages=messages,
        sampling=SamplingParams(
            temperature=given.temperature,
            top_p=given.top_p,
            max_tokens=given.max_output_tokens,
        ),
        channel=Channel(held=not given.stream),
        timeout=shorter(given.deadline, timeout),
        priority=Priority.NORMAL if given.priority is None else Priority.of(given.priority),
        extra={**extra, **_fields(given)},
    )
    return request, given


def _refuse_stores(given: ResponsesRequest) -> None:
    if given.store:
        raise InvalidRequestError(
            "store: nothing is stored here; send store: false and the whole conversation as input",
            param="store",
        )
    for name in STORED:
        if getattr(given, name) is not None:
            raise InvalidRequestError(
                f"{name}: nothing is stored here; send the whole conversation as input", param=name
            )
    if given.background:
        raise InvalidRequestError(
            "background: nothing goes on without a caller here", param="background"
        )
    if given.stream_options is not None and not given.stream:
        raise InvalidRequestError("stream_options needs stream: true", param="stream_options")


def _fields(given: ResponsesRequest) -> dict[str, object]:
    """Translates what stands beside input and sampling."""
    fields: dict[str, object] = {}
    if given.tools is not None:
        fields["tools"] = [_tool(tool, number) for number, tool in enumerate(given.tools)]
    if given.tool_choice is not None:
        fields["tool_choice"] = _choice(given.tool_choice)
    if given.text is not None:
        fields.update(_text(given.text))
    if given.reasoning is not None:
        rest = {name: value for name, value in given.reasoning.items() if value is not None}
        effort = rest.pop("effort", None)
        fields.update({"reasoning_effort": effort} if effort is not None else {})
        fields.update({"reasoning": rest} if rest else {})
    include = [name for name in given.include or [] if name not in GIVEN_ANYWAY]
    if "message.output_text.logprobs" in include:
        include.remove("message.output_text.logprobs")
        fields["logprobs"] = True
    if include:
        fields["include"] = include
    if given.top_logprobs:
        fields.update({"logprobs": True, "top_logprobs": given.top_logprobs})
    if given.truncation not in {None, "disabled"}:
        fields["truncation"] = given.truncation
    return fields


def _tool(tool: Object, number: int) -> Object:
    if tool.get("type") != "function":
        return tool  # one that runs at the provider
    if not isinstance(tool.get("name"), str):
        param = f"tools[{number}].name"
        raise InvalidRequestError(f"{param} is missing", param=param)
    function = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | Object) -> object:
    if isinstance(choice, str):
        return choice
    match choice.get("type"):
        case "function":
            others = own(choice, {"type", "name"})
            return {**others, "type": "function", "function": {"name": choice.get("name")}}
        case "allowed_tools":
            tools = [_choice(object_in(tool)) for tool in list_in(choice.get("tools"))]
            allowed = {"mode": choice.get("mode", "auto"), "tools": tools}
            others = own(choice, {"type", "mode", "tools"})
            return {**others, "type": "allowed_tools", "allowed_tools": allowed}
        case _:
            return choice


def _text(text: Object) -> dict[str, object]:
    rest = dict(text)
    wanted = object_in(rest.pop("format", None))
    fields: dict[str, object] = {}
    match wanted.get("type", "text"):
        case "text":
            pass
        case "json_schema":
            schema = {name: value for name, value in wanted.items() if name != "type"}
            fields["response_format"] = {"type": "json_schema", "json_schema": schema}
        case _:
            fields["response_format"] = wanted
    verbosity = rest.pop("verbosity", None)
    if verbosity is not None:
        fields["verbosity"] = verbosity
    if rest:
        name = next(iter(rest))
        raise InvalidRequestError(f"text.{name[:100]} is not known", param=f"text.{name[:100]}")
    return fields
