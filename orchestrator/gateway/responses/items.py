"""The items of a response's input as messages.

What the model said between two turns of the user is one message, however many items it was: its
texts, its calls of tools, its reasoning. Reasoning that this gateway told comes back as it was:
as text, or as the signed blocks that it had put into `encrypted_content`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.strays import own
from orchestrator.runners.remote.translation import list_in, object_in

Object = Mapping[str, object]
ITEM = frozenset({"content", "created_by", "id", "role", "status", "type"})
"""Members of a message that are translated, or are an answer's that clients send back."""
CALL = ITEM | {"arguments", "call_id", "name"}
RESULT = ITEM | {"call_id", "output"}
REASONING = ITEM | {"encrypted_content", "summary"}
TEXT = frozenset({"annotations", "logprobs", "text", "type"})
IMAGE = frozenset({"detail", "file_id", "image_url", "type"})
_blocks = msgspec.json.Decoder(list[dict[str, object]])


def messages_of(instructions: str | None, given: str | Sequence[Object]) -> Steps[list[Message]]:
    """Returns the messages.

    Raises:
        InvalidRequestError: An item can't be used; `param` names it.
    """
    messages = [Message("system", instructions)] if instructions else []
    if isinstance(given, str):
        return [*messages, Message("user", given)]
    said = _Said()
    for number, item in enumerate(given):
        yield
        where = f"input[{number}]"
        if said.take(item, where):
            continue
        said.tell(messages)
        messages.append(_heard(item, where))
    said.tell(messages)
    if not messages:
        raise InvalidRequestError("input must not be empty", param="input")
    return messages


def _heard(item: Object, where: str) -> Message:
    """Reads an item that isn't the model's.

    Raises:
        InvalidRequestError: It can't be used.
    """
    match item.get("type", "message"):
        case "message":
            role = item.get("role")
            if role not in ("user", "system", "developer"):
                param = f"{where}.role"
                raise InvalidRequestError(
                    f"{param} must be user, assistant, system or developer", param=param
                )
            content = _content(item.get("content"), f"{where}.content")
            return Message(str(role), content, own(item, ITEM))
        case "function_call_output":
            call_id = item.get("call_id")
            if not isinstance(call_id, str):
                param = f"{where}.call_id"
                raise InvalidRequestError(f"{param} is missing", param=param)
            content = _content(item.get("output"), f"{where}.output")
            return Message("tool", content, {**own(item, RESULT), "tool_call_id": call_id})
        case kind:
            text = f"{where}: items of type {str(kind)[:40]!r} can't be taken here"
            raise InvalidRequestError(text, param=f"{where}.type")


@dataclass(slots=True)
class _Said:
    """What the model said since the last item of anybody else."""

    texts: list[Object] = field(default_factory=list[Object])
    refusals: list[str] = field(default_factory=list[str])
    calls: list[Object] = field(default_factory=list[Object])
    reasoning: list[str] = field(default_factory=list[str])
    signed: list[Object] = field(default_factory=list[Object])
    own: dict[str, object] = field(default_factory=dict[str, object])

    def take(self, item: Object, where: str) -> bool:
        """Takes an item; False if it isn't the model's.

        Raises:
            InvalidRequestError: It can't be used.
        """
        match item.get("type", "message"), item.get("role"):
            case "message", "assistant":
                self._take_message(item, where)
            case "function_call", _:
                self.calls.append(_call(item, where))
            case "reasoning", _:
                self._take_reasoning(item, where)
            case _:
                return False
        return True

    def tell(self, messages: list[Message]) -> None:
        """Adds what was said as one message, if there is anything."""
        fields = self.own
        if self.calls:
            fields["tool_calls"] = self.calls
        if self.refusals:
            fields["refusal"] = "".join(self.refusals)
        if self.reasoning:
            fields["reasoning_content"] = "".join(self.reasoning)
        if self.signed:
            fields["thinking_blocks"] = self.signed
        if self.texts or fields:
            content = plain(self.texts) if self.texts else None
            messages.append(Message("assistant", content, fields))
        self.texts, self.refusals, self.calls, self.reasoning, self.signed = [], [], [], [], []
        self.own = {}

    def _take_message(self, item: Object, where: str) -> None:
        self.own.update(own(item, ITEM))
        content = item.get("content")
        if isinstance(content, str):
            self.texts.append({"type": "text", "text": content})
            return
        for number, given in enumerate(list_in(content)):
            part = object_in(given)
            if part.get("type") == "refusal":
                self.refusals.append(str(part.get("refusal") or ""))
            else:
                self.texts.append(_part(part, f"{where}.content[{number}]"))

    def _take_reasoning(self, item: Object, where: str) -> None:
        for name in own(item, REASONING):
            param = f"{where}.{name[:100]}"
            raise InvalidRequestError(f"{param} is not known", param=param)
        secret = item.get("encrypted_content")
        if secret is not None:
            try:
                self.signed += _blocks.decode(str(secret))
            except NOT_JSON:
                param = f"{where}.encrypted_content"
                raise InvalidRequestError(
                    f"{param} was encrypted elsewhere; leave the item out", param=param
                ) from None
            return
        for part in (*list_in(item.get("summary")), *list_in(item.get("content"))):
            self.reasoning.append(str(object_in(part).get("text") or ""))


def _call(item: Object, where: str) -> Object:
    for name in ("call_id", "name", "arguments"):
        if not isinstance(item.get(name), str):
            raise InvalidRequestError(f"{where}.{name} is missing", param=f"{where}.{name}")
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {**own(item, CALL), "id": item["call_id"], "type": "function", "function": function}


def _content(content: object, where: str) -> str | list[Object]:
    if isinstance(content, str):
        return content
    listed: object = content
    if not isinstance(content, list):
        raise InvalidRequestError(f"{where} must be a text or a list of parts", param=where)
    parts = [
        _part(object_in(part), f"{where}[{number}]") for number, part in enumerate(list_in(listed))
    ]
    return plain(parts)


def _part(part: Object, where: str) -> Object:
    match part.get("type"):
        case "input_text" | "output_text" | "text":
            if not isinstance(part.get("text"), str):
                raise InvalidRequestError(f"{where}.text must be a text", param=f"{where}.text")
            return {**own(part, TEXT), "type": "text", "text": part["text"]}
        case "input_image":
            url = part.get("image_url")
            if not isinstance(url, str):
                param = f"{where}.image_url"
                raise InvalidRequestError(
                    f"{param} is missing: no files are kept here", param=param
                )
            detail = part.get("detail")
            image = {"url": url} | ({} if detail is None else {"detail": detail})
            return {**own(part, IMAGE), "type": "image_url", "image_url": image}
        case "input_file":
            file = {name: value for name, value in part.items() if name != "type"}
            return {"type": "file", "file": file}
        case str():
            return part
        case _:
            raise InvalidRequestError(f"{where} must be a part with a type", param=where)


def plain(parts: list[Object]) -> str | list[Object]:
    """A single text without members of its own is told as a text: every server takes that."""
    if len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return str(parts[0]["text"])
    return parts or ""
