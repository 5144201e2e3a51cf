"""A body's members: decoded, typed and bounded, whichever API it is for.

Rules:
    1. Types are strict: a number is no boolean, a text is no number, NaN is no JSON at all.
    2. Every refusal names the field.
    3. The loop stands still while members are read, so what they consist of is bounded.
"""

import math
import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, TypeVar, cast

import msgspec

from orchestrator.errors import InvalidRequestError
from orchestrator.runners.remote.pace import Steps

T = TypeVar("T", bound=msgspec.Struct)
_PLACE = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_MISSING = re.compile(r"missing required field `(.+?)`")
TIMEOUT_HEADER = "x-request-timeout"
MAX_MODEL_LENGTH = 256
MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""Of one message."""
MAX_ALL_PARTS = 16_384
MAX_IMAGES = 256
"""Also of files and of pieces of audio and video: whatever is no text."""
MAX_UNKNOWN = 256
MAX_VALUES = 1 << 17
"""Values of any kind, at any depth."""
LONG = 256
"""Turns of a conversation; to copy 4096 takes a millisecond."""
SHOWN = 100
"""Characters of what a caller sent that an error repeats."""

Members = dict[str, object]
"""Of a body, decoded; readers leave it as it is."""
Anything = Annotated[object, msgspec.Meta(extra_json_schema={"description": "Any JSON value."})]

MEDIA = frozenset(
    (
        "audio_url",
        "document",
        "file",
        "image",
        "image_url",
        "input_audio",
        "input_file",
        "input_image",
        "video_url",
    )
)
"""Types of content parts that are no text, in any API's words."""

_PARTS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["type", "text"],
        "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    },
}


def turns(*roles: str) -> dict[str, object]:
    """What the published document says of messages: the shape that every model takes."""
    content = {"anyOf": [{"type": "string"}, _PARTS]}
    return {
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {"role": {"enum": roles}, "content": content},
        },
    }


decode_object = msgspec.json.Decoder(dict[str, object]).decode
_HALF = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}")


def decode(body: bytes, kind: type[msgspec.Struct]) -> Members:
    """Decodes a body at once.

    Args:
        body: The whole body.
        kind: Its fields that mean something here.

    Raises:
        InvalidRequestError: It is no JSON object.
    """
    try:
        return decode_object(body)
    except msgspec.ValidationError as error:
        text = str(error)
        if "$[...]" in text:
            # without its struct msgspec can't name the field of a number that is out of range
            try:
                msgspec.json.decode(body, type=kind)
            except msgspec.ValidationError as named:
                text = str(named)
        mistake = _wrong_type(text)
        raise mistake from None
    except (msgspec.DecodeError, RecursionError) as error:
        text = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        refusal = unreadable(text, body)
        raise refusal from None


def members(
    found: Members, kind: type[T], conversation: str = "messages"
) -> tuple[T, dict[str, object]]:
    """Reads a body's members.

    Args:
        found: All of them, decoded.
        kind: Those that mean something here.
        conversation: The one that is a list of objects, which may be long; it isn't copied then.

    Returns:
        Those, and all others.

    Raises:
        InvalidRequestError: A field is missing or of another type; `param` names it.
    """
    turns = found.get(conversation)
    is_long = conversation in kind.__struct_fields__ and _is_long(turns)
    try:
        given = msgspec.convert({**found, conversation: ()} if is_long else found, kind)
    except msgspec.ValidationError as error:
        mistake = _wrong_type(str(error))
        raise mistake from None
    if is_long:
        setattr(given, conversation, turns)
    return given, {
        name: value for name, value in found.items() if name not in kind.__struct_fields__
    }


def _is_long(turns: object) -> bool:
    """Whether it is a list of so many objects that their copies would take a while."""
    if not isinstance(turns, list):
        return False
    listed = cast("list[object]", turns)
    return len(listed) > LONG and all(isinstance(turn, dict) for turn in listed)


def unreadable(text: str, body: bytes) -> InvalidRequestError:
    """What is told of a body that no decoder can read, in the decoder's words."""
    if "surrogate" in text or ("truncated" in text and _HALF.search(body[-16:])):
        text = "a text of it ends in half a character, a lone surrogate, so it isn't valid UTF-8"
    return InvalidRequestError(f"the body is no JSON that can be read: {text}")


def too_many_messages(count: int) -> InvalidRequestError:
    """What is told of a conversation that is too long."""
    return InvalidRequestError(
        f"messages has {count} messages; {MAX_MESSAGES} are the most", param="messages"
    )


def check_bounds(model: str, extra: Mapping[str, object]) -> None:
    """Looks whether a body has too much beside its messages.

    Raises:
        InvalidRequestError: It does; `param` names what.
    """
    if len(model) > MAX_MODEL_LENGTH:
        raise InvalidRequestError(
            f"model has more than {MAX_MODEL_LENGTH} characters", param="model"
        )
    if len(extra) > MAX_UNKNOWN:
        name = next(islice(extra, MAX_UNKNOWN, None))[:SHOWN]
        raise InvalidRequestError(
            f"the body has {len(extra)} fields beside those known here; {MAX_UNKNOWN} are the most,"
            f" and {name!r} is one too many",
            param=name,
        )


def check_messages(messages: Sequence[Mapping[str, object]]) -> Steps[None]:
    """Looks whether a conversation consists of too much.

    Raises:
        InvalidRequestError: It does; `param` names what.
    """
    if len(messages) > MAX_MESSAGES:
        too_many = too_many_messages(len(messages))
        raise too_many
    all_parts = images = 0
    for index, message in enumerate(messages):
        content = message.get("content")
        if not isinstance(content, list):
            continue
        parts = len(cast("list[object]", content))
        all_parts += parts
        images += sum(map(_is_media, cast("list[object]", content)))
        if parts > MAX_PARTS:
            place = f"messages[{index}].content"
            raise InvalidRequestError(
                f"{place} has {parts} parts; {MAX_PARTS} are the most", param=place
            )
        yield
    if all_parts > MAX_ALL_PARTS:
        raise InvalidRequestError(
            f"messages has {all_parts} content parts; {MAX_ALL_PARTS} are the most",
            param="messages",
        )
    if images > MAX_IMAGES:
        raise InvalidRequestError(
            f"messages has {images} images and files; {MAX_IMAGES} are the most", param="messages"
        )


def _is_media(part: object) -> bool:
    return isinstance(part, dict) and cast("dict[str, object]", part).get("type") in MEDIA


def _wrong_type(text: str) -> InvalidRequestError:
    place, missing = _PLACE.search(text), _MISSING.search(text)
    path = place[1] if place else ""
    if missing:
        path = f"{path}.{missing[1]}" if path else missing[1]
        return InvalidRequestError(f"{path} is missing", param=path)
    what = _PLACE.sub("", text).replace("`", "").replace(" | ", " or ")
    return wrong(path or None, what[:1].lower() + what[1:])


def wrong(path: str | None, what: str) -> InvalidRequestError:
    """What is told of a field that is wrong; None is the body itself."""
    return InvalidRequestError(f"{path or 'the body'}: {what}", param=path)


def _seconds(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        seconds = float(header)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise InvalidRequestError(
            f"the header {TIMEOUT_HEADER} must be a number of seconds above 0",
            param=TIMEOUT_HEADER,
        )
    return seconds


def shorter(one: float | None, header: str | None) -> float | None:
    """The shorter of a body's deadline and the header's, in seconds.

    Raises:
        InvalidRequestError: The header is no number above 0.
    """
    other = _seconds(header)
    if one is None or other is None:
        return other if one is None else one
    # a deadline of 0 or less is refused where the request is made, so it must stay the shorter
    return min(one, other)
