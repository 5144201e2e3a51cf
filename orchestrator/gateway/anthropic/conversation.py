"""The turns of an Anthropic conversation as OpenAI's messages.

Results of tools come before everything else of their turn: that is where OpenAI's servers look for
them, and Anthropic wants them first as well.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.strays import own
from orchestrator.runners.remote.translation import Object, object_in

TURN = frozenset({"role", "content"})
RESULT = frozenset({"content", "is_error", "tool_use_id", "type"})
CALL = frozenset({"id", "input", "name", "type"})
IMAGE = frozenset({"source", "type"})
SOURCE = frozenset({"data", "media_type", "type", "url"})


def conversation(
    system: str | Sequence[Object] | None, turns: Sequence[Object]
) -> Steps[list[Message]]:
    """Returns the messages.

    Raises:
        InvalidRequestError: A turn or a block can't be used; `param` names it.
    """
    messages: list[Message] = []
    if system:
        blocks = _blocks({"content": system}, "system")
        messages.append(Message("system", _plain(_parts(blocks, "system"))))
    for number, turn in enumerate(turns):
        yield
        where = f"messages[{number}]"
        match turn.get("role"):
            case "user":
                messages += _user(turn, where)
            case "assistant":
                messages.append(_assistant(turn, where))
            case "system":
                messages.append(Message("system", _plain(_parts(_blocks(turn, where), where))))
            case _:
                param = f"{where}.role"
                raise InvalidRequestError(f"{param} must be user or assistant", param=param)
    return messages


def _user(turn: Object, where: str) -> list[Message]:
    results: list[Message] = []
    rest: list[Object] = []
    for number, block in enumerate(_blocks(turn, where)):
        if block.get("type") == "tool_result":
            results.append(_result(block, f"{where}.content[{number}]"))
        else:
            rest.append(_part(block, f"{where}.content[{number}]"))
    fields = own(turn, TURN)
    if rest or not results:
        return [*results, Message("user", _plain(rest), fields)]
    *others, last = results
    return [*others, replace(last, fields={**fields, **last.fields})]


def _result(block: Object, where: str) -> Message:
    call_id = block.get("tool_use_id")
    if not isinstance(call_id, str):
        param = f"{where}.tool_use_id"
        raise InvalidRequestError(f"{param} is missing", param=param)
    fields = own(block, RESULT)
    fields["tool_call_id"] = call_id
    if block.get("is_error"):
        fields["is_error"] = True
    content = block.get("content")
    inner: list[Object] = [] if content is None else _parts(_blocks(block, where), where)
    return Message("tool", _plain(inner), fields)


def _assistant(turn: Object, where: str) -> Message:
    parts: list[Object] = []
    calls: list[Object] = []
    signed: list[Object] = []
    reasoning: list[str] = []
    for number, block in enumerate(_blocks(turn, where)):
        place = f"{where}.content[{number}]"
        match block.get("type"):
            case "tool_use":
                calls.append(_call(block, place))
            case "thinking" if not block.get("signature"):
                reasoning.append(str(block.get("thinking") or ""))
            case "thinking" | "redacted_thinking":
                signed.append(block)
            case _:
                parts.append(_part(block, place))
    fields = own(turn, TURN)
    if signed:
        fields["thinking_blocks"] = signed
    if any(reasoning):
        fields["reasoning_content"] = "".join(reasoning)
    if calls:
        fields["tool_calls"] = calls
    return Message("assistant", _plain(parts) or (None if calls else ""), fields)


def _call(block: Object, where: str) -> Object:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str):
            raise InvalidRequestError(f"{where}.{name} is missing", param=f"{where}.{name}")
    given = block.get("input", {})
    if not isinstance(given, dict):
        raise InvalidRequestError(f"{where}.input must be an object", param=f"{where}.input")
    arguments = msgspec.json.encode(given).decode()
    function = {"name": block["name"], "arguments": arguments}
    return {**own(block, CALL), "id": block["id"], "type": "function", "function": function}


def _blocks(holder: Object, where: str) -> list[Object]:
    content = holder.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        param = f"{where}.content"
        raise InvalidRequestError(f"{param} must be a text or a list of blocks", param=param)
    return [
        _checked(block, f"{where}.content[{number}]")
        for number, block in enumerate(cast("list[object]", content))
    ]


def _checked(block: object, where: str) -> Object:
    given = object_in(block)
    if not isinstance(given.get("type"), str):
        raise InvalidRequestError(f"{where} must be a block with a type", param=where)
    return given


def _parts(blocks: Sequence[Object], where: str) -> list[Object]:
    return [_part(block, f"{where}.content[{number}]") for number, block in enumerate(blocks)]


def _part(given: Object, where: str) -> Object:
    """Returns one block as a content part; one that isn't known stays as it is.

    Raises:
        InvalidRequestError: It is incomplete.
    """
    kind = given["type"]
    if kind == "text" and not isinstance(given.get("text"), str):
        raise InvalidRequestError(f"{where}.text must be a text", param=f"{where}.text")
    if kind == "image":
        url = _url(given, where)
        if url is not None:
            image = {**own(object_in(given.get("source")), SOURCE), "url": url}
            return {**own(given, IMAGE), "type": "image_url", "image_url": image}
    if kind == "document":
        return _document(given, where)
    return own(given)


def _document(block: Object, where: str) -> Object:
    source = block.get("source")
    url = _url(block, where)
    if url is None or not url.startswith("data:") or not isinstance(source, dict):
        return block  # a text, blocks, or an address: only the API itself has such documents
    file = {**own(object_in(block.get("source")), SOURCE), "file_data": url}
    if isinstance(block.get("title"), str):
        file["filename"] = block["title"]
    return {**own(block, IMAGE | {"title"}), "type": "file", "file": file}


def _url(block: Object, where: str) -> str | None:
    """Returns the address of an image or document; None for a source of another kind.

    Raises:
        InvalidRequestError: The source is incomplete.
    """
    source = object_in(block.get("source"))
    match source.get("type"), source.get("data"), source.get("media_type"), source.get("url"):
        case "base64", str(data), str(media_type), _:
            return f"data:{media_type};base64,{data}"
        case "url", _, _, str(url):
            return url
        case "base64" | "url" | None, _, _, _:
            param = f"{where}.source"
            raise InvalidRequestError(f"{param} is incomplete", param=param)
        case _:
            return None


def _plain(parts: list[Object]) -> str | list[Object]:
    """A single text without marks of its own is told as a text: every server takes that."""
    if not parts:
        return ""
    if len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return str(parts[0]["text"])
    return parts
