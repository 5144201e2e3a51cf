"""Tools in a request to a local model, read before it is queued.

What the model can't be held to is refused by name: which tool it calls, or whether any, and that a
call keeps to its schema. Whether its chat template takes tools at all only its host knows.
"""

from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.torch.wire import Turn

FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})
NO_TOOLS = "this model's chat template takes no tools"
KNOWN = frozenset({"name", "description", "parameters", "strict"})


def tools_of(request: PriorityRequest) -> list[Turn]:
    """What the model may call, as chat templates take it.

    Raises:
        InvalidRequestError: It is named wrongly, or more is asked than a local model can do.
    """
    extra = request.extra
    given, choice = extra.get("tools"), extra.get("tool_choice")
    if choice not in (None, "auto", "none"):
        text = "tool_choice must be auto or none: this model can't be made to call a tool"
        raise InvalidRequestError(text, param="tool_choice")
    if given is None:
        return []
    if not isinstance(given, list):
        raise InvalidRequestError("tools must be a list", param="tools")
    tools = [_tool(f"tools[{at}]", tool) for at, tool in enumerate(cast("list[object]", given))]
    if tools and extra.get("parallel_tool_calls") is False:
        text = "parallel_tool_calls: this model can't be kept to one call"
        raise InvalidRequestError(text, param="parallel_tool_calls")
    return [] if choice == "none" else tools


def calls_of(place: str, message: Message) -> list[Turn]:
    """The calls of an earlier answer, as chat templates take them.

    Raises:
        InvalidRequestError: They are none.
    """
    given = message.fields.get("tool_calls")
    if not given:
        return []
    if message.role != "assistant" or not isinstance(given, list):
        param = f"{place}.tool_calls"
        raise InvalidRequestError(f"{param} must be an answer's list of calls", param=param)
    calls = cast("list[object]", given)
    return [_call(f"{place}.tool_calls[{at}]", call) for at, call in enumerate(calls)]


def place_of_tools(messages: Sequence[Turn], tools: Sequence[Turn]) -> str | None:
    """Where a request has to do with tools first; None if it has nothing to do with any."""
    if tools:
        return "tools"
    for index, message in enumerate(messages):
        if "tool_calls" in message or message["role"] == "tool":
            return f"messages[{index}]"
    return None


def _tool(place: str, given: object) -> Turn:
    tool = _object(place, given)
    if tool.get("type") != "function":
        raise InvalidRequestError(f"{place}.type must be function", param=f"{place}.type")
    place = f"{place}.function"
    function = _object(place, tool.get("function"))
    _named(place, function)
    for name in function.keys() - KNOWN:
        param = f"{place}.{name}"
        raise InvalidRequestError(f"{param}: this model doesn't know the field", param=param)
    if function.get("strict"):
        param = f"{place}.strict"
        raise InvalidRequestError(f"{param}: this model can't be held to a schema", param=param)
    told = {name: value for name, value in function.items() if name != "strict"}
    return {"type": "function", "function": told}


def _call(place: str, given: object) -> Turn:
    call = _object(place, given)
    function = _object(f"{place}.function", call.get("function"))
    _named(f"{place}.function", function)
    told = function.get("arguments")
    try:
        # a text in the API, an object in chat templates
        arguments = msgspec.json.decode(told) if isinstance(told, str) and told else (told or {})
    except NOT_JSON:
        arguments = None
    if not isinstance(arguments, Mapping):
        param = f"{place}.function.arguments"
        raise InvalidRequestError(f"{param} must be a JSON object as a text", param=param)
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _named(place: str, function: Mapping[str, object]) -> None:
    if not isinstance(function.get("name"), str) or not function["name"]:
        raise InvalidRequestError(f"{place}.name must be a text", param=f"{place}.name")


def _object(place: str, given: object) -> Mapping[str, object]:
    if not isinstance(given, Mapping):
        raise InvalidRequestError(f"{place} must be an object", param=place)
    return cast("Mapping[str, object]", given)
