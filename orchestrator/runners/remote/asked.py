"""The parts of a chat completion's request that other APIs have in another shape, read once.

What a caller sent is any JSON; whoever translates it asks here and gets what it can work with, or
an error that names the place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message

Members = dict[str, object]


def members(value: object) -> Members:
    """The members of an object; none if it is something else."""
    return cast("Members", value) if isinstance(value, dict) else {}


def items(value: object) -> list[object]:
    """The items of a list; none if it is something else."""
    return cast("list[object]", value) if isinstance(value, list) else []


def text(value: object) -> str | None:
    """A text; None if it is something else."""
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A call of a function that an earlier answer made."""

    known_as: str
    """Its id."""
    name: str
    arguments: str
    """JSON, as the model wrote it."""


def calls_of(message: Message, where: str) -> list[Call]:
    """Returns the calls that the message made.

    Args:
        message: Of the assistant.
        where: Its place in the request, for errors.

    Raises:
        InvalidRequestError: One is no call of a function, or lacks its id or name.
    """
    calls: list[Call] = []
    for place, given in enumerate(items(message.fields.get("tool_calls"))):
        call = members(given)
        function = members(call.get("function"))
        known_as, name = text(call.get("id")), text(function.get("name"))
        if known_as is None or name is None:
            path = f"{where}.tool_calls[{place}]"
            raise InvalidRequestError(f"{path} must call a function and have an id", param=path)
        calls.append(Call(known_as=known_as, name=name, arguments=_arguments(function)))
    return calls


def _arguments(function: Members) -> str:
    return text(function.get("arguments")) or ""


def function_of(tool: object) -> Members | None:
    """Returns the function that a tool is; None for a tool of another kind."""
    given = members(tool)
    function = members(given.get("function"))
    return function if given.get("type") == "function" and text(function.get("name")) else None


def image_of(part: Mapping[str, object]) -> tuple[str, Members]:
    """Returns the address of a part of type `image_url`, which may be a data URL, and the rest.

    The address is empty where the part has none.
    """
    image = part.get("image_url")
    if isinstance(image, str):  # a short form that many clients send
        return image, {}
    given = dict(members(image))
    return text(given.pop("url", None)) or "", given


def data_of(url: str) -> tuple[str, str] | None:
    """Splits a data URL into its media type and its base64 text; None for any other address."""
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return head.removeprefix("data:").partition(";")[0], data
