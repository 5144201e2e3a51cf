"""From OpenAI's words into another provider's: what every translation needs.

Rules:
    1. What changes the answer is translated, or refused by name, or left out where the deployment
       says `drop_params`; never lost in silence.
    2. What has no bearing on the answer (`HINTS`, `strays.MARKS`) is left out where the provider
       has no place for it.
    3. What isn't OpenAI's is the provider's own, and goes through untouched.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message, PriorityRequest
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.settings import RemoteSettings
from orchestrator.runners.remote.strays import CALL, CALLED_FUNCTION, FUNCTION, TOOL, own

HINTS = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "safety_identifier",
    "store",
    "stream_options",
    "user",
)
"""OpenAI's fields for billing, caching and abuse reports, and for how a stream is told."""

FOREIGN = (
    "audio",
    "function_call",
    "functions",
    "logit_bias",
    "modalities",
    "moderation",
    "prediction",
    "verbosity",
    "web_search_options",
)
"""OpenAI's fields that only OpenAI's own models have."""

Object = Mapping[str, object]


def object_in(value: object) -> Object:
    """The value if it is an object, else an empty one."""
    return cast("Object", value) if isinstance(value, dict) else {}


def list_in(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


class Fields:
    """The body's fields besides messages and sampling, each taken once.

    Args:
        settings: Of the deployment, whose `extra_body` a request's own fields win over.
        request: What is asked.
    """

    def __init__(self, settings: RemoteSettings, request: PriorityRequest) -> None:
        self.rest: dict[str, object] = {**settings.extra_body, **request.extra}
        """What nobody has taken yet; in the end the provider's own fields."""
        self._settings = settings
        self._wanted = request.sampling.n

    def take(self, name: str) -> object:
        """Returns a field and removes it; None if it isn't there."""
        return self.rest.pop(name, None)

    def refuse(self, param: str, text: str | None = None) -> None:
        """Tells the caller that the provider can't do it, unless it is to be left out.

        Raises:
            InvalidRequestError: The deployment doesn't say `drop_params`.
        """
        if not self._settings.drop_params:
            provider = self._settings.provider
            raise InvalidRequestError(
                f"{provider} {text}" if text else f"{provider} has no {param}", param=param
            )

    def refuse_given(self, names: Sequence[str]) -> None:
        """Takes fields and refuses those that say anything.

        Raises:
            InvalidRequestError: One does, and the deployment doesn't say `drop_params`.
        """
        for name in names:
            if self.take(name) not in (None, False, {}, []):
                self.refuse(name)

    def refuse_foreign(self) -> None:
        """Refuses what only OpenAI's models have; a hint or a default is left out.

        Raises:
            InvalidRequestError: There is such a field.
        """
        if self.rest.get("modalities") == ["text"]:
            del self.rest["modalities"]
        self.refuse_given(FOREIGN)
        for name in HINTS:
            self.take(name)

    def refuse_several(self) -> None:
        """Refuses to give more than one answer.

        Raises:
            InvalidRequestError: Several are wanted.
        """
        if self.take("n") not in (None, 1) or self._wanted > 1:
            self.refuse("n", "gives one answer to a request: n must be 1")


@dataclass(slots=True)
class Turn:
    """What one side says until the other speaks, in the provider's own blocks or parts."""

    role: str
    blocks: list[Object] = field(default_factory=list[Object])


def add_turn(turns: list[Turn], role: str, blocks: Sequence[Object]) -> None:
    """Appends to the conversation; two messages of one side in a row become one turn."""
    if not blocks:
        return
    if not turns or turns[-1].role != role:
        turns.append(Turn(role))
    turns[-1].blocks.extend(blocks)


def parts_of(message: Message) -> list[Object]:
    """The content as a list of parts; a text that is empty is none."""
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}] if message.content else []
    parts = message.content or ()
    return [part for part in parts if "" not in (part.get("text"), part.get("refusal"))]


@dataclass(frozen=True, slots=True)
class Data:
    """The content of a `data:` URL in base64."""

    media_type: str
    base64: str


def data_of(url: str) -> Data | None:
    """Reads a `data:` URL (RFC 2397); None if it is none, or not in base64."""
    head, comma, base64 = url.partition(",")
    if not comma or head[:5].lower() != "data:" or not head.endswith(";base64"):
        return None
    return Data(head[5:].split(";")[0].lower() or "text/plain", base64)


def url_in(part: Object, kind: str, where: str) -> str:
    """Returns the URL of a part like `{"type": KIND, KIND: {"url": ...}}`.

    Raises:
        InvalidRequestError: There is none.
    """
    holder = part.get(kind)
    url = holder if isinstance(holder, str) else object_in(holder).get("url")
    if not isinstance(url, str) or not url:
        param = f"{where}.{kind}.url"
        raise InvalidRequestError(f"{param} is missing", param=param)
    return url


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the model made in an earlier turn."""

    call_id: str
    name: str
    arguments: Object
    fields: Object
    own: Object
    """Its members that OpenAI doesn't have, and its function's."""


def calls_of(message: Message, where: str) -> list[ToolCall]:
    """Reads an assistant message's `tool_calls`.

    Raises:
        InvalidRequestError: One has no name, or arguments that aren't a JSON object.
    """
    calls: list[ToolCall] = []
    for number, value in enumerate(list_in(message.fields.get("tool_calls"))):
        place = f"{where}.tool_calls[{number}]"
        call = object_in(value)
        function = object_in(call.get("function"))
        name, call_id = function.get("name"), call.get("id")
        if not isinstance(name, str):
            raise InvalidRequestError(f"{place} calls no function", param=place)
        arguments = _arguments(function.get("arguments"), f"{place}.function.arguments")
        call_id = call_id if isinstance(call_id, str) else ""
        others = {**own(call, CALL), **own(function, CALLED_FUNCTION)}
        calls.append(ToolCall(call_id, name, arguments, call, others))
    return calls


def _arguments(given: object, param: str) -> Object:
    arguments: object = given
    if given is None or isinstance(given, str):
        try:
            arguments = msgspec.json.decode(given or "{}")
        except NOT_JSON:
            arguments = None
    if not isinstance(arguments, dict):
        raise InvalidRequestError(f"{param} must be the JSON of an object", param=param)
    return cast("Object", arguments)


@dataclass(frozen=True, slots=True)
class Function:
    """A tool of OpenAI's shape."""

    name: str
    description: str | None
    parameters: Object
    """JSON Schema of the arguments; empty if there are none."""
    strict: bool | None
    fields: Object
    """Other members of the tool and of its function, the provider's own."""


def tools_in(fields: Fields) -> list[Function | Object]:
    """Takes `tools`: functions, and tools of the provider's own shape as they are.

    Raises:
        InvalidRequestError: One is of a shape that only OpenAI has.
    """
    tools: list[Function | Object] = []
    for number, tool in enumerate(list_in(fields.take("tools"))):
        place, given = f"tools[{number}]", object_in(tool)
        if given.get("type") == "function":
            tools.append(_function(given, place))
        elif given.get("type") == "custom" and "custom" in given:
            fields.refuse(place, f"has functions only; {place} is a custom tool")
        elif given:
            tools.append(given)
        else:
            raise InvalidRequestError(f"{place} must be an object", param=place)
    return tools


def _function(tool: Object, place: str) -> Function:
    function = object_in(tool.get("function"))
    name, description = function.get("name"), function.get("description")
    strict = function.get("strict")
    if not isinstance(name, str):
        param = f"{place}.function.name"
        raise InvalidRequestError(f"{param} is missing", param=param)
    return Function(
        name=name,
        description=description if isinstance(description, str) else None,
        parameters=object_in(function.get("parameters")),
        strict=strict if isinstance(strict, bool) else None,
        fields={**own(tool, TOOL), **own(function, FUNCTION)},
    )


Mode = Literal["auto", "none", "required"]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which tools the model may or must use."""

    mode: Mode
    names: tuple[str, ...] = ()
    """Only these; empty is any."""


def choice_in(fields: Fields) -> Choice | None:
    """Takes `tool_choice`, if it is OpenAI's; the provider's own stays where it is.

    Raises:
        InvalidRequestError: It is a word that nobody knows.
    """
    given = fields.rest.get("tool_choice")
    if isinstance(given, dict) and not {"function", "allowed_tools"} & given.keys():
        return None
    fields.take("tool_choice")
    match given:
        case None:
            return None
        case "auto" | "none" | "required":
            return Choice(cast("Mode", given))
        case dict():
            told = object_in(cast("object", given))
            allowed = object_in(told.get("allowed_tools"))
            if not allowed:
                return Choice("required", _names([told]))
            mode = "required" if allowed.get("mode") == "required" else "auto"
            return Choice(mode, _names(list_in(allowed.get("tools"))))
        case _:
            raise InvalidRequestError(
                "tool_choice must be auto, none, required or an object", param="tool_choice"
            )


def _names(tools: Sequence[object]) -> tuple[str, ...]:
    functions = [object_in(object_in(tool).get("function")) for tool in tools]
    names = [function.get("name") for function in functions]
    if not names or not all(isinstance(name, str) for name in names):
        raise InvalidRequestError("tool_choice names no function", param="tool_choice")
    return tuple(cast("list[str]", names))


@dataclass(frozen=True, slots=True)
class Format:
    """JSON as the answer, by a schema if there is one."""

    schema: Object | None


def format_in(fields: Fields) -> Format | None:
    """Takes `response_format`; None leaves the answer a text.

    Raises:
        InvalidRequestError: It is none of OpenAI's.
    """
    given = object_in(fields.take("response_format"))
    match given.get("type", "text"):
        case "text":
            return None
        case "json_object":
            return Format(None)
        case "json_schema" if schema := object_in(
            object_in(given.get("json_schema")).get("schema")
        ):
            return Format(schema)
        case _:
            raise InvalidRequestError(
                "response_format must be text, json_object, or json_schema with a schema",
                param="response_format",
            )


def refuse_part(part: Object, where: str, provider: str) -> InvalidRequestError:
    """Returns the refusal of a content part that the provider has no place for."""
    return InvalidRequestError(
        f"{provider} takes no {part.get('type')!r} content here", param=where
    )
