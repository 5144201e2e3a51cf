"""Members of a request's objects that OpenAI's chat completions don't have.

They are another API's own. A translation carries them along where it has a place for them, as it
does with the body's own fields; where it has none they are refused by name, or left out with
`drop_params`. A mark that has no bearing on the answer (`MARKS`) is left out without a word, and
so is a member that is null.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import cast

from orchestrator.request import Message
from orchestrator.runners.remote.settings import RemoteSettings, leave_out

Object = Mapping[str, object]

MARKS = frozenset({"cache_control"})
"""What says where a prompt may be cached."""

MESSAGE = frozenset(
    {
        "annotations",
        "audio",
        "extra_content",
        "function_call",
        "is_error",
        "name",
        "reasoning",
        "reasoning_content",
        "reasoning_details",
        "refusal",
        "thinking_blocks",
        "tool_call_id",
        "tool_calls",
    }
)
"""Members of a message besides role and content: OpenAI's, and those that answers bring here."""

CALL = frozenset({"extra_content", "function", "id", "index", "type"})
CALLED_FUNCTION = frozenset({"arguments", "name"})
FUNCTION = frozenset({"description", "name", "parameters", "strict"})
TOOL = frozenset({"function", "type"})
CHOICES = {"allowed_tools": frozenset({"mode", "tools"}), "function": frozenset({"name"})}
FORMAT = frozenset({"json_schema", "type"})
SCHEMA = frozenset({"description", "name", "schema", "strict"})

PARTS: Mapping[str, frozenset[str]] = {
    "audio_url": frozenset({"url"}),
    "file": frozenset({"file_data", "file_id", "filename"}),
    "image_url": frozenset({"detail", "url"}),
    "input_audio": frozenset({"data", "format"}),
    "refusal": frozenset(),
    "text": frozenset(),
    "video_url": frozenset({"url"}),
}
"""Kinds of content parts, each with the members of the object that bears the kind's name."""

ECHOED = frozenset({"annotations", "logprobs"})
"""Members of an answer's text that clients send back with it."""


def own(given: Object, *known: AbstractSet[str]) -> dict[str, object]:
    """Returns the members that aren't known and say something, marks included."""
    return {
        name: value
        for name, value in given.items()
        if value is not None and not any(name in names for names in known)
    }


def unmarked(given: Object, *known: AbstractSet[str]) -> dict[str, object]:
    """Returns the members that aren't known and say something, for who has no use for marks."""
    return own(given, MARKS, *known)


def beside(part: Object) -> dict[str, object]:
    """Returns what a content part of one of OpenAI's kinds holds besides the kind's content."""
    return own(part, {"type", str(part.get("type"))}, ECHOED)


def _object(value: object) -> Object:
    return cast("Object", value) if isinstance(value, dict) else {}


class Strays:
    """Refuses what a provider's translation has no place for.

    Args:
        settings: Of the deployment.
        messages: Whether a message's own members have no place.
        parts: Whether those of a content part have none.
        known: Members besides OpenAI's that it reads.
    """

    def __init__(
        self,
        settings: RemoteSettings,
        *,
        messages: bool = True,
        parts: bool = False,
        known: frozenset[str] = frozenset(),
    ) -> None:
        self._settings = settings
        self._messages = messages
        self._parts = parts
        self._known = known

    def in_message(self, message: Message, where: str, *, joined: bool = False) -> None:
        """Looks at a message and its parts, which may be joined to one text.

        Raises:
            InvalidRequestError: There is such a member, and the deployment doesn't say
                `drop_params`.
        """
        if self._messages:
            self._refuse(unmarked(message.fields, MESSAGE), where)
        self.in_parts(message, where, joined=joined)

    def in_parts(self, message: Message, where: str, *, joined: bool = False) -> None:
        """Looks at a message's parts alone.

        Raises:
            InvalidRequestError: As for a message.
        """
        if isinstance(message.content, str):
            return
        for number, part in enumerate(message.content or ()):
            place, kind = f"{where}.content[{number}]", str(part.get("type"))
            if kind not in PARTS:
                continue  # the provider's own, whole
            if joined or self._parts:
                self._refuse(unmarked(beside(part)), place)
            self._refuse(unmarked(_object(part.get(kind)), PARTS[kind]), f"{place}.{kind}")

    def in_fields(self, fields: Object) -> None:
        """Looks at `tool_choice` and `response_format`.

        Raises:
            InvalidRequestError: As for a message.
        """
        choice = _object(fields.get("tool_choice"))
        for name, known in CHOICES.items():
            if name in choice:
                self._refuse(own(choice, {"type", name}), "tool_choice")
                self._refuse(own(_object(choice[name]), known), f"tool_choice.{name}")
        form = _object(fields.get("response_format"))
        self._refuse(own(form, FORMAT), "response_format")
        self._refuse(own(_object(form.get("json_schema")), SCHEMA), "response_format.json_schema")

    def _refuse(self, strays: Object, where: str) -> None:
        for name in strays:
            if name not in self._known:
                said = name[:100]
                leave_out(self._settings, f"{where}.{said}", f"takes no {said} in {where}")
