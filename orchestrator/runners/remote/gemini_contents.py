"""A conversation in OpenAI's words, as Gemini's `contents`.

* System and developer messages become the one `systemInstruction`, wherever they stand; messages
  of one side in a row become one turn.
* The API knows results of tools by the function's name, so each is looked up by the id of its call.
  An id that was made here, because the API gave none, isn't sent.
* A thought's signature comes back in `extra_content.google.thought_signature` of the call or the
  message that brought it, where Google's own translation has it as well.
* A participant's `name` and the `detail` of an image have no place there and are left out. Members
  of the API's own go along with their part (`videoMetadata`) or call.
"""

import mimetypes
import re
from collections.abc import Sequence
from typing import cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.request import Message
from orchestrator.runners.classify import NOT_JSON
from orchestrator.runners.remote.pace import Steps
from orchestrator.runners.remote.strays import Strays, beside, unmarked
from orchestrator.runners.remote.translation import (
    Object,
    Turn,
    add_turn,
    calls_of,
    data_of,
    object_in,
    parts_of,
    refuse_part,
    url_in,
)

MADE_ID = re.compile(r"call_[0-9a-f]{32}")
"""Ids of calls that `gemini_answer` made up."""
URL_PARTS = ("image_url", "video_url", "audio_url")


def conversation(
    messages: Sequence[Message], provider: str, strays: Strays
) -> Steps[tuple[list[Object], list[Turn]]]:
    """Returns the parts of the system instruction, and the turns.

    Raises:
        InvalidRequestError: A message is of no use to the API; `param` names it.
    """
    system: list[Object] = []
    turns: list[Turn] = []
    names: dict[str, str] = {}
    for index, message in enumerate(messages):
        yield
        where = f"messages[{index}]"
        strays.in_message(message, where, joined=message.role == "tool")
        match message.role:
            case "system" | "developer":
                system += _texts(message, where, provider)
            case "user":
                add_turn(turns, "user", _parts(message, where, provider))
            case "assistant":
                calls = calls_of(message, where)
                names.update((call.call_id, call.name) for call in calls)
                add_turn(turns, "model", _said(message, where, provider))
            case "tool":
                add_turn(turns, "user", [_result(message, where, provider, names)])
            case role:
                raise InvalidRequestError(
                    f"{provider} has no role {role!r}; use tool", param=f"{where}.role"
                )
    return system, turns


def _said(message: Message, where: str, provider: str) -> list[Object]:
    said = _parts(message, where, provider)
    signature = _signature(message.fields)
    if signature is not None:
        last = said.pop() if said else {"text": ""}
        said.append({**last, "thoughtSignature": signature})
    for call in calls_of(message, where):
        told: dict[str, object] = {"name": call.name, "args": call.arguments, **_id(call.call_id)}
        signature = _signature(call.fields)
        signed = {} if signature is None else {"thoughtSignature": signature}
        said.append({**unmarked(call.own), "functionCall": told, **signed})
    return said


def _signature(fields: Object) -> str | None:
    google = object_in(object_in(fields.get("extra_content")).get("google"))
    signature = google.get("thought_signature")
    return signature if isinstance(signature, str) else None


def _id(call_id: str) -> Object:
    return {} if not call_id or MADE_ID.fullmatch(call_id) else {"id": call_id}


def _result(message: Message, where: str, provider: str, names: dict[str, str]) -> Object:
    call_id = message.fields.get("tool_call_id")
    name = names.get(call_id) if isinstance(call_id, str) else None
    name = name or message.fields.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        param = f"{where}.tool_call_id"
        raise InvalidRequestError(f"{param} is that of no call before it", param=param)
    text = "".join(str(part["text"]) for part in _texts(message, where, provider))
    return {"functionResponse": {"name": name, "response": _response(text), **_id(call_id)}}


def _response(text: str) -> Object:
    """The API wants an object; what is none goes under the name that it has for that."""
    try:
        value = cast("object", msgspec.json.decode(text))
    except NOT_JSON:
        value = text
    return cast("Object", value) if isinstance(value, dict) else {"output": value}


def _texts(message: Message, where: str, provider: str) -> list[Object]:
    texts: list[Object] = []
    for number, part in enumerate(parts_of(message)):
        if part["type"] != "text":
            raise refuse_part(part, f"{where}.content[{number}]", provider)
        texts.append({**_own(part), "text": part["text"]})
    return texts


def _parts(message: Message, where: str, provider: str) -> list[Object]:
    return [
        _part(part, f"{where}.content[{number}]", provider)
        for number, part in enumerate(parts_of(message))
    ]


def _own(part: Object) -> Object:
    return unmarked(beside(part))


def _part(part: Object, where: str, provider: str) -> Object:
    return {**_own(part), **_content(part, where, provider)}


def _content(part: Object, where: str, provider: str) -> Object:
    match part["type"]:
        case "text":
            return {"text": part["text"]}
        case "refusal":
            return {"text": part.get("refusal")}
        case str(kind) if kind in URL_PARTS:
            told = object_in(part.get(kind)).get("mime_type")
            return _media(url_in(part, kind, where), told)
        case "input_audio":
            audio = object_in(part.get("input_audio"))
            media_type = f"audio/{audio.get('format')}"
            return {"inlineData": {"mimeType": media_type, "data": audio.get("data")}}
        case "file":
            file = object_in(part.get("file"))
            url = file.get("file_data") or file.get("file_id")
            if not isinstance(url, str):
                raise InvalidRequestError(f"{where}.file holds no file", param=f"{where}.file")
            return _media(url, file.get("mime_type") or _guessed(str(file.get("filename"))))
        case _:
            raise refuse_part(part, where, provider)


def _media(url: str, media_type: object) -> Object:
    data = data_of(url)
    if data is not None:
        return {"inlineData": {"mimeType": data.media_type, "data": data.base64}}
    media_type = media_type or _guessed(url)
    kind = {"mimeType": media_type} if isinstance(media_type, str) else {}
    return {"fileData": {"fileUri": url, **kind}}


def _guessed(name: str) -> str | None:
    """The type that a name's ending stands for; where it is unknown the API finds out."""
    return mimetypes.guess_type(name.partition("?")[0], strict=False)[0]
